"""Michel et al. 2019, sections 4 to 6: ablating heads by importance, speed, and the course of training (no torch)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from headroles import plots
from headroles.papers import verdicts as v
from headroles.papers.bench import Bench, RequiredTable, only_translation
from headroles.papers.verdicts import LITTLE, VALUES, Claim, Interval, Missing, Reproduced, Verdict
from headroles.tables import frame
from headroles.tables.frame import KINDS

if TYPE_CHECKING:
    from headroles.papers.workflow import Workflow

THIRD = 0.28, 0.38  # "about a third" (our choice)
ENOUGH = 0.85  # of the score (section 6)
MOST = 0.5  # of the score, or nats of a loss: what a kind that "keeps most of the score" may lose (our choice)


def fig3(bench: Bench) -> Reproduced:
    """Show the score when heads are ablated by importance and by their single effects."""
    return _curves(bench, "fig3", fig3_claim)


@v.claim(
    "Some 20 % (translation) or 40 % (BERT) of the heads can be ablated by importance without a noticeable loss.",
    """Holds if ablating that share, to five points, costs less than 3 % of the score, with the interval of the cost,
    and ablating all heads more than that.""",
)
def fig3_claim(table: pd.DataFrame) -> Verdict:
    return _harmless(table)


def fig6(bench: Bench) -> Reproduced:
    """Show the score on other tasks when heads are ablated by importance."""
    return _curves(bench, "fig6", fig6_claim)


@v.claim(
    "On other tasks too: 60 % can be ablated on SST-2, 50 % on CoLA and MRPC, 20 % in a small translation model.",
    "The rule of Fig. 3, at the share of the task with the same metric.",
)
def fig6_claim(table: pd.DataFrame) -> Verdict:
    return _harmless(table)


def _curves(bench: Bench, figure: str, judge: Claim) -> Reproduced:
    """Return curves by importance, by single effects and by chance, with the paper's harmless share of heads."""
    table = bench.table("curves")
    metric = v.metric_of(table)
    wanted = table["order"].str.fullmatch(r"importance|ablation\[.*\]|random \d+")
    rows = table[wanted].reset_index(drop=True)
    intact = rows.loc[rows["masked"] == 0, VALUES].iloc[0]
    rows = rows.assign(paired="change" in rows, **v.costs(rows, intact, metric), paper=math.nan)
    known = v.paper_numbers("michel2019-fig3")
    printed = known[(known["figure"] == figure) & (known["metric"] == metric)]
    if len(printed):
        place = v.nearest(rows[rows["order"] == "importance"], printed["paper"].iloc[0]).index
        rows.loc[place, ["paper", "task"]] = printed[["paper", "task"]].to_numpy()[: len(place)]
    rows.attrs["source"] = known.attrs["source"]
    return v.judged(judge, rows, lambda: plots.curves(table[wanted], label=v.metric_label(table)))


def _harmless(table: pd.DataFrame) -> Verdict:
    """Judge whether the paper's share of heads can be ablated at little cost."""
    curve = table[table["order"] == "importance"]
    rows = curve[curve["paper"].notna()]
    if rows.empty:
        return Verdict(None, "the paper has no task of this metric, or the curve no step within 5 points of its share")
    row = rows.iloc[0]
    cost, most = (Interval.from_row(step, "cost") for step in (row, curve.iloc[curve["share"].argmax()]))
    if math.isnan(cost.value):
        return Verdict(None, "the score of the whole model is 0, of which nothing can be lost")
    text = f"with {100 * row['share']:.0f} % ablated {cost.scaled(100):.1f} % of the score is lost{_unpaired(table)}"
    return Verdict(v.unless_unsure(cost.below(LITTLE), most.above(LITTLE)), text)


def _unpaired(table: pd.DataFrame) -> str:
    return "" if table["paired"].all() else " (an interval as if the two scores varied independently: too wide)"


