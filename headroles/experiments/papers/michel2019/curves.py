"""Michel et al. 2019, sections 4 to 6: ablating heads by importance, speed, and the course of training (no torch)."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from headroles import plots
from headroles.experiments.papers.artefact import Claim, Reproduced, Verdict, beside, claim, judged, printed
from headroles.experiments.papers.intervals import Interval, bounded, every, provided
from headroles.experiments.papers.stakes import LITTLE, VALUES, costs, rises
from headroles.experiments.papers.tables import Bench, metric_label, metric_of

THIRD = 0.28, 0.38  # "about a third" (our choice)
ENOUGH = 0.85  # of the score (section 6)


def fig3(bench: Bench) -> Reproduced:
    """Show the score when heads are ablated by importance and by their single effects."""
    return _curves(bench, "fig3", fig3_claim)


@claim(
    "Some 20 % (translation) or 40 % (BERT) of the heads can be ablated by importance without a noticeable loss.",
    """Holds if ablating that share costs less than 3 % of the score, with the interval of the cost, and ablating
    all heads more than that.""",
)
def fig3_claim(table: Any) -> Verdict:
    """Judge the claim of Fig. 3."""
    return _harmless(table)


def fig6(bench: Bench) -> Reproduced:
    """Show the score on other tasks when heads are ablated by importance."""
    return _curves(bench, "fig6", fig6_claim)


@claim(
    "On other tasks too: 60 % can be ablated on SST-2, 50 % on CoLA and MRPC, 20 % in a small translation model.",
    "The rule of Fig. 3, at the share of the task with the same metric.",
)
def fig6_claim(table: Any) -> Verdict:
    """Judge the claim of Fig. 6."""
    return _harmless(table)


def _curves(bench: Bench, figure: str, judge: Claim) -> Reproduced:
    """Return curves by importance, by single effects and by chance, with the paper's harmless share of heads."""
    table: Any = bench.table("curves")
    metric = metric_of(table)
    wanted = table["order"].str.fullmatch(r"importance|ablation\[.*\]|random \d+")
    rows = table[wanted].reset_index(drop=True)
    whole = rows.loc[rows["closed"] == 0, VALUES].iloc[0]
    rows = rows.assign(paired="change" in rows, **costs(rows, whole, metric), paper=math.nan)
    known = printed("michel2019-fig3")
    theirs = known[(known["figure"] == figure) & (known["metric"] == metric)]
    if len(theirs):
        place = (rows["share"] - theirs["paper"].iloc[0]).abs().where(rows["order"] == "importance").idxmin()
        rows.loc[place, ["paper", "task"]] = theirs.iloc[0][["paper", "task"]]
    rows.attrs["source"] = known.attrs["source"]
    return judged(judge, rows, lambda: plots.curves(table[wanted], label=metric_label(table)))


def _harmless(table: Any) -> Verdict:
    """Judge whether the paper's share of heads can be ablated at little cost."""
    curve = table[table["order"] == "importance"]
    rows = curve[curve["paper"].notna()]
    if rows.empty:
        return Verdict(None, "the paper has no task of this metric")
    row = rows.iloc[0]
    cost, most = Interval.of(row, "cost"), Interval.of(curve.loc[curve["share"].idxmax()], "cost")
    text = f"with {100 * row['share']:.0f} % ablated {cost.scaled(100):.1f} % of the score is lost{_unpaired(table)}"
    return Verdict(provided(cost.below(LITTLE), most.above(LITTLE)), text)


def _unpaired(table: Any) -> str:
    return "" if table["paired"].all() else " (an interval as if the two scores varied independently: too wide)"


def fig4(bench: Bench) -> Reproduced:
    """Show the score when heads of one kind are ablated by importance."""
    table: Any = bench.table("kinds")
    curves = table[table["order"].str.endswith(" by importance")].reset_index(drop=True)
    whole = curves.loc[curves["closed"] == 0, VALUES].iloc[0]
    rows = curves.assign(kind=curves["order"].str.partition(" ")[0], **costs(curves, whole, metric_of(table)))
    rows = rows[["kind", "closed", "share", *VALUES, *bounded("cost")]]
    return judged(fig4_claim, rows, lambda: plots.curves(curves, label=metric_label(table)))


