"""Budhraja et al. 2020, "On the weak link": its claims; its numbers are not known (no torch)."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd

from headroles import plots
from headroles.analysis.intervals import over_seeds
from headroles.papers import verdicts as v
from headroles.papers.bench import Bench, length_of_training
from headroles.papers.verdicts import LITTLE, SURE, Holds, Interval, Reproduced, Verdict

ALL = "all heads"  # the row without pruning
GAIN = v.with_bounds("gain")
UNEVEN = 0.1  # spread of the heads' mean movements over their mean from which they are not "uniform" (our choice)
LEAST = 3  # epochs of all data of the task: taken as the paper's shortest fine-tuning (our choice)
PRASANNA = "prasanna2020-claim1"
MOVED = "moved[all]"


def claim1(bench: Bench) -> Reproduced:
    """Show random pruning before and after training, next to numbers of Prasanna et al. 2020, not the paper's."""
    table = bench.table("compare-pruning")
    intact, metric = _intact(table), v.metric_of(table)
    rows = table[table["strategy"] == "random"].assign(of="here", metric=metric)
    rows["whole"] = rows["tuned"].map(intact["value"])
    before = v.intervals(intact.reindex(rows["tuned"]), "value")
    costs = [score.minus(pruned) for score, pruned in zip(before, v.intervals(rows, "value"), strict=True)]
    units = [[v.scale(metric, value) or math.nan] for value in rows["whole"]]
    rows[v.with_bounds("cost")] = v.gains(np.array(costs), metric) / np.array(units)
    rows["share"] = rows["heads"] / table.loc[table["strategy"] == ALL, "heads"].iloc[0]
    both = pd.concat([_with_training(bench, table, rows), _of_prasanna()], ignore_index=True)
    columns = ["of", "strategy", "heads", "share", "tuned", "metric", *v.with_bounds("value"), "whole"]
    both = both[[*columns, *v.with_bounds("cost"), "steps", "epochs"]]
    both.attrs["source"] = v.paper_numbers(PRASANNA).attrs["source"]
    return v.judged(claim1_claim, both, lambda: plots.compare_pruning(table, label=v.metric_label(table))[0])


def _of_prasanna() -> pd.DataFrame:
    """Return the numbers of Prasanna et al. 2020 as rows of claim 1, per cent converted to shares."""
    printed = v.paper_numbers(PRASANNA)
    value, intact = printed["random"] / 100, printed["whole"] / 100
    metric = np.where(printed["task"] == "CoLA", "matthews", "accuracy")
    rows = pd.DataFrame({"of": "Prasanna et al. 2020, " + printed["task"], "strategy": "random", "tuned": True})
    return rows.assign(metric=metric, value=value, whole=intact, cost=1 - value / intact)


@v.claim(
    "A large fraction of random heads can be pruned at little cost if the model is fine-tuned afterwards.",
    """Holds if, with half of the heads or fewer left, random pruning costs less than 3 % of the score of the whole
    model (of a loss, 0.03 nats) after the same training, with its interval, at some number of heads, and more without
    training; fails if it costs more at each. Not comparable where the training is shorter than three epochs of all
    data of the task, or its length is unknown.""",
)
def claim1_claim(table: pd.DataFrame) -> Verdict:
    here = table[(table["of"] == "here") & (table["share"] <= 0.5 + 1e-9)]
    tuned, untuned = here[here["tuned"]], here[~here["tuned"]]
    needed = v.any_holds(cost.above(LITTLE) for cost in v.intervals(untuned, "cost"))
    costs, metric = v.intervals(tuned, "cost"), here.iloc[0].get("metric", "") if len(here) else ""
    counted = zip(costs, tuned["heads"], strict=True)
    text = ", ".join(f"{v.cost_in_words(cost, metric)} with {heads:.0f}" for cost, heads in counted)
    text = f"random pruning, after training, loses of the score: {text} heads left"
    return _after_training(v.unless_unsure(v.any_holds(cost.below(LITTLE) for cost in costs), needed), text, table)


