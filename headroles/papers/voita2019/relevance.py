"""Voita et al. 2019, section 4: relevance of the encoder's heads, and their confidence (no torch)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from headroles import plots
from headroles.papers.artefact import (
    Interval,
    Reproduced,
    Verdict,
    beside,
    bounded,
    claim,
    every,
    judged,
    prediction_bound,
    provided,
)
from headroles.papers.bench import Bench, best_of_layers, of_kind, reached, within_layers
from headroles.papers.needs import NEEDS, Missing, Need
from headroles.tables import frame
from headroles.tables.columns import Column, of_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from headroles.papers.workflow import Workflow

MUCH = 1.5  # of an equal share of relevance (our choice; the paper's largest is 1.6)
COUNT = 10  # untrained models, with the seeds 1 to 10


def _untrained_models(run: Workflow) -> list[Path]:
    """Keep the largest share of relevance, and the correlation of confidence with it, of several untrained models."""
    from headroles.models import identity, loading

    study, corpus = run.study("relevance"), run.material.dev
    weights = identity.weights_digest(loading.untrained(run.model))
    key = f"{weights} {identity.tokens(run.tokenizer)} {corpus.hash} {COUNT}"
    study.keep("untrained", key, lambda: _untrained_scores(run))
    return [study.path("untrained")]


NEEDS["untrained"] = Need(
    "scores of untrained models of the same shape",
    "headroles reproduce voita2019 fig1a --model MODEL --data FOLDER",
    "untrained",
    _untrained_models,
    columns=("most", "correlation"),
)


def _untrained_scores(run: Workflow) -> pd.DataFrame:
    """Score untrained models; `most` is in equal shares of the layer, `correlation` of ranks within layers."""
    from headroles.models import loading
    from headroles.scores import score

    rows, signature = [], ""  # of the first
    for seed in range(1, COUNT + 1):
        model = loading.untrained(run.model, seed=seed)
        scores = score(model, run.tokenizer, run.material.dev, ["confidence", "relevance"], n_resamples=2)
        name = next(iter(of_name(scores, "relevance", "size")))
        pair = of_kind(scores)[["confidence", name]]
        equal = pair[name].groupby(level="layer").transform("size")
        correlation = float(within_layers(pair)["spearman"])
        rows.append({"seed": seed, "most": float((pair[name] * equal).max()), "correlation": correlation})
        signature = signature or frame.provenance(scores, name)
    return frame.signed(pd.DataFrame(rows), signature)


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
    """Holds if in more than half of the layers the interval of the largest share is above 1.5 equal shares, and above
    the bound that the largest share of any layer of an untrained model of the same shape exceeds with p = 0.01
    (Student's prediction interval over several of them); fails if in half of the layers it is below one of the two.""",
)
def fig1a_claim(table: pd.DataFrame) -> Verdict:
    times = table[bounded("share")].div(table["equal"], axis=0)
    row, chance = times["share"].argmax(), table["untrained"].iloc[0]
    most = [Interval.of(layer, "share") for _, layer in times.iterrows()]
    layers = [every(share.above(bound) for bound in (MUCH, chance)) for share in most]
    yes, no, half = layers.count(True), layers.count(False), len(layers) / 2
    holds = True if yes > half else False if no >= half else None
    head = "layer {layer:.0f} head {head:.0f}".format(**table.iloc[row])
    if math.isnan(chance):  # no layer can have clearly more, nor clearly not
        yes = [share.above(MUCH) for share in most].count(True)
    more = "clearly more" if not math.isnan(chance) else f"more than {MUCH} equal shares"
    text = f"in {yes} of {len(layers)} layers a head has {more}; the most of any head has {head}, {most[row]}"
    return Verdict(holds, f"{text} equal shares; {reached(chance)}")


def fig1b(bench: Bench) -> Reproduced:
    """Show the confidence of the encoder's heads, in the order of their relevance."""
    table = of_kind(bench.table("relevance"))
    pair = table[["confidence", _relevance(table)]]
    places = {"largest": table["confidence"].argmax(), "smallest": table["confidence"].argmin()}
    rows = [(name, *table[bounded("confidence")].iloc[place]) for name, place in places.items()]
    rows += [("rank correlation with relevance", *within_layers(pair)[bounded("spearman")])]
    numbers = beside(pd.DataFrame(rows, columns=["what", *bounded("ours")]), "voita2019-fig1b", "what")
    numbers["untrained"] = _untrained(bench, "correlation")
    return judged(fig1b_claim, numbers, lambda: _ranked(pair))


@claim(
    "Heads of large relevance are confident, with few exceptions.",
    """Holds if the rank correlation of confidence with relevance, within layers, is above 0 with its interval, and
    the correlation above the bound that an untrained model of the same shape exceeds with p = 0.01; fails if it is
    below 0.""",
)
def fig1b_claim(table: pd.DataFrame) -> Verdict:
    correlation = Interval.of(table.set_index("what").loc["rank correlation with relevance"], "ours")
    chance = table["untrained"].iloc[0]
    text = f"rank correlation with relevance within layers {correlation}; {reached(chance)}"
    return Verdict(provided(correlation.above(0), bool(correlation.value > chance)), text)


def _relevance(table: pd.DataFrame) -> str:
    """Return the column of relevance shares, by preference of the rules `cp`, which are the paper's equations."""
    names = [name for name in of_name(table, "relevance", "size") if len(Column.parse(name).words) == 1]
    return "relevance[cp].size" if "relevance[cp].size" in names else names[0]


def _untrained(bench: Bench, column: str) -> float:
    """Return the bound that an untrained model of the same shape exceeds with p = 0.01; NaN without their table."""
    try:
        return prediction_bound([*bench.table("untrained")[column]])
    except Missing:
        return math.nan


def _ranked(pair: pd.DataFrame) -> Axes:
    """Draw the first column, the heads of each layer by falling values of the second, with their numbers."""
    ranks = pair.iloc[:, 1].groupby(level="layer").rank(ascending=False, method="first").astype(int) - 1
    kinds, layers, heads = (pair.index.get_level_values(name) for name in ("kind", "layer", "head"))
    index = pd.MultiIndex.from_arrays([kinds, layers, ranks], names=["kind", "layer", "head"])
    values = pair.iloc[:, 0].set_axis(index).sort_index()
    ax = plots.heatmap(values, annotate=pd.Series(heads.astype(str), index), kind="enc-self")
    ax.set_xlabel("head, by falling relevance; its number in the cell")
    return ax
