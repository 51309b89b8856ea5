"""Budhraja et al. 2020, "On the weak link": its claims; its numbers are not known (no torch)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from headroles import plots
from headroles.analysis.intervals import over_seeds
from headroles.papers.artefact import (
    Holds,
    Interval,
    Reproduced,
    Verdict,
    bounded,
    claim,
    every,
    judged,
    on_balance,
    printed,
    provided,
    some,
)
from headroles.papers.bench import LITTLE, Bench, amount, gains, metric_label, metric_of, scale, trained
from headroles.papers.needs import NEEDS, Need, functions
from headroles.tables import frame
from headroles.tables.io import load_table, save_table

if TYPE_CHECKING:
    from headroles.papers.workflow import Workflow
    from headroles.pruning.selection import Strategy

ALL = "all heads"  # the row without pruning
GAIN = bounded("gain")
UNEVEN = 0.1  # spread of the heads' mean movements over their mean from which they are not "uniform" (our choice)
SURE = 0.01
LEAST = 3  # epochs of all data of the task: taken as the paper's shortest fine-tuning (our choice)
PLACES = ("random", "bottom", "middle", "top", "ends", "bottom alternating", "middle alternating")
PRASANNA = "prasanna2020-claim1"
MOVED = "moved[all]"


def _contest(run: Workflow) -> list[Path]:
    from headroles.pruning.learned_gates import L0
    from headroles.pruning.rankings import ByRoles

    strategies: list[str | Strategy] = ["importance", "effect", L0(rate=run.gate_rate), "random", "-importance"]
    if run.material.trees is not None:
        strategies.insert(3, ByRoles(load_table(functions(run)[0])))
    return [run.compare("compare-pruning", strategies, run.contested)]


NEEDS["compare-pruning"] = Need(
    "a comparison of pruning strategies",
    "headroles compare-pruning MODEL CORPUS --held-out DEV",
    "(.*-)?compare-pruning",
    _contest,
    columns=("strategy", "tuned"),
    values=("strategy", "importance", "random"),
    trains=True,
)


def claim1(bench: Bench) -> Reproduced:
    """Show random pruning before and after training; beside it Prasanna et al. 2020, not the paper's numbers."""
    table = bench.table("compare-pruning")
    whole, metric = _whole(table), metric_of(table)
    rows = table[table["strategy"] == "random"].assign(
        of="here", metric=metric, whole=table["tuned"].map(whole["value"])
    )
    costs = [
        Interval.of(whole.loc[row["tuned"]], "value").minus(Interval.of(row, "value")) for _, row in rows.iterrows()
    ]
    units = [[scale(metric, value) or math.nan] for value in rows["whole"]]
    rows[bounded("cost")] = gains(np.array(costs), metric) / np.array(units)
    rows["share"] = rows["heads"] / table.loc[table["strategy"] == ALL, "heads"].iloc[0]
    both = pd.concat([_with_training(bench, table, rows), _of_prasanna()], ignore_index=True)
    columns = ["of", "strategy", "heads", "share", "tuned", "metric", *bounded("value"), "whole", *bounded("cost")]
    both = both[[*columns, "steps", "epochs"]]
    both.attrs["source"] = printed(PRASANNA).attrs["source"]
    return judged(claim1_claim, both, lambda: plots.compare_pruning(table, label=metric_label(table))[0])


def _of_prasanna() -> pd.DataFrame:
    """Return the numbers of Prasanna et al. 2020 as rows of claim 1: shares, as our accuracy is, for their per cent."""
    theirs = printed(PRASANNA)
    value, whole = theirs["random"] / 100, theirs["whole"] / 100
    metric = np.where(theirs["task"] == "CoLA", "matthews", "accuracy")
    rows = pd.DataFrame({"of": "Prasanna et al. 2020, " + theirs["task"], "strategy": "random", "tuned": True})
    return rows.assign(metric=metric, value=value, whole=whole, cost=1 - value / whole)


@claim(
    "A large fraction of random heads can be pruned at little cost if the model is fine-tuned afterwards.",
    """Holds if, with half of the heads or fewer left, random pruning costs less than 3 % of the score of the whole
    model (of a loss, 0.03 nats) after the same training, with its interval, at some number of heads, and more without
    training; fails if it costs more at each. Not comparable where the training is shorter than three epochs of all
    data of the task, or its length is unknown.""",
)
def claim1_claim(table: pd.DataFrame) -> Verdict:
    here = table[(table["of"] == "here") & (table["share"] <= 0.5 + 1e-9)]
    tuned, untuned = (
        [(row["heads"], Interval.of(row, "cost")) for _, row in here[flags].iterrows()]
        for flags in (here["tuned"], ~here["tuned"])
    )
    needed = some(cost.above(LITTLE) for _, cost in untuned)
    metric = here.iloc[0].get("metric", "") if len(here) else ""
    text = ", ".join(f"{amount(cost, metric)} with {heads:.0f}" for heads, cost in tuned)
    text = f"random pruning, after training, loses of the score: {text} heads left"
    return _after_training(provided(some(cost.below(LITTLE) for _, cost in tuned), needed), text, table)


