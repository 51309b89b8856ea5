"""Voita et al. 2019, section 6: pruning the encoder's heads, and heads of all kinds, by learnt gates (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from headroles import plots
from headroles.analysis.summaries import LOW, THIRDS, thirds
from headroles.papers import verdicts as v
from headroles.papers.bench import Bench, RequiredTable, cost_of_all_heads, length_of_training, only_translation, trees
from headroles.papers.verdicts import CLEAR, LITTLE, VALUES, Interval, Reproduced, Verdict
from headroles.plots.axes import new_axes
from headroles.plots.pruning import FUNCTIONS
from headroles.tables import frame
from headroles.tables.frame import KINDS
from headroles.tables.io import save_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from headroles.papers.workflow import Workflow
    from headroles.tables.study import Study

FEW = 10 / 48  # of the encoder's heads that remain when 38 of 48 are removed
LARGEST_RATIO = 2  # of the steps of trainings that are comparable (our choice)
OF_ENCODER = "headroles sparsity-sweep MODEL CORPUS --held-out DEV --kinds enc-self --freeze decoder"
OF_ALL = "headroles sparsity-sweep MODEL CORPUS TARGET --held-out DEV"


def fig6(bench: Bench) -> Reproduced:
    """Show the Hard Concrete distribution for three values of log alpha; needs no table."""
    assert bench is not None
    printed = v.paper_numbers("voita2019-fig6")
    alpha = printed["log alpha"].to_numpy(float)
    edge = 0.5 * np.log(-LOW / (1 - LOW))  # temperature times the logit at which a gate becomes larger than 0
    ours = {"ours P(0)": 1 / (1 + np.exp(alpha - edge)), "ours P(1)": 1 / (1 + np.exp(-alpha - edge))}
    return v.judged(fig6_claim, printed.assign(**ours), lambda: plots.densities([*alpha]))


@v.claim(
    "Hard Concrete gates are exactly 0 or exactly 1 with probabilities above zero.",
    "Holds if P(0) and P(1) are the paper's, to its two digits.",
)
def fig6_claim(table: pd.DataFrame) -> Verdict:
    worst = max((table[f"ours {part}"] - table[f"paper {part}"]).abs().max() for part in ("P(0)", "P(1)"))
    return Verdict(bool(worst <= 0.0055), f"the largest difference from the paper's numbers is {worst:.3f}")


# --- section 6.1: the encoder -----------------------------------------------------------------------------------------


@cache  # needed by several artefacts of one run
def _pruned_encoder(run: Workflow) -> Study:
    """Prune the encoder by learnt gates, the decoder frozen; return the study with the tables."""
    study = run.study("pruning")
    run.prune(study, "enc-self")
    return study


@RequiredTable("sizes-encoder", "an encoder pruned to several sizes", OF_ENCODER, "sparsity-l0-enc-self")
def _encoder_sizes(run: Workflow) -> list[Path]:
    return [_pruned_encoder(run).path("sparsity-l0-enc-self")]


def fig7(bench: Bench) -> Reproduced:
    """Show the score of the model with fewer encoder heads."""
    table = bench.table("sizes-encoder")
    sizes, metric = table.assign(heads=table["enc-self"], of=table["enc-self"].iloc[0]), v.metric_of(table)
    ours = sizes[["heads", "of", *VALUES, *v.with_bounds("change")]]
    ours = ours.assign(**v.costs(sizes, sizes.iloc[0], metric))
    rows = v.with_sizes(ours, v.paper_numbers("voita2019-fig7"))
    rows = rows.assign(metric=metric, **cost_of_all_heads(bench, table, "enc-self"))
    return v.judged(fig7_claim, rows, lambda: plots.survival(sizes, label=v.metric_label(table)))


@v.claim(
    "Most encoder heads can be removed at little cost: 38 of 48 for 0.15 BLEU, 44 of 48 for 0.25.",
    """Holds if the largest size with at most 21 % of the heads costs less than 3 % of the score (of a loss, 0.03
    nats) of a control that was trained as long, with its interval, and removing all the encoder's heads without
    training costs more than that.""",
)
def fig7_claim(table: pd.DataFrame) -> Verdict:
    sizes = table[table["cost"].notna() & (table["heads"] / table["of"] <= FEW + 0.01)]
    if sizes.empty:
        return Verdict(None, "no size has so few heads")
    row = sizes.iloc[sizes["heads"].argmax()]
    cost, first = Interval.from_row(row, "cost"), table.iloc[0]
    lost = v.cost_in_words(cost, first.get("metric", ""))
    lost_without = v.cost_in_words(Interval(row["all"]), first.get("all.metric", ""))
    text = f"with {row['heads']:.0f} of {row['of']:.0f} heads left the control's score loses {lost}, without any and "
    return Verdict(
        v.unless_unsure(cost.below(LITTLE), v.removal_costs(table)), f"{text}without training {lost_without}"
    )


@RequiredTable(
    "functions-encoder",
    "functions of the surviving heads of a pruned encoder",
    f"{OF_ENCODER} --scored TREES",
    "functions-l0-enc-self",
)
def _remaining_functions(run: Workflow) -> list[Path]:
    trees(run)
    return [_pruned_encoder(run).path("functions-l0-enc-self")]


def fig8(bench: Bench) -> Reproduced:
    """Show how many of the remaining encoder heads have each function."""
    table = bench.table("functions-encoder")
    encoder = table[table["kind"] == "enc-self"]
    wide = encoder.pivot_table(index="heads", columns="function", values="count", fill_value=0, observed=True)
    wide = wide.reindex(columns=["none", *FUNCTIONS], fill_value=0).rename_axis(columns=None)
    ours = wide.assign(of=wide.sum(axis=1).max(), heads=wide.sum(axis=1)).reset_index(drop=True)
    rows = v.with_sizes(ours, v.paper_numbers("voita2019-fig8"))
    return v.judged(fig8_claim, rows, lambda: plots.functions(table, kind="enc-self"))


@v.claim(
    "Heads with functions are the last to be pruned.",
    """Holds if, where at most a quarter of the heads remains, heads with a function are a larger share than in the
    whole model (Fisher's exact test, p < 0.05); fails if they are a smaller one. A sink has no function.""",
)
def fig8_claim(table: pd.DataFrame) -> Verdict:
    rows = table[table["none"].notna()].sort_values("heads")
    rows = rows.assign(none=rows["none"] + rows.get("sink", 0))
    intact, few = rows.iloc[-1], rows[rows["heads"] <= rows["heads"].max() / 4]
    if few.empty:
        return Verdict(None, "no size has a quarter of the heads or fewer")
    counts = [[row["heads"] - row["none"], row["none"]] for row in (few.iloc[-1], intact)]
    now, first = (f"{held:.0f} of {held + none:.0f}" for held, none in counts)
    text = f"{now} remaining heads have a function, {first} in the model with all heads"
    if not counts[0][0] and not counts[1][0]:
        return Verdict(None, f"{text}: no function can survive")
    more, fewer = (stats.fisher_exact(counts, side).pvalue < CLEAR for side in ("greater", "less"))
    return Verdict(True if more else False if fewer else None, text)


