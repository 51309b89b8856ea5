"""Budhraja et al. 2020, "On the weak link": its claims; its numbers are not known (no torch)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from headroles import plots
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
from headroles.papers.bench import LITTLE, Bench, gains, metric_label, metric_of, trained
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


def _contest(run: Workflow) -> list[Path]:
    from headroles.pruning.learned_gates import L0
    from headroles.pruning.rankings import ByRoles

    strategies: list[str | Strategy] = ["importance", "effect", L0(rate=run.gate_rate), "random", "-importance"]
    if run.material.trees is not None:
        strategies.insert(3, ByRoles(load_table(functions(run)[0])))
    return [run.compare("contest", strategies, run.contested)]


NEEDS["contest"] = Need(
    "a comparison of pruning strategies",
    "headroles compare-pruning MODEL CORPUS --held-out DEV",
    "(.*-)?contest",
    _contest,
    columns=("strategy", "tuned"),
    values=("strategy", "importance", "random"),
    trains=True,
)


def _permute_strategies(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    names = [name for name in table["strategy"].unique() if name != ALL]
    return table.assign(strategy=table["strategy"].replace(dict(zip(names, random.permutation(names), strict=True))))


def claim1(bench: Bench) -> Reproduced:
    """Show random pruning before and after training; beside it Prasanna et al. 2020, not the paper's numbers."""
    table = bench.table("contest")
    whole = _whole(table)
    rows = table[table["strategy"] == "random"].assign(of="here", whole=table["tuned"].map(whole["value"]))
    costs = [
        Interval.of(whole.loc[row["tuned"]], "value").minus(Interval.of(row, "value")) for _, row in rows.iterrows()
    ]
    rows[bounded("cost")] = gains(np.array(costs), metric_of(table)) / rows[["whole"]].to_numpy()
    rows["share"] = rows["heads"] / table.loc[table["strategy"] == ALL, "heads"].iloc[0]
    theirs = printed("prasanna2020-claim1")
    others = pd.DataFrame({"of": "Prasanna et al. 2020, " + theirs["task"], "strategy": "random", "tuned": True})
    others = others.assign(value=theirs["random"], whole=theirs["whole"], cost=1 - theirs["random"] / theirs["whole"])
    columns = ["of", "strategy", "heads", "share", "tuned", *bounded("value"), "whole", *bounded("cost")]
    both = pd.concat([rows, others], ignore_index=True)[columns]
    both.attrs["source"] = theirs.attrs["source"]
    return judged(claim1_claim, _with_training(bench, both), lambda: plots.contest(table, label=metric_label(table))[0])


@claim(
    "A large fraction of random heads can be pruned at little cost if the model is fine-tuned afterwards.",
    """Holds if, with half of the heads or fewer left, random pruning costs less than 3 % of the score of the whole
    model after the same training, with its interval, at some number of heads, and more without training; fails if
    it costs more at each. Not comparable where the training is shorter than three epochs of all data of the task,
    or its length is unknown.""",
    shuffles={"contest": _permute_strategies},
)
def claim1_claim(table: pd.DataFrame) -> Verdict:
    here = table[(table["of"] == "here") & (table["share"] <= 0.5 + 1e-9)]
    tuned, untuned = (
        [(row["heads"], Interval.of(row, "cost")) for _, row in here[flags].iterrows()]
        for flags in (here["tuned"], ~here["tuned"])
    )
    needed = some(cost.above(LITTLE) for _, cost in untuned)
    text = ", ".join(f"{cost.scaled(100):.1f} % with {heads:.0f}" for heads, cost in tuned)
    text = f"random pruning, after training, loses of the score: {text} heads left"
    return _after_training(provided(some(cost.below(LITTLE) for _, cost in tuned), needed), text, table)


def claim2(bench: Bench) -> Reproduced:
    """Show the gain of each strategy over random pruning, after training."""
    table = bench.table("contest")
    reversed_ = table["strategy"].str.startswith("-")  # no strategy for choosing heads to keep
    rows = table[~reversed_ & ~table["strategy"].isin(["random", ALL])]
    rows = rows[["strategy", "heads", "value", "tuned", *GAIN]].copy()
    rows[GAIN] = gains(rows[GAIN].to_numpy(), metric_of(table))
    names = dict(zip(GAIN, bounded("untuned"), strict=True))
    before = rows[~rows["tuned"]].rename(columns=names)[["strategy", "heads", *names.values()]]
    rows = rows[rows["tuned"]].drop(columns="tuned").merge(before, on=["strategy", "heads"], how="left")
    return judged(claim2_claim, _with_training(bench, rows.assign(whole=_whole(table)["value"][True])))