def claim2(bench: Bench) -> Reproduced:
    """Show the gain of each strategy over random pruning, after training."""
    table = bench.table("compare-pruning")
    reversed_ = table["strategy"].str.startswith("-")  # no strategy for choosing heads to keep
    rows = table[~reversed_ & ~table["strategy"].isin(["random", ALL])]
    rows = rows[["strategy", "heads", "value", "tuned", *GAIN]].copy()
    rows[GAIN] = gains(rows[GAIN].to_numpy(), metric_of(table))
    names = dict(zip(GAIN, bounded("untuned"), strict=True))
    before = rows[~rows["tuned"]].rename(columns=names)[["strategy", "heads", *names.values()]]
    rows = rows[rows["tuned"]].drop(columns="tuned").merge(before, on=["strategy", "heads"], how="left")
    whole = float(_whole(table)["value"][True])
    rows = rows.assign(whole=whole, unit=scale(metric_of(table), whole), seeds=_seeds(bench, table))
    return judged(claim2_claim, _with_training(bench, table, rows))


def _seeds(bench: Bench, table: pd.DataFrame) -> float:
    """Count the seeds of a comparison, by the table of each seed beside it; NaN without one."""
    by_seed = bench.beside(table, Path(table.attrs["file"]).stem + "-seeds")
    return math.nan if by_seed is None else float(by_seed["seed"].nunique())


def _widened(gain: Interval, tests: int, seeds: float) -> Interval:
    """Widen a 95 % interval over seeds for several tests (Bonferroni) by t, or by the normal if `seeds` is NaN.

    Returns:
        The interval, too wide where examples make up much of its width: all of it counts as spread of the seeds.
    """
    freedom = math.inf if math.isnan(seeds) else seeds - 1  # NaN of one seed, which decides nothing
    factor = float(stats.t.isf(0.025 / tests, freedom) / stats.t.isf(0.025, freedom))
    value, low, high = gain
    return Interval(value, value - (value - low) * factor, value + (high - value) * factor)


@claim(
    "After fine-tuning, choosing heads by importance or place has no advantage over choosing them at random.",
    """Holds if every difference from random pruning is below 3 % of the score (of a loss, 0.03 nats) in either
    direction, its interval widened for all comparisons (Bonferroni, by Student's t of the seeds; by the normal if
    their number is unknown), and without training some is not; fails if such an interval of any is above 0. Not
    comparable as claim 1.""",
)
def claim2_claim(table: pd.DataFrame) -> Verdict:
    rows = [row for _, row in table.iterrows()]
    wide = [_widened(Interval.of(row, "gain"), len(table), row.get("seeds", math.nan)) for row in rows]
    bounds = [LITTLE * row.get("unit", row["whole"]) for row in rows]
    small = every(gain.within(bound) for gain, bound in zip(wide, bounds, strict=True))
    before = [Interval(math.nan, row["untuned.low"], row["untuned.high"]) for row in rows]
    needed = any(gain.within(bound) is False for gain, bound in zip(before, bounds, strict=True))
    place = int(table["gain"].argmax())
    most, gain = rows[place], wide[place]
    text = f"the largest gain is that of {most['strategy']} with {most['heads']:.0f} heads left, {gain:.3f}"
    holds = False if any(gain.low > 0 for gain in wide) else True if small and needed else None
    return _after_training(holds, f"{text} ({len(table)} comparisons)", table)


NEEDS["places"] = Need(
    "a comparison of pruning by place",
    "headroles compare-pruning MODEL CORPUS --held-out DEV "
    '--strategies "bottom,middle,top,ends,middle alternating,random"',
    ".*",
    lambda run: [run.compare("places", PLACES, (0.5,))],
    columns=("strategy", "tuned", r"value\.low"),
    values=("strategy", "middle", "ends"),
    trains=True,
)


def claim3(bench: Bench) -> Reproduced:
    """Show pruning of the ends or the middle, of consecutive or alternating layers, after training."""
    table = bench.table("places")
    pairs = [("middle", "ends", "middle")]
    pairs += [("consecutive", f"{place} alternating", place) for place in ("bottom", "middle", "top")]
    rows = []
    for heads, part in table[table["strategy"] != ALL].groupby("heads", sort=False):
        tuned = part[part["tuned"]].set_index("strategy")
        values = {name: Interval.of(row, "value") for name, row in tuned.iterrows()}
        for question, first, second in pairs:
            if {first, second} <= set(values):
                gain = gains(np.array([values[first].minus(values[second])]), metric_of(table))[0]
                rows.append((question, f"{first} rather than {second}", heads, *gain))
    gaps = pd.DataFrame(rows, columns=["question", "taken", "heads", "gain", "low", "high"])
    gaps = _with_training(bench, table, gaps.assign(seeds=_seeds(bench, table)))
    return judged(claim3_claim, gaps, lambda: plots.compare_pruning(table, label=metric_label(table))[0])