@RequiredTable("gates", "the history of the encoder's gates", OF_ENCODER, r"gates-l0-enc-self-\d+")
def _encoder_gates(run: Workflow) -> list[Path]:
    return sorted(_pruned_encoder(run).folder.glob("gates-l0-enc-self-*.parquet"))


# --- section 6.2: all kinds -------------------------------------------------------------------------------------------


@cache  # needed by several artefacts of one run
def _pruned(run: Workflow) -> Study:
    """Prune heads of all kinds by learnt gates; return the study with the tables."""
    only_translation(run)
    study = run.study("pruning")
    run.prune(study, None)
    return study


@RequiredTable("sizes", "a translation model pruned to several sizes", OF_ALL, "sparsity-l0", columns=("cross",))
def _sizes(run: Workflow) -> list[Path]:
    return [_pruned(run).path("sparsity-l0")]


def fig9(bench: Bench) -> Reproduced:
    """Show how many heads of each kind remain at each size."""
    sizes = bench.table("sizes")
    printed = v.wmt_numbers("voita2019-fig9").rename(columns={kind: f"paper.{kind}" for kind in KINDS})
    rows = v.with_sizes(sizes[["heads", "of", *KINDS]], printed)
    return v.judged(fig9_claim, rows, lambda: plots.by_kind(sizes))


