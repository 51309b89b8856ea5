"""Voita et al. 2019, section 6: pruning by Hard Concrete gates (no torch)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from headroles import plots
from headroles.experiments.papers import drawings
from headroles.experiments.papers.artefact import Reproduced, Verdict, aligned, claim, judged, of_wmt, printed
from headroles.experiments.papers.intervals import Interval, bounded, every, on_balance, provided, share
from headroles.experiments.papers.stakes import CLEAR, LITTLE, TWICE, VALUES, at_stake, costs, stake, trained
from headroles.experiments.papers.tables import Bench, gains, metric_label, metric_of, of_kind
from headroles.plots.sparsity import FUNCTIONS, LOW, THIRDS
from headroles.tables.frame import KINDS

FEW = 10 / 48  # of the encoder's heads that remain when 38 of 48 are removed


def fig6(bench: Bench) -> Reproduced:
    """Show the Hard Concrete distribution for three values of log alpha; needs no table."""
    assert bench is not None
    theirs = printed("voita2019-fig6")
    alpha = theirs["log alpha"].to_numpy(float)
    edge = 0.5 * np.log(-LOW / (1 - LOW))  # temperature times the logit at which a gate becomes larger than 0
    ours = {"ours P(0)": 1 / (1 + np.exp(alpha - edge)), "ours P(1)": 1 / (1 + np.exp(-alpha - edge))}
    return judged(fig6_claim, theirs.assign(**ours), lambda: plots.densities([*alpha]))


@claim(
    "Hard Concrete gates are exactly 0 or exactly 1 with probabilities above zero.",
    "Holds if P(0) and P(1) are the paper's, to its two digits.",
)
def fig6_claim(table: Any) -> Verdict:
    """Judge the claim of Fig. 6."""
    worst = max((table[f"ours {part}"] - table[f"paper {part}"]).abs().max() for part in ("P(0)", "P(1)"))
    return Verdict(bool(worst <= 0.0055), f"the largest difference from the paper's numbers is {worst:.3f}")


def fig7(bench: Bench) -> Reproduced:
    """Show the score of the model with fewer encoder heads."""
    table = bench.table("sizes-encoder")
    sizes = table.assign(heads=table["enc-self"], of=table["enc-self"].iloc[0])
    ours = sizes[["heads", "of", *VALUES, *bounded("change")]]
    ours = ours.assign(**costs(sizes, sizes.iloc[0], metric_of(table)))
    rows = aligned(ours, printed("voita2019-fig7")).assign(**stake(bench, "enc-self"))
    return judged(fig7_claim, rows, lambda: plots.survival(sizes, label=metric_label(table)))


@claim(
    "Most encoder heads can be removed at little cost: 38 of 48 for 0.15 BLEU, 44 of 48 for 0.25.",
    """Holds if the largest size with at most 21 % of the heads costs less than 3 % of the score of a control that
    was trained as long, with its interval, and removing all the encoder's heads without training costs more than
    that.""",
)
def fig7_claim(table: Any) -> Verdict:
    """Judge the claim of Fig. 7."""
    sizes = table[table["cost"].notna() & (table["heads"] / table["of"] <= FEW + 0.01)]
    if sizes.empty:
        return Verdict(None, "no size has so few heads")
    row = sizes.loc[sizes["heads"].idxmax()]
    cost = Interval.of(row, "cost")
    text = f"with {row['heads']:.0f} of {row['of']:.0f} heads left {cost.scaled(100):.1f} % of the control's score is "
    none = Interval(100 * table["all"].iloc[0])
    return Verdict(
        provided(cost.below(LITTLE), at_stake(table)), f"{text}lost, {none:.0f} % without any and without training"
    )


def fig8(bench: Bench) -> Reproduced:
    """Show how many of the remaining encoder heads have each function."""
    table = bench.table("functions-encoder")
    encoder = table[table["kind"] == "enc-self"]
    wide = encoder.pivot_table(index="heads", columns="function", values="count", fill_value=0, observed=True)
    wide = wide.reindex(columns=["none", *FUNCTIONS], fill_value=0).rename_axis(columns=None)
    ours = wide.assign(of=wide.sum(axis=1).max(), heads=wide.sum(axis=1)).reset_index(drop=True)
    rows = aligned(ours, printed("voita2019-fig8"))
    return judged(fig8_claim, rows, lambda: plots.functions(table, kind="enc-self"))


@claim(
    "Heads with functions are the last to be pruned.",
    """Holds if, where at most a quarter of the heads remains, heads with a function are a larger share than in the
    whole model (Fisher's exact test, p < 0.05); fails if they are a smaller one.""",
)
def fig8_claim(table: Any) -> Verdict:
    """Judge the claim of Fig. 8."""
    rows = table[table["none"].notna()].sort_values("heads")
    whole, few = rows.iloc[-1], rows[rows["heads"] <= rows["heads"].max() / 4]
    if few.empty:
        return Verdict(None, "no size has a quarter of the heads or fewer")
    counts = [[row["heads"] - row["none"], row["none"]] for row in (few.iloc[-1], whole)]
    now, first = (f"{held:.0f} of {held + none:.0f}" for held, none in counts)
    text = f"{now} remaining heads have a function, {first} before pruning"
    if not counts[0][0] and not counts[1][0]:
        return Verdict(None, f"{text}: no function can survive")
    more, fewer = (stats.fisher_exact(counts, side).pvalue < CLEAR for side in ("greater", "less"))
    return Verdict(True if more else False if fewer else None, text)