@claim(
    "After fine-tuning, choosing heads by importance or place has no advantage over choosing them at random.",
    """Holds if every difference from random pruning is below 3 % of the score in either direction, its interval
    widened for all comparisons (Bonferroni), and without training some is not; fails if such an interval of any is
    above 0. Not comparable as claim 1.""",
    shuffles={"contest": _permute_strategies},
)
def claim2_claim(table: pd.DataFrame) -> Verdict:
    rows = [row for _, row in table.iterrows()]
    wide = [Interval.of(row, "gain").widened(len(table)) for row in rows]
    bounds = [LITTLE * row["whole"] for row in rows]
    small = every(gain.within(bound) for gain, bound in zip(wide, bounds, strict=True))
    before = [Interval(math.nan, row["untuned.low"], row["untuned.high"]) for row in rows]
    needed = any(gain.within(bound) is False for gain, bound in zip(before, bounds, strict=True))
    most = table.iloc[table["gain"].argmax()]
    gain = Interval.of(most, "gain").widened(len(table))
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
    tuned = table[table["tuned"] & (table["strategy"] != ALL)]
    pairs = [("middle", "ends", "middle")]
    pairs += [("consecutive", f"{place} alternating", place) for place in ("bottom", "middle", "top")]
    rows = []
    for heads, part in tuned.set_index("strategy").groupby("heads", sort=False):
        values = {name: Interval.of(row, "value") for name, row in part.iterrows()}
        for question, first, second in pairs:
            if {first, second} <= set(values):
                gain = gains(np.array([values[first].minus(values[second])]), metric_of(table))[0]
                rows.append((question, f"{first} rather than {second}", heads, *gain))
    gaps = pd.DataFrame(rows, columns=["question", "taken", "heads", "gain", "low", "high"])
    return judged(claim3_claim, _with_training(bench, gaps), lambda: plots.contest(table, label=metric_label(table))[0])


@claim(
    "In an encoder it is better not to prune heads of the middle layers, nor of consecutive ones.",
    """Holds if after training pruning the middle leaves less than pruning the ends, and pruning consecutive layers
    less than alternating ones: each with its interval at some number of heads, and the contrary at none. Not
    comparable as claim 1.""",
    shuffles={"places": _permute_strategies},
)
def claim3_claim(table: pd.DataFrame) -> Verdict:
    if table.empty:
        return Verdict(None, "no two of the places that the claim compares are in the comparison")
    gaps = [Interval(*row) for row in table[["gain", "low", "high"]].to_numpy()]
    rows = [*zip(table["question"], table["taken"], table["heads"], gaps, strict=True)]
    text = ", ".join(f"{taken} with {heads:.0f} heads left {gap:.3f}" for _, taken, heads, gap in rows)
    holds = every(
        on_balance(gap.above(0) for question, _, _, gap in rows if question == name)
        for name in ("middle", "consecutive")
    )
    return _after_training(holds, text, table)


def _compensation(run: Workflow) -> list[Path]:
    """Retrain the model without half of its heads several times, and measure the changes of the others' weights."""
    from copy import deepcopy

    from headroles.pruning.removal import remove_heads
    from headroles.pruning.weight_changes import alike, weight_change

    study, ranking, tables = run.study("compensation"), run.random_ranking(), []
    for seed in range(max(run.seeds, 3)):
        tuned = remove_heads(deepcopy(run.model), ranking[: len(ranking) // 2])
        run.train(tuned, "compensation", str(seed), options={**run.tune, "seed": seed})
        tables.append(weight_change(run.model, tuned))
        study.remove(study.claim(f"compensation-{seed}", frame.provenance(tables[-1], "moved[all]")))
        save_table(tables[-1], study.path(f"compensation-{seed}"))
    save_table(alike(tables), study.path("uniformity"))
    return [study.path("compensation-0")]


NEEDS["compensation"] = Need(
    "changes of each head's weights in fine-tuning",
    "hr.weight_change(model, tuned, study=...)",
    r"compensation-\d+",
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
    moved = bench.table("compensation")["moved[all]"]
    rows = bench.table("uniformity").reset_index()
    rows["moved"] = moved.mean()
    rows["moved.whole"] = rows.get("moved.whole", np.nan)  # of training with all heads
    label = "change of the weights, relative"
    return judged(claim4_claim, _with_training(bench, rows), lambda: plots.heatmaps(moved, label=label)[0])


@claim(
    "In fine-tuning all remaining heads make up for the pruned ones: their weights move alike.",
    """Holds if the heads' mean movements differ by less than a tenth of their mean (coefficient of variation), and
    it is not the same heads that move most each time (Friedman's test over heads, p >= 0.01), and they move more
    than in the same training without pruning; fails if it is the same heads and the spread is larger. Not
    comparable as claim 1.""",
)
def claim4_claim(table: pd.DataFrame) -> Verdict:
    row = table.set_index("of").loc["moved[all] of heads"]
    text = f"spread {row['cv']:.2f} of the mean, the largest {row['largest over mean']:.2f} times it; w {row['w']:.2f}"
    alike = row["p"] >= SURE and row["cv"] <= UNEVEN
    uneven = row["p"] < SURE and row["cv"] > UNEVEN
    holds = True if alike and row["moved"] > row["moved.whole"] else False if uneven else None
    return _after_training(holds, f"{text}, p {row['p']:.2g}", table)


def _after_training(holds: Holds, text: str, table: pd.DataFrame) -> Verdict:
    """Return a verdict on fine-tuned models, not comparable unless they were fine-tuned long enough."""
    epochs, steps = table[["epochs", "steps"]].iloc[0]
    if math.isnan(epochs):
        return Verdict(None, f"{text}; the length of training is unknown", comparable=False)
    long = bool(epochs >= LEAST)
    text += f"; trained for {steps:.0f} steps, {epochs:.2g} epochs of the task's data"
    return Verdict(holds if long else None, text, long)


def _with_training(bench: Bench, rows: pd.DataFrame) -> pd.DataFrame:
    """Add how long models were fine-tuned after pruning."""
    return rows.assign(**{name: trained(bench, "retrained", name) for name in ("steps", "epochs")})


def _whole(table: pd.DataFrame) -> pd.DataFrame:
    """Select the rows without pruning, by whether the model was trained."""
    return table[table["strategy"] == ALL].set_index("tuned")