@claim(
    "Cross-attention breaks first: beyond 60 % it collapses, while the other kinds keep most of the score.",
    """Holds if 80 % of its heads cost more, with the interval, than 80 % of the heads of either other kind; fails
    if they cost less than those of one of them.""",
)
def fig4_claim(table: Any) -> Verdict:
    """Judge the claim of Fig. 4."""
    rows = table.loc[(table["share"] - 0.8).abs().groupby(table["kind"]).idxmin()].set_index("kind")
    lost = {kind: Interval.of(row, "cost") for kind, row in rows.iterrows()}
    if "cross" not in lost or len(lost) < 2:
        return Verdict(None, f"cross-attention is compared with other kinds; the curves show {len(lost)} kind of heads")
    holds = every(lost["cross"].minus(cost).above(0) for kind, cost in lost.items() if kind != "cross")
    text = ", ".join(f"{kind} {cost.scaled(100):.0f} %" for kind, cost in lost.items())
    return Verdict(holds, f"lost with 80 % ablated: {text}")


def fig5(bench: Bench) -> Reproduced:
    """Show the share of the score that remains after ablation at each epoch."""
    table: Any = bench.table("dynamics")
    parts = []
    for _, part in table.groupby("step"):
        rows = part.loc[[(part["share"] - 0.4).abs().idxmin()]]
        whole = part.loc[part["closed"] == 0, VALUES].iloc[0]
        cost = costs(rows, whole, metric_of(table))
        kept = {"kept": 1 - cost["cost"], "kept.low": 1 - cost["cost.high"], "kept.high": 1 - cost["cost.low"]}
        parts.append(rows[["epoch", "step", "share"]].assign(score=whole["value"], **kept, paired="change" in rows))
    rows = beside(pd.concat(parts, ignore_index=True), "michel2019-fig5", "epoch")
    return judged(fig5_claim, rows, lambda: plots.dynamics(table, label=metric_label(table)))


@claim(
    "Early in training a model needs its heads; later 40 % can be ablated within 85 to 90 % of the score.",
    """Holds if ablating 40 % keeps a smaller share of the score at the first epoch than at the last, and there at
    least 0.85, each with its interval, and this share rises over all epochs (Kendall's tau, p < 0.05); fails if the
    first keeps more, or the last less than 0.85.""",
)
def fig5_claim(table: Any) -> Verdict:
    """Judge the claim of Fig. 5."""
    ends = table.iloc[[0, -1]]
    first, last = (Interval.of(row, "kept") for _, row in ends.iterrows())
    holds = provided(every([first.minus(last).below(0), last.above(ENOUGH)]), rises(table, "kept", "epoch"))
    text = " and ".join(f"{Interval.of(row, 'kept')} at epoch {row['epoch']:.0f}" for _, row in ends.iterrows())
    return Verdict(holds, f"ablating 40 % keeps {text}{_unpaired(table)}")


def table4(bench: Bench) -> Reproduced:
    """Show the speed with half of the heads removed, in batches of several sizes."""
    table = bench.table("efficiency")
    half = table.loc[(table["share"] - 0.5).abs().idxmin(), "share"]
    rows = table[(table["way"] == "cut") & (table["share"] == half)].reset_index(drop=True)
    columns = ["batch", "speed", "speed.sd", *bounded("speedup"), "allowed"]
    return judged(table4_claim, beside(rows[columns], "michel2019-table4", "batch"))


@claim(
    "Removing half of the heads makes inference faster, by 17.5 % in large batches.",
    "Holds if the speed-up in the largest batch is above 1 with its interval.",
)
def table4_claim(table: Any) -> Verdict:
    """Judge the claim of Table 4."""
    row = table.loc[table["batch"].idxmax()]
    speedup = Interval.of(row, "speedup")
    return Verdict(speedup.above(1), f"{speedup} in batches of {row['batch']:.0f}")


def heads_share(bench: Bench) -> Reproduced:
    """Show the share of parameters of one head, and of all heads (section 4.3, text)."""
    table = bench.table("efficiency").query("way == 'cut'").drop_duplicates("closed")
    whole, cut = table.iloc[0], table.loc[table["closed"].idxmax()]
    head = (whole["parameters"] - cut["parameters"]) / cut["closed"]
    counts = bench.table("single").groupby(level=["kind", "layer"]).size()
    rows = [("one head of its layer", 1 / counts.max())]
    rows += [("one head of all parameters", head / whole["parameters"])]
    rows += [("attention of all parameters", counts.sum() * head / whole["parameters"])]
    shares = beside(pd.DataFrame(rows, columns=["what", "ours"]), "michel2019-heads_share", "what")
    return judged(heads_share_claim, shares)


@claim(
    "Attention has about a third of a model's parameters.",
    "Holds if its share is from 28 to 38 %.",
)
def heads_share_claim(table: Any) -> Verdict:
    """Judge the claim of section 4.3."""
    share = table.set_index("what").loc["attention of all parameters", "ours"]
    return Verdict(bool(THIRD[0] <= share <= THIRD[1]), f"{100 * share:.0f} % of the parameters are attention's")
