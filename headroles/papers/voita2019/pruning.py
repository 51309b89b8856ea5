"""Voita et al. 2019, section 6.2: pruning heads of all kinds by Hard Concrete gates (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from headroles import plots
from headroles.analysis.summaries import THIRDS, thirds
from headroles.papers.artefact import (
    Interval,
    Reproduced,
    Verdict,
    aligned,
    bounded,
    claim,
    every,
    judged,
    of_wmt,
    on_balance,
    printed,
    provided,
    share,
)
from headroles.papers.bench import CLEAR, TWICE, VALUES, Bench, gains, metric_of, of_kind, trained
from headroles.papers.needs import NEEDS, Need, only_translation
from headroles.papers.voita2019.encoder_pruning import pruned_encoder
from headroles.plots.axes import new_axes
from headroles.tables import frame
from headroles.tables.frame import KINDS
from headroles.tables.io import save_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from headroles.papers.workflow import Workflow
    from headroles.tables.study import Study


@cache  # needed by several artefacts of one run
def _pruned(run: Workflow) -> Study:
    """Prune heads of all kinds by learnt gates; return the study with the tables."""
    only_translation(run)
    study = run.study("pruning")
    run.prune(study, None)
    return study


NEEDS["sizes"] = Need(
    "a translation model pruned to several sizes",
    "headroles sparsity-sweep MODEL CORPUS TARGET --held-out DEV",
    "sparsity-l0",
    lambda run: [_pruned(run).path("sparsity-l0")],
    columns=("cross",),
    trains=True,
)


def fig9(bench: Bench) -> Reproduced:
    """Show how many heads of each kind remain at each size."""
    sizes = bench.table("sizes")
    theirs = of_wmt("voita2019-fig9").rename(columns={kind: f"paper.{kind}" for kind in KINDS})
    return judged(fig9_claim, aligned(sizes[["heads", "of", *KINDS]], theirs), lambda: plots.by_kind(sizes))


@claim(
    "The encoder's heads are pruned first, those of cross-attention last.",
    """Holds if at every size the encoder keeps the smallest share of its heads, at the smallest size cross-attention
    the largest, and where at most half of all heads remains the encoder has fewer than a random draw leaves
    (hypergeometric, p < 0.05), and in most of these sizes cross-attention keeps the largest share. Fails if at some
    size the encoder has more heads than a random draw leaves, or at the smallest cross-attention fewer.""",
)
def fig9_claim(table: pd.DataFrame) -> Verdict:
    rows = table[(table["heads"] < table["of"]) & table["enc-self"].notna()].sort_values("heads")
    kinds, whole = rows[["enc-self", "dec-self", "cross"]], _whole(table)
    shares = kinds / whole[kinds.columns].astype(float)
    smallest, more = (
        shares["enc-self"] <= shares.min(axis=1),
        [_beyond_random(row, whole) for _, row in rows.iterrows()],
    )
    parts = [False if odd else bool(part) or None for part, odd in zip(smallest, more, strict=True)]
    last = shares["cross"].iloc[0] > shares[["enc-self", "dec-self"]].iloc[0].max()
    parts.append(False if _beyond_random(rows.iloc[0], whole, "cross", -1) else bool(last) or None)
    counts = ", ".join(f"{kind} {int(count)}" for kind, count in kinds.iloc[0].items())
    text = f"with {rows['heads'].iloc[0]:.0f} of {rows['of'].iloc[0]:.0f} heads left: {counts}"
    half = shares[rows["heads"] <= rows["of"] / 2]
    most = int((half["cross"] > half[["enc-self", "dec-self"]].max(axis=1)).sum())
    sure = most > len(half) / 2 and _beyond_random(rows.loc[half.index[-1]], whole, "enc-self", -1)
    text += f"; cross-attention keeps the largest share in {most} of {len(half)} sizes with at most half"
    return Verdict(provided(every(parts), sure), f"{text} (one training for each size)")


def _whole(table: pd.DataFrame) -> pd.Series:
    """Return the row of the whole model."""
    return table[table["heads"] == table["of"]].dropna(subset="enc-self").iloc[0]


def _beyond_random(row: pd.Series, whole: pd.Series, kind: str = "enc-self", sign: int = 1) -> bool:
    """Return whether more heads of a kind remain than a random draw leaves, or with `sign` -1 fewer."""
    draw = stats.hypergeom(row["of"], whole[kind], row["heads"])
    return bool((draw.sf(row[kind] - 1) if sign > 0 else draw.cdf(row[kind])) < CLEAR)


NEEDS["survival"] = Need(
    "survival of each head at each size",
    "headroles sparsity-sweep MODEL CORPUS TARGET --held-out DEV",
    "survival-l0",
    lambda run: [_pruned(run).path("survival-l0")],
    trains=True,
)


def fig10(bench: Bench) -> Reproduced:
    """Show how many decoder heads remain in the lower, middle and upper layers at each size."""
    survival = bench.table("survival")
    left = thirds(of_kind(survival, "dec-self")).join(thirds(of_kind(survival, "cross")))
    ours = left.assign(heads=survival[left.index].sum().to_numpy(int), of=len(survival))
    theirs = printed("voita2019-fig10").add_prefix("paper.").rename(columns={"paper.of": "of"})
    theirs["heads"] = of_wmt("voita2019-fig9")["heads"]
    return judged(fig10_claim, aligned(ours, theirs), lambda: plots.by_third(survival)[0])


@claim(
    "The decoder's self-attention heads survive in its lower layers, those of cross-attention in the upper ones.",
    """Holds if, at each size with at most half of all heads, the lower third of the layers keeps a larger share of its
    decoder's self-attention heads than the upper third, and a smaller one of cross-attention, and at the largest of
    these sizes both together are beyond chance (Fisher's exact test, p < 0.05); fails if for one of the two kinds the
    opposite is true at each size.""",
)
def fig10_claim(table: pd.DataFrame) -> Verdict:
    rows = table[(table["heads"] <= table["of"] / 2) & table["cross lower"].notna()]
    if rows.empty or not rows[["dec-self lower.of", "dec-self upper.of"]].all(axis=None):
        return Verdict(None, "no size has half of the heads or fewer, or there are too few layers for thirds")
    parts = []
    for kind, sign in (("dec-self", 1), ("cross", -1)):
        lower, upper = (rows[f"{kind} {third}"] / rows[f"{kind} {third}.of"] for third in ("lower", "upper"))
        more = sign * (lower - upper)
        parts.append(True if (more > 0).all() else False if (more < 0).all() else None)
    row = rows.iloc[rows["heads"].argmax()]
    counts = (
        f"{kind} " + ", ".join(f"{row[f'{kind} {third}']:.0f}" for third in THIRDS) for kind in ("dec-self", "cross")
    )
    text = f"in the lower, middle and upper third with {row['heads']:.0f} heads left: {'; '.join(counts)}"
    return Verdict(provided(every(parts), _placed(row)), f"{text} ({len(rows)} sizes, one training each)")


def _placed(row: pd.Series) -> bool:
    """Return whether self-attention survives below and cross-attention above, together beyond chance."""
    ends = ["dec-self lower", "cross upper"], ["dec-self upper", "cross lower"]
    left = [[sum(row[name] for name in names), sum(row[f"{name}.of"] for name in names)] for names in ends]
    return bool(stats.fisher_exact([[count, of - count] for count, of in left], "greater").pvalue < CLEAR)


def _scratch(run: Workflow) -> list[Path]:
    """Train models without the pruned heads from scratch, one of each size, and evaluate them."""
    from headroles.ablation.evaluation import evaluate
    from headroles.models import loading
    from headroles.pruning.removal import remove_heads

    study = _pruned(run)
    sizes, survival = study.load("sparsity-l0"), study.load("survival-l0")
    rows = []
    for name in map(str, survival.filter(regex=r"\]$")):
        removed = [*survival.index[survival[name] == 0]]
        model = remove_heads(loading.untrained(run.model), removed)
        run.train(model, "scratch", name, options=run.scratch)
        values = evaluate(model, run.tokenizer, run.material.test, [run.metric], n_resamples=run.n_resamples)
        size = sizes[sizes["heads"] == int(survival[name].sum())].iloc[0]
        row = {"heads": size["heads"], **dict(zip("edc", size[[*KINDS]], strict=True))}
        for label, part in (("finetuned", size), ("scratch", values.loc[run.metric])):
            row |= dict(zip(bounded(label), part[VALUES], strict=True))
        rows.append(row)
    table = frame.signed(pd.DataFrame(rows), frame.provenance(sizes, "value"))
    return [save_table(table, study.path("scratch"))]


NEEDS["scratch"] = Need(
    "models of the pruned sizes trained from scratch",
    "headroles reproduce voita2019 table2 --model MODEL --data FOLDER",
    "scratch",
    _scratch,
    columns=("finetuned", "scratch"),
    trains=True,
)


def table2(bench: Bench) -> Reproduced:
    """Show models with the surviving heads: fine-tuned with gates, and trained from scratch."""
    table = bench.table("scratch")
    pair = ("finetuned", "scratch")
    ours = table.rename(columns=dict(zip("edc", KINDS, strict=True)))
    ours = ours.assign(of=int(bench.table("sizes")["of"].iloc[0]), heads=ours[[*KINDS]].sum(axis=1))
    gaps = [Interval.of(row, pair[0]).minus(Interval.of(row, pair[1])) for _, row in ours.iterrows()]
    ours[bounded("gap")] = gains(np.array(gaps), metric_of(table))
    steps = {name: trained(bench, table, name)["steps"] for name in ("base", *pair)}
    ours = ours.assign(**{"steps.finetuned": steps["base"] + steps["finetuned"], "steps.scratch": steps["scratch"]})
    theirs = of_wmt("voita2019-table2").rename(columns={name: f"paper.{name}" for name in pair})
    return judged(table2_claim, aligned(ours, theirs, [*KINDS, "heads", "of"]))


@claim(
    "A model of the surviving heads that is trained from scratch is worse than the pruned one.",
    """Holds if it is worse, with its interval, at some size, and better at none. Not comparable where one of the
    two had more than twice the steps of the other, those before pruning counted, or the steps are unknown.""",
)
def table2_claim(table: pd.DataFrame) -> Verdict:
    rows = table[table["finetuned"].notna() & (table["heads"] < table["of"])]
    gaps = {row["heads"]: Interval.of(row, "gap") for _, row in rows.iterrows()}
    pruned, scratch = rows[["steps.finetuned", "steps.scratch"]].iloc[0]
    alike = bool(pruned <= TWICE * scratch and scratch <= TWICE * pruned)  # no, if unknown
    text = ", ".join(f"{heads:.0f} heads {gap:.1f}" for heads, gap in gaps.items())
    text = f"pruned is better than from scratch by: {text}; trained, before and in pruning, for "
    text += f"{Interval(pruned):.0f} steps against "
    holds = on_balance(gap.above(0) for gap in gaps.values())
    return Verdict(holds if alike else None, f"{text}{Interval(scratch):.0f}", alike)


NEEDS["gates"] = Need(
    "the history of the encoder's gates",
    "headroles sparsity-sweep MODEL CORPUS --held-out DEV --kinds enc-self --freeze decoder",
    r"gates-l0-enc-self-\d+",
    lambda run: sorted(pruned_encoder(run).folder.glob("gates-l0-enc-self-*.parquet")),
    trains=True,
)


def gates(bench: Bench) -> Reproduced:
    """Show P(gate != 0) of the encoder's heads over training, a panel for each size (the blog's animation)."""
    tables = sorted(bench.tables("gates"), key=lambda table: -_size(table))
    heads = [of_kind(table.set_index(["kind", "layer", "head"])) for table in tables]
    ends = [table.loc[table["step"] == table["step"].max(), "open"] for table in heads]
    counts = {"heads": [*map(_size, tables)], "of": [*map(len, ends)]}
    counts |= {"undecided": [int(end.between(0.1, 0.9).sum()) for end in ends]}
    counts |= {"closed": [int((end < 0.1).sum()) for end in ends]}
    return judged(gates_claim, pd.DataFrame(counts), lambda: _draw_histories(tables, counts["heads"]))


@claim(
    "In training every gate converges to almost 0 or almost 1.",
    """Holds if at most a tenth of all gates has P(gate != 0) from 0.1 to 0.9 at the end, with the interval of that
    share, and at each size some gates are below 0.1 (before training none is).""",
)
def gates_claim(table: pd.DataFrame) -> Verdict:
    undecided, total = int(table["undecided"].sum()), int(table["of"].sum())
    part = share(undecided, total)
    text = f"{undecided} of {total} gates are undecided, {part}; {table['closed'].sum()} are pruned"
    return Verdict(provided(part.below(0.1), bool((table["closed"] > 0).all())), text)


def _size(history: pd.DataFrame) -> int:
    """Return the final number of heads of a history of gates, from its file name."""
    return int(str(history.attrs["file"]).removesuffix(".parquet").rpartition("-")[2])


def _draw_histories(tables: Sequence[pd.DataFrame], sizes: Sequence[int]) -> Axes:
    """Draw P(gate != 0) of the encoder's heads over training, a panel for each size."""
    count = len(tables[0].query("kind == 'enc-self' and step == step.max()"))
    axes = new_axes((count, 26), cell=0.13, panels=len(tables))
    for ax, table, size in zip(axes, tables, sizes, strict=True):
        plots.gates(table, kind="enc-self", ax=ax).set_title(f"{size} heads left")
    for mesh in (ax.collections[0] for ax in axes[:-1]):
        mesh.colorbar.remove()  # type: ignore[union-attr]
    return axes[0]
