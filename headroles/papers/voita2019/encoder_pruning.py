"""Voita et al. 2019, section 6.1: pruning the encoder's heads by Hard Concrete gates (no torch)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from headroles import plots
from headroles.analysis.summaries import LOW
from headroles.papers.artefact import (
    Interval,
    Reproduced,
    Verdict,
    aligned,
    bounded,
    claim,
    judged,
    printed,
    provided,
)
from headroles.papers.bench import (
    CLEAR,
    LITTLE,
    VALUES,
    Bench,
    amount,
    at_stake,
    costs,
    metric_label,
    metric_of,
    stake,
)
from headroles.papers.needs import NEEDS, Need, trees
from headroles.plots.pruning import FUNCTIONS

if TYPE_CHECKING:
    from headroles.papers.workflow import Workflow
    from headroles.tables.study import Study

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
def fig6_claim(table: pd.DataFrame) -> Verdict:
    worst = max((table[f"ours {part}"] - table[f"paper {part}"]).abs().max() for part in ("P(0)", "P(1)"))
    return Verdict(bool(worst <= 0.0055), f"the largest difference from the paper's numbers is {worst:.3f}")


@cache  # needed by several artefacts of one run
def pruned_encoder(run: Workflow) -> Study:
    """Prune the encoder by learnt gates, the decoder frozen; return the study with the tables."""
    study = run.study("pruning")
    run.prune(study, "enc-self")
    return study


NEEDS["sizes-encoder"] = Need(
    "an encoder pruned to several sizes",
    "headroles sparsity-sweep MODEL CORPUS --held-out DEV --kinds enc-self --freeze decoder",
    "sparsity-l0-enc-self",
    lambda run: [pruned_encoder(run).path("sparsity-l0-enc-self")],
    trains=True,
)


def fig7(bench: Bench) -> Reproduced:
    """Show the score of the model with fewer encoder heads."""
    table = bench.table("sizes-encoder")
    sizes, metric = table.assign(heads=table["enc-self"], of=table["enc-self"].iloc[0]), metric_of(table)
    ours = sizes[["heads", "of", *VALUES, *bounded("change")]]
    ours = ours.assign(**costs(sizes, sizes.iloc[0], metric))
    rows = aligned(ours, printed("voita2019-fig7")).assign(metric=metric, **stake(bench, table, "enc-self"))
    return judged(fig7_claim, rows, lambda: plots.survival(sizes, label=metric_label(table)))


@claim(
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
    cost, none, first = Interval.of(row, "cost"), Interval(row["all"]), table.iloc[0]
    lost = amount(cost, first.get("metric", "")), amount(none, first.get("all.metric", ""))
    text = (
        f"with {row['heads']:.0f} of {row['of']:.0f} heads left the control's score loses {lost[0]}, without any and "
    )
    text += f"without training {lost[1]}"
    return Verdict(provided(cost.below(LITTLE), at_stake(table)), text)


def _remaining_functions(run: Workflow) -> list[Path]:
    trees(run)
    return [pruned_encoder(run).path("functions-l0-enc-self")]


NEEDS["functions-encoder"] = Need(
    "functions of the surviving heads of a pruned encoder",
    "headroles sparsity-sweep MODEL CORPUS --held-out DEV --kinds enc-self --freeze decoder --scored TREES",
    "functions-l0-enc-self",
    _remaining_functions,
    trains=True,
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
    whole model (Fisher's exact test, p < 0.05); fails if they are a smaller one. A sink has no function.""",
)
def fig8_claim(table: pd.DataFrame) -> Verdict:
    rows = table[table["none"].notna()].sort_values("heads")
    rows = rows.assign(none=rows["none"] + rows.get("sink", 0))
    whole, few = rows.iloc[-1], rows[rows["heads"] <= rows["heads"].max() / 4]
    if few.empty:
        return Verdict(None, "no size has a quarter of the heads or fewer")
    counts = [[row["heads"] - row["none"], row["none"]] for row in (few.iloc[-1], whole)]
    now, first = (f"{held:.0f} of {held + none:.0f}" for held, none in counts)
    text = f"{now} remaining heads have a function, {first} in the model with all heads"
    if not counts[0][0] and not counts[1][0]:
        return Verdict(None, f"{text}: no function can survive")
    more, fewer = (stats.fisher_exact(counts, side).pvalue < CLEAR for side in ("greater", "less"))
    return Verdict(True if more else False if fewer else None, text)