@v.claim(
    "The encoder's heads are pruned first, those of cross-attention last.",
    """Holds if at every size the encoder keeps the smallest share of its heads, at the smallest size cross-attention
    the largest, and where at most half of all heads remains the encoder has fewer than a random draw leaves
    (hypergeometric, p < 0.05), and in most of these sizes cross-attention keeps the largest share. Fails if at some
    size the encoder has more heads than a random draw leaves, or at the smallest cross-attention fewer.""",
)
def fig9_claim(table: pd.DataFrame) -> Verdict:
    rows = table[(table["heads"] < table["of"]) & table["enc-self"].notna()].sort_values("heads")
    kinds = rows[["enc-self", "dec-self", "cross"]]
    intact = table[table["heads"] == table["of"]].dropna(subset="enc-self").iloc[0]
    shares = kinds / intact[kinds.columns].astype(float)
    smallest = shares["enc-self"] <= shares.min(axis=1)
    more = [_beyond_random(row, intact) for _, row in rows.iterrows()]
    parts = [False if unlikely else bool(part) or None for part, unlikely in zip(smallest, more, strict=True)]
    last = shares["cross"].iloc[0] > shares[["enc-self", "dec-self"]].iloc[0].max()
    parts.append(False if _beyond_random(rows.iloc[0], intact, "cross", -1) else bool(last) or None)
    counts = ", ".join(f"{kind} {int(count)}" for kind, count in kinds.iloc[0].items())
    text = f"with {rows['heads'].iloc[0]:.0f} of {rows['of'].iloc[0]:.0f} heads left: {counts}"
    half = shares[rows["heads"] <= rows["of"] / 2]
    most = int((half["cross"] > half[["enc-self", "dec-self"]].max(axis=1)).sum())
    sure = most > len(half) / 2 and _beyond_random(rows.loc[half.index[-1]], intact, "enc-self", -1)
    text += f"; cross-attention keeps the largest share in {most} of {len(half)} sizes with at most half"
    return Verdict(v.unless_unsure(v.all_hold(parts), sure), f"{text} (one training for each size)")


def _beyond_random(row: pd.Series, intact: pd.Series, kind: str = "enc-self", sign: int = 1) -> bool:
    """Return whether more heads of a kind remain than a random draw leaves, or with `sign` -1 fewer."""
    draw = stats.hypergeom(row["of"], intact[kind], row["heads"])
    return bool((draw.sf(row[kind] - 1) if sign > 0 else draw.cdf(row[kind])) < CLEAR)


@RequiredTable("survival", "survival of each head at each size", OF_ALL, "survival-l0")
def _survival(run: Workflow) -> list[Path]:
    return [_pruned(run).path("survival-l0")]


def fig10(bench: Bench) -> Reproduced:
    """Show how many decoder heads remain in the lower, middle and upper layers at each size."""
    survival = bench.table("survival")
    left = thirds(v.rows_of_kind(survival, "dec-self")).join(thirds(v.rows_of_kind(survival, "cross")))
    ours = left.assign(heads=survival[left.index].sum().to_numpy(int), of=len(survival))
    printed = v.paper_numbers("voita2019-fig10").add_prefix("paper.").rename(columns={"paper.of": "of"})
    printed["heads"] = v.wmt_numbers("voita2019-fig9")["heads"]
    return v.judged(fig10_claim, v.with_sizes(ours, printed), lambda: plots.by_third(survival)[0])