def fig9(bench: Bench) -> Reproduced:
    """Show how many heads of each kind remain at each size."""
    sizes = bench.table("sizes")
    theirs = of_wmt("voita2019-fig9").rename(columns={kind: f"paper.{kind}" for kind in KINDS})
    return judged(fig9_claim, aligned(sizes[["heads", "of", *KINDS]], theirs), lambda: plots.by_kind(sizes))


@claim(
    "The encoder's heads are pruned first, those of cross-attention last.",
    """Holds if at every size the encoder has the fewest remaining heads, at the smallest size cross-attention has
    the most, and where at most half of all heads remains the encoder has fewer than a random draw leaves
    (hypergeometric, p < 0.05).""",
)
def fig9_claim(table: Any) -> Verdict:
    """Judge the claim of Fig. 9."""
    rows = table[(table["heads"] < table["of"]) & table["enc-self"].notna()].sort_values("heads")
    kinds = rows[["enc-self", "dec-self", "cross"]]
    first = (kinds["enc-self"] <= kinds.min(axis=1)).all()
    last = kinds["cross"].iloc[0] > kinds[["enc-self", "dec-self"]].iloc[0].max()
    counts = ", ".join(f"{kind} {int(count)}" for kind, count in kinds.iloc[0].items())
    text = f"with {rows['heads'].iloc[0]:.0f} of {rows['of'].iloc[0]:.0f} heads left: {counts}"
    half = rows[rows["heads"] <= rows["of"] / 2]
    sure = not half.empty and _fewer_than_random(half.iloc[-1], table)
    return Verdict(provided(bool(first and last), sure), f"{text} (one training for each size)")


def _fewer_than_random(row: Any, table: Any) -> bool:
    """Return whether fewer encoder heads remain than a random draw leaves."""
    whole = table.loc[table["heads"] == row["of"]].dropna(subset="enc-self").iloc[0]
    return bool(stats.hypergeom.cdf(row["enc-self"], row["of"], whole["enc-self"], row["heads"]) < CLEAR)


def fig10(bench: Bench) -> Reproduced:
    """Show how many decoder heads remain in the lower, middle and upper layers at each size."""
    survival = bench.table("survival")
    thirds = plots.thirds(of_kind(survival, "dec-self")).join(plots.thirds(of_kind(survival, "cross")))
    ours = thirds.assign(heads=survival[thirds.index].sum().to_numpy(int), of=len(survival))
    theirs = printed("voita2019-fig10").add_prefix("paper.").rename(columns={"paper.of": "of"})
    theirs["heads"] = of_wmt("voita2019-fig9")["heads"]
    return judged(fig10_claim, aligned(ours, theirs), lambda: plots.by_third(survival)[0])


@claim(
    "The decoder's self-attention heads survive in its lower layers, those of cross-attention in the upper ones.",
    """Holds if, at each size with at most half of all heads, the lower third has more of the decoder's self-
    attention heads than the upper third, and fewer of cross-attention, and at the largest of these sizes both
    together are beyond chance (Fisher's exact test, p < 0.05); fails if for one of the two kinds the opposite is
    true at each size.""",
)
def fig10_claim(table: Any) -> Verdict:
    """Judge the claim of Fig. 10."""
    rows = table[(table["heads"] <= table["of"] / 2) & table["cross lower"].notna()]
    if rows.empty or not rows[["dec-self lower.of", "dec-self upper.of"]].all(axis=None):
        return Verdict(None, "no size has half of the heads or fewer, or there are too few layers for thirds")
    parts = []
    for kind, sign in (("dec-self", 1), ("cross", -1)):
        more = sign * (rows[f"{kind} lower"] - rows[f"{kind} upper"])
        parts.append(True if (more > 0).all() else False if (more < 0).all() else None)
    row = rows.loc[rows["heads"].idxmax()]
    counts = (
        f"{kind} " + ", ".join(f"{row[f'{kind} {third}']:.0f}" for third in THIRDS) for kind in ("dec-self", "cross")
    )
    text = f"in the lower, middle and upper third with {row['heads']:.0f} heads left: {'; '.join(counts)}"
    return Verdict(provided(every(parts), _placed(row)), f"{text} ({len(rows)} sizes, one training each)")