def claim2(bench: Bench) -> Reproduced:
    """Show the gain of each strategy over random pruning, after training."""
    table = bench.table("compare-pruning")
    reverse = table["strategy"].str.startswith("-")  # no strategy for choosing heads to keep
    rows = table[~reverse & ~table["strategy"].isin(["random", ALL])]
    rows = rows[["strategy", "heads", "value", "tuned", *GAIN]].copy()
    rows[GAIN] = v.gains(rows[GAIN].to_numpy(), v.metric_of(table))
    names = dict(zip(GAIN, v.with_bounds("untuned"), strict=True))
    before = rows[~rows["tuned"]].rename(columns=names)[["strategy", "heads", *names.values()]]
    rows = rows[rows["tuned"]].drop(columns="tuned").merge(before, on=["strategy", "heads"], how="left")
    intact = float(_intact(table)["value"][True])
    rows = rows.assign(whole=intact, unit=v.scale(v.metric_of(table), intact), seeds=_seeds(bench, table))
    return v.judged(claim2_claim, _with_training(bench, table, rows))


@v.claim(
    "After fine-tuning, choosing heads by importance or place has no advantage over choosing them at random.",
    """Holds if every difference from random pruning is below 3 % of the score (of a loss, 0.03 nats) in either
    direction, its interval widened for all comparisons (Bonferroni, by Student's t of the seeds; by the normal if
    their number is unknown), and without training some is not; fails if such an interval of any is above 0. Not
    comparable as claim 1.""",
)
def claim2_claim(table: pd.DataFrame) -> Verdict:
    rows = [row for _, row in table.iterrows()]
    wide = [Interval.from_row(row, "gain").widened(len(table), row.get("seeds", math.nan)) for row in rows]
    bounds = [LITTLE * row.get("unit", row["whole"]) for row in rows]
    small = v.all_hold(gain.within(bound) for gain, bound in zip(wide, bounds, strict=True))
    before = [Interval(math.nan, row["untuned.low"], row["untuned.high"]) for row in rows]
    needed = any(gain.within(bound) is False for gain, bound in zip(before, bounds, strict=True))
    place = int(table["gain"].argmax())
    most, gain = rows[place], wide[place]
    text = f"the largest gain is that of {most['strategy']} with {most['heads']:.0f} heads left, {gain:.3f}"
    holds = False if any(gain.low > 0 for gain in wide) else True if small and needed else None
    return _after_training(holds, f"{text} ({len(table)} comparisons)", table)


def claim3(bench: Bench) -> Reproduced:
    """Show pruning of the ends or the middle, of consecutive or alternating layers, after training."""
    table = bench.table("places")
    pairs = [("middle", "ends", "middle")]
    pairs += [("consecutive", f"{place} alternating", place) for place in ("bottom", "middle", "top")]
    rows = []
    for heads, part in table[table["strategy"] != ALL].groupby("heads", sort=False):
        tuned = part[part["tuned"]]
        values = dict(zip(tuned["strategy"], v.intervals(tuned, "value"), strict=True))
        for question, first, second in pairs:
            if {first, second} <= set(values):
                gain = v.gains(np.array([values[first].minus(values[second])]), v.metric_of(table))[0]
                rows.append((question, f"{first} rather than {second}", heads, *gain))
    gaps = pd.DataFrame(rows, columns=["question", "taken", "heads", "gain", "low", "high"])
    gaps = _with_training(bench, table, gaps.assign(seeds=_seeds(bench, table)))
    return v.judged(claim3_claim, gaps, lambda: plots.compare_pruning(table, label=v.metric_label(table))[0])


@v.claim(
    "In an encoder it is better not to prune heads of the middle layers, nor of consecutive ones.",
    """Holds if after training pruning the middle leaves less than pruning the ends, and pruning consecutive layers
    less than alternating ones: each with its interval at some number of heads, widened for the comparisons of its
    question as for claim 2, and the contrary at none. Not comparable as claim 1.""",
)
def claim3_claim(table: pd.DataFrame) -> Verdict:
    if table.empty:
        return Verdict(None, "no two of the places that the claim compares are in the comparison")
    tests = table.groupby("question")["taken"].transform("size")
    counted = table.assign(seeds=table.get("seeds", math.nan), tests=tests)[["gain", "low", "high", "tests", "seeds"]]
    gaps = [Interval(*row[:3]).widened(*row[3:]) for row in counted.to_numpy()]
    shown = zip(table["taken"], table["heads"], gaps, strict=True)
    text = ", ".join(f"{taken} with {heads:.0f} heads left {gap:.3f}" for taken, heads, gap in shown)
    holds = v.all_hold(
        v.combine_votes(gap.above(0) for question, gap in zip(table["question"], gaps, strict=True) if question == name)
        for name in ("middle", "consecutive")
    )
    return _after_training(holds, text, table)