@claim(
    "In an encoder it is better not to prune heads of the middle layers, nor of consecutive ones.",
    """Holds if after training pruning the middle leaves less than pruning the ends, and pruning consecutive layers
    less than alternating ones: each with its interval at some number of heads, widened for the comparisons of its
    question as for claim 2, and the contrary at none. Not comparable as claim 1.""",
)
def claim3_claim(table: pd.DataFrame) -> Verdict:
    if table.empty:
        return Verdict(None, "no two of the places that the claim compares are in the comparison")
    counted = table.assign(
        seeds=table.get("seeds", math.nan), tests=table.groupby("question")["taken"].transform("size")
    )
    gaps = [
        _widened(Interval(*row[:3]), *row[3:]) for row in counted[["gain", "low", "high", "tests", "seeds"]].to_numpy()
    ]
    rows = [*zip(table["question"], table["taken"], table["heads"], gaps, strict=True)]
    text = ", ".join(f"{taken} with {heads:.0f} heads left {gap:.3f}" for _, taken, heads, gap in rows)
    holds = every(
        on_balance(gap.above(0) for question, _, _, gap in rows if question == name)
        for name in ("middle", "consecutive")
    )
    return _after_training(holds, text, table)


def _compensation(run: Workflow) -> list[Path]:
    """Train the model without half of its heads and the whole one, with several seeds; measure the weights' changes."""
    from copy import deepcopy

    from headroles.pruning.removal import remove_heads
    from headroles.pruning.weight_changes import alike, weight_change

    study, ranking, tables = run.study("weight-change"), run.random_ranking(), []
    for seed in range(max(run.seeds, 3)):
        for name, pruned in ((f"{seed}", ranking[: len(ranking) // 2]), (f"whole-{seed}", [])):
            tuned = remove_heads(deepcopy(run.model), pruned)
            run.train(tuned, "weight-change", name, options={**run.tune, "seed": seed})
            table = weight_change(run.model, tuned)
            study.remove(study.claim(f"weight-change-{name}", frame.provenance(table, MOVED)))
            save_table(table, study.path(f"weight-change-{name}"))
            tables += [table] if pruned else []
    save_table(alike(tables), study.path("uniformity"))
    return [study.path("weight-change-0")]


NEEDS["weight-change"] = Need(
    "changes of each head's weights in fine-tuning",
    "hr.weight_change(model, tuned, study=...)",
    r"weight-change-\d+",
    _compensation,
    trains=True,
)


NEEDS["uniformity"] = Need(
    "a test whether all heads' weights changed alike",
    "hr.weight_change(model, tuned, seed=..., study=...) of three fine-tunings",
    "uniformity",
    lambda run: [path.with_name("uniformity.parquet") for path in _compensation(run)],
    columns=("w", "p"),
    trains=True,
)


def claim4(bench: Bench) -> Reproduced:
    """Show how much the weights of each head changed in fine-tuning, and whether all changed alike."""
    table = bench.table("weight-change")
    rows = bench.table("uniformity").reset_index().assign(**_movements(bench, table))
    rows, label = _with_training(bench, table, rows), "change of the weights, relative"
    return judged(claim4_claim, rows, lambda: plots.heatmaps(table[MOVED], label=label)[0])


def _movements(bench: Bench, table: pd.DataFrame) -> dict[str, float]:
    """Compare the mean movement of the remaining heads with that of the same heads in training without pruning.

    Returns:
        Both means, and `more`, their difference paired by seed, with its interval by Student's t; NaN without tables
        `weight-change-whole-SEED` beside the table.
    """
    pairs = []
    for path in sorted(Path(table.attrs["file"]).parent.glob("weight-change-whole-*.parquet")):
        pruned, whole = (bench.beside(table, name) for name in (path.stem.replace("whole-", ""), path.stem))
        if pruned is not None and whole is not None:
            pairs.append((pruned[MOVED].mean(), whole[MOVED].reindex(pruned.index).mean(skipna=False)))
    moved, alone = np.array(pairs or [(table[MOVED].mean(), math.nan)]).T
    more = moved - alone
    low, high = over_seeds(np.column_stack([more, more]))  # movements have no resamples
    means = {"moved": moved.mean(), "moved.whole": alone.mean(), "more": more.mean()}
    return means | {"more.low": low, "more.high": high}


@claim(
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
    more = Interval.of(row, "more")
    known = f"they move {more:.2g} more than without pruning"
    text += "how much they move without pruning is unknown" if math.isnan(more.value) else known
    alike = row["p"] >= SURE and row["cv"] <= UNEVEN
    uneven = row["p"] < SURE and row["cv"] > UNEVEN
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
    return rows.assign(**trained(bench, table, "retrained"))


def _whole(table: pd.DataFrame) -> pd.DataFrame:
    """Select the rows without pruning, by whether the model was trained."""
    return table[table["strategy"] == ALL].set_index("tuned")