def _placed(row: Any) -> bool:
    """Return whether self-attention survives below and cross-attention above, together beyond chance."""
    ends = ["dec-self lower", "cross upper"], ["dec-self upper", "cross lower"]
    left = [[sum(row[name] for name in names), sum(row[f"{name}.of"] for name in names)] for names in ends]
    return bool(stats.fisher_exact([[count, of - count] for count, of in left], "greater").pvalue < CLEAR)


def table2(bench: Bench) -> Reproduced:
    """Show models with the surviving heads: fine-tuned with gates, and trained from scratch."""
    table = bench.table("scratch")
    pair = ("finetuned", "scratch")
    ours = table.rename(columns=dict(zip("edc", KINDS, strict=True)))
    ours = ours.assign(of=int(bench.table("sizes")["of"].iloc[0]), heads=ours[[*KINDS]].sum(axis=1))
    gaps = [Interval.of(row, pair[0]).minus(Interval.of(row, pair[1])) for _, row in ours.iterrows()]
    ours[bounded("gap")] = gains(np.array(gaps), metric_of(table))
    ours = ours.assign(**{f"steps.{name}": trained(bench, name, "steps") for name in pair})
    theirs = of_wmt("voita2019-table2").rename(columns={name: f"paper.{name}" for name in pair})
    return judged(table2_claim, aligned(ours, theirs, [*KINDS, "heads", "of"]))


@claim(
    "A model of the surviving heads that is trained from scratch is worse than the pruned one.",
    """Holds if it is worse, with its interval, at some size, and better at none. Not comparable where one of the
    two had more than twice the steps of the other, or the steps are unknown.""",
)
def table2_claim(table: Any) -> Verdict:
    """Judge the claim of Table 2."""
    rows = table[table["finetuned"].notna() & (table["heads"] < table["of"])]
    gaps = {row["heads"]: Interval.of(row, "gap") for _, row in rows.iterrows()}
    pruned, scratch = rows[["steps.finetuned", "steps.scratch"]].iloc[0]
    alike = bool(pruned <= TWICE * scratch and scratch <= TWICE * pruned)  # no, if unknown
    text = ", ".join(f"{heads:.0f} heads {gap:.1f}" for heads, gap in gaps.items())
    text = f"pruned is better than from scratch by: {text}; trained for {Interval(pruned):.0f} steps against "
    holds = on_balance(gap.above(0) for gap in gaps.values())
    return Verdict(holds if alike else None, f"{text}{Interval(scratch):.0f}", alike)


def gates(bench: Bench) -> Reproduced:
    """Show P(gate != 0) of the encoder's heads over training, a panel for each size (the blog's animation)."""
    tables = sorted(bench.tables("gates"), key=lambda table: -_size(table))
    heads = [of_kind(table.set_index(["kind", "layer", "head"])) for table in tables]
    ends = [table.loc[table["step"] == table["step"].max(), "open"] for table in heads]
    counts = {"heads": [*map(_size, tables)], "of": [*map(len, ends)]}
    counts |= {"undecided": [int(end.between(0.1, 0.9).sum()) for end in ends]}
    counts |= {"closed": [int((end < 0.1).sum()) for end in ends]}
    return judged(gates_claim, pd.DataFrame(counts), lambda: drawings.histories(tables, counts["heads"]))


@claim(
    "In training every gate converges to almost 0 or almost 1.",
    """Holds if at most a tenth of all gates has P(gate != 0) from 0.1 to 0.9 at the end, with the interval of that
    share, and at each size some gates are below 0.1 (before training none is).""",
)
def gates_claim(table: Any) -> Verdict:
    """Judge the claim of the animation of gates."""
    undecided, total = int(table["undecided"].sum()), int(table["of"].sum())
    part = share(undecided, total)
    text = f"{undecided} of {total} gates are undecided, {part}; {table['closed'].sum()} are pruned"
    return Verdict(provided(part.below(0.1), bool((table["closed"] > 0).all())), text)


def _size(history: pd.DataFrame) -> int:
    """Return the final number of heads of a history of gates, from its file name."""
    return int(str(history.attrs["file"]).removesuffix(".parquet").rpartition("-")[2])