def _seeds(bench: Bench, table: pd.DataFrame) -> float:
    """Count the seeds of a comparison, by its table of single seeds; NaN without one."""
    by_seed = bench.beside(table, Path(table.attrs["file"]).stem + "-seeds")
    return math.nan if by_seed is None else float(by_seed["seed"].nunique())


def claim4(bench: Bench) -> Reproduced:
    """Show how much the weights of each head changed in fine-tuning, and whether all changed alike."""
    table = bench.table("weight-change")
    rows = bench.table("uniformity").reset_index().assign(**_movements(bench, table))
    rows, label = _with_training(bench, table, rows), "change of the weights, relative"
    return v.judged(claim4_claim, rows, lambda: plots.heatmaps(table[MOVED], label=label)[0])


def _movements(bench: Bench, table: pd.DataFrame) -> dict[str, float]:
    """Return mean movements of the remaining heads, of the same heads in training without pruning, and `more`.

    It is their difference, paired by seed, with its interval by Student's t; NaN without tables
    `weight-change-whole-SEED` beside the table.
    """
    pairs = []
    for path in sorted(Path(table.attrs["file"]).parent.glob("weight-change-whole-*.parquet")):
        pruned, unpruned = (bench.beside(table, name) for name in (path.stem.replace("whole-", ""), path.stem))
        if pruned is not None and unpruned is not None:
            same_heads = unpruned[MOVED].reindex(pruned.index)
            pairs.append((pruned[MOVED].mean(), same_heads.mean(skipna=False)))
    moved, without = np.array(pairs or [(table[MOVED].mean(), math.nan)]).T
    more = moved - without
    low, high = over_seeds(np.column_stack([more, more]))  # movements have no resamples
    means = {"moved": moved.mean(), "moved.whole": without.mean(), "more": more.mean()}
    return means | {"more.low": low, "more.high": high}


@v.claim(
    "In fine-tuning all remaining heads make up for the pruned ones: their weights move alike.",
    """Holds if the heads' mean movements differ by less than a tenth of their mean (coefficient of variation), and
    it is not the same heads that move most each time (Friedman's test over heads, p >= 0.01), and they move more
    than in the same training without pruning (mean of the same heads, paired by seed: the interval by Student's t is
    above 0); fails if it is the same heads and the spread is larger. Not comparable as claim 1.""",
)
def claim4_claim(table: pd.DataFrame) -> Verdict:
    row = table.set_index("of").loc["moved[all] of heads"]
    text = f"spread {row['cv']:.2f} of the mean, the largest {row['largest over mean']:.2f} times it; w {row['w']:.2f}"
    text += f", p {row['p']:.2g}; "
    more = Interval.from_row(row, "more")
    known = f"they move {more:.2g} more than without pruning"
    text += "how much they move without pruning is unknown" if math.isnan(more.value) else known
    alike, uneven = row["p"] >= SURE and row["cv"] <= UNEVEN, row["p"] < SURE and row["cv"] > UNEVEN
    return _after_training(True if alike and more.above(0) else False if uneven else None, text, table)


def _after_training(holds: Holds, text: str, table: pd.DataFrame) -> Verdict:
    """Return a verdict on fine-tuned models, not comparable unless they were fine-tuned long enough."""
    epochs, steps = table[["epochs", "steps"]].iloc[0]
    if math.isnan(epochs):
        return Verdict(None, f"{text}; the length of training is unknown", comparable=False)
    long = bool(epochs >= LEAST)
    text += f"; trained for {steps:.0f} steps, {epochs:.2g} epochs of the task's data"
    return Verdict(holds if long else None, text, long)


def _with_training(bench: Bench, table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Add how long models were fine-tuned after pruning in the study of a table; NaN if unknown."""
    return rows.assign(**length_of_training(bench, table, "retrained"))


def _intact(table: pd.DataFrame) -> pd.DataFrame:
    """Select the rows without pruning, by whether the model was trained."""
    return table[table["strategy"] == ALL].set_index("tuned")
