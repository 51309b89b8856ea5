"""Voita et al. 2019, section 4: relevance of the encoder's heads, and their confidence (no torch)."""

from __future__ import annotations

import math
import re
from typing import Any

import pandas as pd

from headroles import plots
from headroles.experiments.papers import drawings
from headroles.experiments.papers.artefact import Reproduced, Verdict, beside, claim, judged
from headroles.experiments.papers.intervals import Interval, bounded, every, prediction_bound, provided
from headroles.experiments.papers.stakes import reached, within_layers
from headroles.experiments.papers.tables import Bench, Missing, best_of_layers, of_kind

MUCH = 1.5  # of an equal share of relevance (our choice; the paper's largest is 1.6)


def fig1a(bench: Bench) -> Reproduced:
    """Show the relevance of the encoder's heads, within each layer by falling relevance."""
    table = bench.table("relevance")
    name = _relevance(table)
    shares = of_kind(table)[bounded(name)].set_axis(bounded("share"), axis=1)
    best = best_of_layers(shares, "share")
    best["equal"] = 1 / shares.groupby(level="layer").size().to_numpy()
    best["untrained"] = _untrained(bench, "most")
    best = beside(best, "voita2019-fig1a", "layer")
    return judged(fig1a_claim, best, lambda: plots.relevance(table[name], kind="enc-self"))


@claim(
    "A few heads of a layer have clearly more than an equal share of its relevance.",
    """Holds if the interval of the largest share of any layer is above 1.5 equal shares, and above the bound that
    the largest share of an untrained model of the same shape exceeds with p = 0.01 (Student's prediction interval
    over several of them).""",
)
def fig1a_claim(table: Any) -> Verdict:
    """Judge the claim of Fig. 1a."""
    times = table[bounded("share")].div(table["equal"], axis=0)
    row = times["share"].idxmax()
    most, chance = Interval.of(times.loc[row], "share"), table["untrained"].iloc[0]
    parts = [most.above(bound) for bound in (MUCH, chance)]
    head = "layer {layer:.0f} head {head:.0f}".format(**table.loc[row])
    return Verdict(every(parts), f"{head} has {most} equal shares, the most of any head; {reached(chance)}")


def fig1b(bench: Bench) -> Reproduced:
    """Show the confidence of the encoder's heads, in the order of their relevance."""
    table: Any = of_kind(bench.table("relevance"))
    pair = table[["confidence", _relevance(table)]]
    heads = {"largest": table["confidence"].idxmax(), "smallest": table["confidence"].idxmin()}
    rows = [(name, *table.loc[head, bounded("confidence")]) for name, head in heads.items()]
    rows += [("rank correlation with relevance", *within_layers(pair)[bounded("spearman")])]
    numbers = beside(pd.DataFrame(rows, columns=["what", *bounded("ours")]), "voita2019-fig1b", "what")
    numbers["untrained"] = _untrained(bench, "correlation")
    return judged(fig1b_claim, numbers, lambda: drawings.ranked(pair))


@claim(
    "Heads of large relevance are confident, with few exceptions.",
    """Holds if the rank correlation of confidence with relevance, within layers, is above 0 with its interval, and
    the correlation above the bound that an untrained model of the same shape exceeds with p = 0.01; fails if it is
    below 0.""",
)
def fig1b_claim(table: Any) -> Verdict:
    """Judge the claim of Fig. 1b."""
    correlation = Interval.of(table.set_index("what").loc["rank correlation with relevance"], "ours")
    chance = table["untrained"].iloc[0]
    text = f"rank correlation with relevance within layers {correlation}; {reached(chance)}"
    return Verdict(provided(correlation.above(0), bool(correlation.value > chance)), text)


def _relevance(table: pd.DataFrame) -> str:
    """Return the column of relevance shares, by preference of the rules `cp`, which are the paper's equations."""
    names = [name for name in map(str, table) if re.fullmatch(r"relevance\[[^ ]*\]\.size", name)]
    return "relevance[cp].size" if "relevance[cp].size" in names else names[0]


def _untrained(bench: Bench, column: str) -> float:
    """Return the bound that an untrained model of the same shape exceeds with p = 0.01; NaN without their table."""
    try:
        return prediction_bound([*bench.table("untrained")[column]])
    except Missing:
        return math.nan