def fig4(bench: Bench) -> Reproduced:
    """Show the score when heads of one kind are ablated by importance."""
    table = bench.table("kinds")
    curves = table[table["order"].str.endswith(" by importance")].reset_index(drop=True)
    intact = curves.loc[curves["masked"] == 0, VALUES].iloc[0]
    metric = v.metric_of(table)
    rows = curves.assign(kind=curves["order"].str.partition(" ")[0], metric=metric, **v.costs(curves, intact, metric))
    rows = rows[["kind", "masked", "share", "metric", *VALUES, *v.with_bounds("cost")]]
    return v.judged(fig4_claim, rows, lambda: plots.curves(curves, label=v.metric_label(table)))


@v.claim(
    "Cross-attention breaks first: beyond 60 % it collapses, while the other kinds keep most of the score.",
    """Holds if 80 % of its heads, to five points, cost more than half of the score, with the interval, and more than
    80 % of the heads of either other kind, which cost less than half of it (of a loss, half a nat); fails if they
    cost less than those of another kind, and those of that kind more than 3 % of the score (0.03 nats).""",
)
def fig4_claim(table: pd.DataFrame) -> Verdict:
    rows = pd.concat([v.nearest(part, 0.8) for _, part in table.groupby("kind", sort=False, observed=True)])
    lost = dict(zip(map(str, rows["kind"]), v.intervals(rows, "cost"), strict=True))
    if {*lost} != {*KINDS}:
        return Verdict(None, f"of three kinds, {len(lost)} have a step within 5 points of 80 %")
    cross, metric = lost.pop("cross"), rows.iloc[0].get("metric", "")
    firsts = [cross.minus(cost).above(0) for cost in lost.values()]
    if not v.any_holds(
        first is False and cost.above(LITTLE) for first, cost in zip(firsts, lost.values(), strict=True)
    ):
        firsts = [first or None for first in firsts]
    collapses = v.all_hold([cross.above(MOST), *(cost.below(MOST) for cost in lost.values())])
    text = ", ".join(f"{kind} {v.cost_in_words(cost, metric)}" for kind, cost in (lost | {"cross": cross}).items())
    return Verdict(v.unless_unsure(v.all_hold(firsts), collapses), f"lost with 80 % ablated: {text}")


@RequiredTable(
    "dynamics",
    "curves at each epoch of a training",
    "hr.dynamics(training, corpus, held_out, study=...)",
    "dynamics-curves",
    columns=("kept",),
)
def _dynamics(run: Workflow) -> list[Path]:
    """Train the model from scratch and measure its checkpoints."""
    from headroles.models import loading
    from headroles.training.training_dynamics import dynamics

    only_translation(run)
    study = run.study("dynamics")
    training = run.train(loading.untrained(run.model), "training", "all", options=run.scratch)
    corpora = run.material.trees or run.material.dev, run.material.test
    dynamics(training, *corpora, metric=run.metric, n_resamples=run.n_resamples, study=study)
    return [study.path("dynamics-curves")]


def fig5(bench: Bench) -> Reproduced:
    """Show the share of the score that remains after ablation at each epoch."""
    table = bench.table("dynamics")
    parts = []
    for _, part in table.groupby("step"):
        rows = v.nearest(part, 0.4)
        intact = part.loc[part["masked"] == 0, VALUES].iloc[0]
        cost = v.costs(rows, intact, v.metric_of(table))
        kept = {"kept": 1 - cost["cost"], "kept.low": 1 - cost["cost.high"], "kept.high": 1 - cost["cost.low"]}
        parts.append(rows[["epoch", "step", "share"]].assign(score=intact["value"], **kept, paired="change" in rows))
    if not sum(map(len, parts)):
        raise Missing("Fig. 5 shows 40 % of the heads ablated: got no step within 5 points of it")
    rows = v.with_paper(pd.concat(parts, ignore_index=True), "michel2019-fig5", "epoch")
    rows = rows.assign(metric=v.metric_of(table))
    return v.judged(fig5_claim, rows, lambda: plots.dynamics(table, label=v.metric_label(table)))


