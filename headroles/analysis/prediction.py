"""Prediction: which score tells best which heads survive, or matter (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from headroles.analysis.association import finite, measured, outcomes_of, values
from headroles.analysis.intervals import NONE, p_value, rank_correlation
from headroles.analysis.multiple_testing import corrected
from headroles.analysis.resampling import Array, Whole, auc, binary, centred_ranks, dealt, spearman, strata
from headroles.tables import frame

PREDICTORS = ("confidence", "position", "rarity", "entropy", "distance", "importance", "relevance", "attribution")


def predict_outcome(
    scores: pd.DataFrame,
    outcomes: pd.DataFrame,
    *,
    names: Sequence[str] | None = None,
    of: Sequence[str] | None = None,
    n_resamples: int = 1000,
    n_permutations: int = 9999,
    seed: int = 0,
) -> pd.DataFrame:
    """Which score tells best which heads survive, or matter: a row per outcome and score, the best of each first.

    Outcomes are the columns `survival[...]` of `outcomes`, or those of `of`; scores are the columns of `scores` that
    are measured without closing a head (of position the best), or those of `names`. `spearman` is the rank correlation
    over all heads that may go; where an outcome is 0 or 1, `auc` is the chance that a head with 1 has the larger score.
    Both with a 95 % interval over heads (Bonett and Wright 2000; Newcombe 2006, 0.5 left out exactly where `resamples`
    ways to deal the outcome out anew over all heads reject it); none for a handful of heads. `within` is the
    correlation of ranks within layers of a kind, pooled, and `p` how often it is as large when outcomes are dealt out
    anew within them; `holm` and `bh` correct it for all rows. `note` says why a number is missing. Raises ValueError
    for tables of different heads, an infinite number, and where there is no score or no outcome.
    """
    chosen = [name for name in outcomes_of(outcomes, of) if of is not None or _survives(name)]
    known = [str(name) for name in scores if measured(str(name), scores)]
    asked = [name for name in known if predicts(name)] if names is None else list(names)
    if not chosen or not asked or not set(asked) <= set(known):
        what = "outcome survival[...]" if not chosen else f"score {', '.join(asked) or 'of ' + ', '.join(PREDICTORS)}"
        raise ValueError(f"no {what} among the columns: {', '.join(map(str, scores if chosen else outcomes))}")
    if len(scores) != len(outcomes) or not scores.index.sort_values().equals(outcomes.index.sort_values()):
        raise ValueError(f"scores and outcomes are of different heads: {len(scores)} and {len(outcomes)} rows")
    scores = scores.sort_index()  # resamples and permutations do not depend on the order of the rows
    layers, rows = strata(scores.index), []
    for outcome, name in product(chosen, asked):
        x, y = finite(scores[name]).to_numpy(float), values(outcomes, outcome)[scores.index].to_numpy(float)
        both = np.isfinite(x) & np.isfinite(y)
        found = _prediction(x[both], y[both], layers[both], n_resamples, n_permutations, seed)
        rows.append({"outcome": outcome, "score": name} | found)
    table = corrected(pd.DataFrame(rows))
    place = table["outcome"].map({name: place for place, name in enumerate(chosen)})
    table = table.iloc[np.lexsort((-table["spearman"].abs().fillna(-1), place))].reset_index(drop=True)
    told_of = {"scores": frame.sources(scores, asked), "outcomes": frame.sources(outcomes, chosen)}
    text = frame.sign(predictors=",".join(chosen), resamples=n_resamples, permutations=n_permutations, seed=seed)
    table.attrs["signatures"] = dict.fromkeys(table.columns, f"{text}|{frame.holding(**told_of)}")
    return table


def _survives(name: str) -> bool:
    return name.startswith("survival[") and name.endswith("]")


def predicts(name: str) -> bool:
    """Whether a column is measured without closing a head, and not at one of several offsets."""
    family = name.split("[")[0].split(".")[0]
    return family in PREDICTORS and (family != "position" or name == "position[best]")


def _prediction(x: Array, y: Array, layers: Whole, n_resamples: int, n_permutations: int, seed: int) -> dict[str, Any]:
    """One row of `predictors`."""
    names = ["spearman", "spearman.low", "spearman.high", "auc", "auc.low", "auc.high", "within", "p"]
    if len(x) < 3 or not np.ptp(x) or not np.ptp(y):
        note = "fewer than three heads" if len(x) < 3 else f"the {'score' if np.ptp(y) else 'outcome'} is constant"
        return {"heads": len(x), **dict.fromkeys(names, np.nan), "note": note}
    rank = float(spearman(x[None], y[None])[0])
    area, ends = np.nan, NONE
    if binary(y):
        area, ends = auc(y == 1, x, dealt(y == 1, np.zeros_like(layers), n_resamples, seed))
    numbers = (rank, *(rank_correlation(rank, len(x)) if n_resamples else NONE), area, *ends)
    row: dict[str, Any] = {"heads": len(x), **dict(zip(names, numbers, strict=False))}
    a, b = (centred_ranks(values, layers) for values in (x, y))
    if not a.any() or not b.any():
        return row | {"within": np.nan, "p": 1.0, "note": "alike within each layer"}
    row["within"] = float(a @ b / np.sqrt((a @ a) * (b @ b)))
    random, others = np.random.default_rng(seed), np.zeros(n_permutations)
    for layer in np.unique(layers):
        here = layers == layer
        others += b[here][random.random((n_permutations, int(here.sum()))).argsort(1)] @ a[here]
    return row | {"p": p_value(others, float(a @ b)), "note": ""}