@v.claim(
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
    parts, counts, row = [], [], rows.iloc[rows["heads"].argmax()]
    for kind, sign in (("dec-self", 1), ("cross", -1)):
        lower, upper = (rows[f"{kind} {third}"] / rows[f"{kind} {third}.of"] for third in ("lower", "upper"))
        more = sign * (lower - upper)
        parts.append(True if (more > 0).all() else False if (more < 0).all() else None)
        counts.append(f"{kind} " + ", ".join(f"{row[f'{kind} {third}']:.0f}" for third in THIRDS))
    text = f"in the lower, middle and upper third with {row['heads']:.0f} heads left: {'; '.join(counts)}"
    holds = v.unless_unsure(v.all_hold(parts), _placed(row))
    return Verdict(holds, f"{text} ({len(rows)} sizes, one training each)")


def _placed(row: pd.Series) -> bool:
    """Return whether self-attention survives below and cross-attention above, together beyond chance."""
    ends = ["dec-self lower", "cross upper"], ["dec-self upper", "cross lower"]
    left = [[sum(row[name] for name in names), sum(row[f"{name}.of"] for name in names)] for names in ends]
    return bool(stats.fisher_exact([[count, total - count] for count, total in left], "greater").pvalue < CLEAR)


@RequiredTable(
    "scratch",
    "models of the pruned sizes trained from scratch",
    "headroles reproduce voita2019 table2 --model MODEL --data FOLDER",
    "scratch",
    columns=("finetuned", "scratch"),
)
def _scratch(run: Workflow) -> list[Path]:
    """Train models without the pruned heads from scratch, one of each size, and evaluate them."""
    from headroles.ablation.effects import evaluate
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
            row |= dict(zip(v.with_bounds(label), part[VALUES], strict=True))
        rows.append(row)
    table = frame.signed(pd.DataFrame(rows), frame.provenance(sizes, "value"))
    return [save_table(table, study.path("scratch"))]


def table2(bench: Bench) -> Reproduced:
    """Show models with the surviving heads: fine-tuned with gates, and trained from scratch."""
    table, pair = bench.table("scratch"), ("finetuned", "scratch")
    ours = table.rename(columns=dict(zip("edc", KINDS, strict=True)))
    ours = ours.assign(of=int(bench.table("sizes")["of"].iloc[0]), heads=ours[[*KINDS]].sum(axis=1))
    both = zip(*(v.intervals(ours, name) for name in pair), strict=True)
    gaps = [finetuned.minus(scratch) for finetuned, scratch in both]
    ours[v.with_bounds("gap")] = v.gains(np.array(gaps), v.metric_of(table))
    steps = {name: length_of_training(bench, table, name)["steps"] for name in ("base", *pair)}
    ours = ours.assign(**{"steps.finetuned": steps["base"] + steps["finetuned"], "steps.scratch": steps["scratch"]})
    printed = v.wmt_numbers("voita2019-table2").rename(columns={name: f"paper.{name}" for name in pair})
    return v.judged(table2_claim, v.with_sizes(ours, printed, [*KINDS, "heads", "of"]))


@v.claim(
    "A model of the surviving heads that is trained from scratch is worse than the pruned one.",
    """Holds if it is worse, with its interval, at some size, and better at none. Not comparable where one of the
    two had more than twice the steps of the other, those before pruning counted, or the steps are unknown.""",
)
def table2_claim(table: pd.DataFrame) -> Verdict:
    rows = table[table["finetuned"].notna() & (table["heads"] < table["of"])]
    gaps = dict(zip(rows["heads"], v.intervals(rows, "gap"), strict=True))
    pruned, scratch = rows[["steps.finetuned", "steps.scratch"]].iloc[0]
    alike = bool(pruned <= LARGEST_RATIO * scratch and scratch <= LARGEST_RATIO * pruned)  # no, if unknown
    text = ", ".join(f"{heads:.0f} heads {gap:.1f}" for heads, gap in gaps.items())
    text = f"pruned is better than from scratch by: {text}; trained, before and in pruning, for "
    text += f"{Interval(pruned):.0f} steps against {Interval(scratch):.0f}"
    return Verdict(v.combine_votes(gap.above(0) for gap in gaps.values()) if alike else None, text, alike)


# --- the blog's animation ---------------------------------------------------------------------------------------------


def gates(bench: Bench) -> Reproduced:
    """Show P(gate != 0) of the encoder's heads over training, a panel for each size (the blog's animation)."""
    tables = sorted(bench.tables("gates"), key=lambda table: -_size(table))
    heads = [v.rows_of_kind(table.set_index(["kind", "layer", "head"])) for table in tables]
    ends = [table.loc[table["step"] == table["step"].max(), "open"] for table in heads]
    counts = {"heads": [*map(_size, tables)], "of": [*map(len, ends)]}
    counts |= {"undecided": [int(end.between(0.1, 0.9).sum()) for end in ends]}
    counts |= {"closed": [int((end < 0.1).sum()) for end in ends]}
    return v.judged(gates_claim, pd.DataFrame(counts), lambda: _draw_histories(tables, counts["heads"]))


@v.claim(
    "In training every gate converges to almost 0 or almost 1.",
    """Holds if at most a tenth of all gates has P(gate != 0) from 0.1 to 0.9 at the end, with the interval of that
    share, and at each size some gates are below 0.1 (before training none is).""",
)
def gates_claim(table: pd.DataFrame) -> Verdict:
    undecided, total = int(table["undecided"].sum()), int(table["of"].sum())
    part = v.share(undecided, total)
    text = f"{undecided} of {total} gates are undecided, {part}; {table['closed'].sum()} are pruned"
    return Verdict(v.unless_unsure(part.below(0.1), bool((table["closed"] > 0).all())), text)


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