@v.claim(
    "Early in training a model needs its heads; later 40 % can be ablated within 85 to 90 % of the score.",
    """Holds if ablating 40 % keeps a smaller share of the score at the first epoch than at the last, and there at
    least 0.85, each with its interval, and this share rises over all epochs (Kendall's tau, p < 0.05); fails if the
    first keeps more, or the last less than 0.85. Undecided of a loss, of which no share is kept.""",
)
def fig5_claim(table: pd.DataFrame) -> Verdict:
    ends = table.iloc[[0, -1]]
    if ends.iloc[0].get("metric") == "loss":
        return Verdict(None, f"the rule asks for 0.85 of a score; got a loss, {ends['score'].iloc[-1]:.3f} at the end")
    first, last = v.intervals(ends, "kept")
    parts = v.all_hold([first.minus(last).below(0), last.above(ENOUGH)])
    holds = v.unless_unsure(parts, v.rises(table, "kept", "epoch"))
    epochs = zip((first, last), ends["epoch"], strict=True)
    text = " and ".join(f"{kept} at epoch {epoch:.3g}" for kept, epoch in epochs)
    return Verdict(holds, f"ablating 40 % keeps {text}{_unpaired(table)}")


@RequiredTable("efficiency", "speeds with heads removed", "hr.efficiency(model, study=...)", "efficiency")
def _efficiency(run: Workflow) -> list[Path]:
    from headroles.models import identity
    from headroles.pruning.costs import efficiency

    study, key = run.study("efficiency"), frame.sign(weights=identity.weights_digest(run.model))
    study.keep("efficiency", key, lambda: efficiency(run.model, run.random_ranking(), **run.timed))
    return [study.path("efficiency")]


def table4(bench: Bench) -> Reproduced:
    """Show the speed with half of the heads removed, in batches of several sizes."""
    table = bench.table("efficiency")
    half = v.nearest(table, 0.5)["share"]
    rows = table[(table["way"] == "cut") & table["share"].isin(half)].reset_index(drop=True)
    if rows.empty:
        raise Missing("Table 4 shows half of the heads removed: got no share within 5 points of it")
    columns = ["batch", "speed", "speed.sd", *v.with_bounds("speedup"), "allowed"]
    return v.judged(table4_claim, v.with_paper(rows[columns], "michel2019-table4", "batch"))


@v.claim(
    "Removing half of the heads makes inference faster, by 17.5 % in large batches.",
    "Holds if the speed-up in the largest batch is above 1 with its interval.",
)
def table4_claim(table: pd.DataFrame) -> Verdict:
    row = table.iloc[table["batch"].argmax()]
    speedup = Interval.from_row(row, "speedup")
    return Verdict(speedup.above(1), f"{speedup} in batches of {row['batch']:.0f}")


def heads_share(bench: Bench) -> Reproduced:
    """Show the share of parameters of one head, and of all heads (section 4.3, text)."""
    table = bench.table("efficiency").query("way == 'cut'").drop_duplicates("masked")
    intact, cut = table.iloc[0], table.iloc[table["masked"].argmax()]
    head = (intact["parameters"] - cut["parameters"]) / cut["masked"]
    counts = bench.table("single").groupby(level=["kind", "layer"]).size()
    rows = [("one head of its layer", 1 / counts.max())]
    rows += [("one head of all parameters", head / intact["parameters"])]
    rows += [("attention of all parameters", counts.sum() * head / intact["parameters"])]
    shares = v.with_paper(pd.DataFrame(rows, columns=["what", "ours"]), "michel2019-heads_share", "what")
    return v.judged(heads_share_claim, shares)


@v.claim("Attention has about a third of a model's parameters.", "Holds if its share is from 28 to 38 %.")
def heads_share_claim(table: pd.DataFrame) -> Verdict:
    share = table.set_index("what")["ours"]["attention of all parameters"]
    return Verdict(bool(THIRD[0] <= share <= THIRD[1]), f"{100 * share:.0f} % of the parameters are attention's")
