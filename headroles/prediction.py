"""Prediction: which score tells best which heads survive, or matter (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from headroles import heads
from headroles.corrections import corrected
from headroles.layered import Array, Whole, centred_ranks, drawn_anew, ends, spearman, strata
from headroles.relation import measured, outcomes_of, values

PREDICTORS = ("confidence", "position", "rarity", "entropy", "distance", "importance", "relevance", "attribution")


def predictors(
    scores: pd.DataFrame,
    outcomes: pd.DataFrame,
    *,
    names: Sequence[str] | None = None,
    of: Sequence[str] | None = None,
    resamples: int = 1000,
    permutations: int = 9999,
    seed: int = 0,
) -> pd.DataFrame:
    """Which score tells best which heads survive, or matter: a row per outcome and score, the best of each first.

    Outcomes are the columns `survival[...]` of `outcomes`, or those of `of`; scores are the columns of `scores` that
    are measured without closing a head (of position the best), or those of `names`. `spearman` is the rank correlation
    over all heads that may go; where an outcome is 0 or 1, `auc` is the chance that a head with 1 has the larger score.
    Both with a 95 % bootstrap interval over heads. `within` is the correlation of ranks within layers of a kind,
    pooled, and `p` how often it is as large when outcomes are dealt out anew within them; `holm` and `bh` correct it
    for all rows. `note` says why a number is missing. Raises ValueError for tables of different heads, and where there
    is no score or no outcome.
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
        x, y = scores[name].to_numpy(float), values(outcomes, outcome)[scores.index].to_numpy(float)
        both = np.isfinite(x) & np.isfinite(y)
        found = _prediction(x[both], y[both], layers[both], resamples, permutations, seed)
        rows.append({"outcome": outcome, "score": name} | found)
    table = corrected(pd.DataFrame(rows))
    place = table["outcome"].map({name: place for place, name in enumerate(chosen)})
    table = table.iloc[np.lexsort((-table["spearman"].abs().fillna(-1), place))].reset_index(drop=True)
    told_of = {"scores": heads.sources(scores, asked), "outcomes": heads.sources(outcomes, chosen)}
    text = heads.sign(predictors=",".join(chosen), resamples=resamples, permutations=permutations, seed=seed, **told_of)
    table.attrs["signatures"] = dict.fromkeys(table.columns, text)
    return table


def _survives(name: str) -> bool:
    return name.startswith("survival[") and name.endswith("]")


def predicts(name: str) -> bool:
    """Whether a column is measured without closing a head, and not at one of several offsets."""
    family = name.split("[")[0].split(".")[0]
    return family in PREDICTORS and (family != "position" or name == "position[best]")


def _prediction(x: Array, y: Array, layers: Whole, resamples: int, permutations: int, seed: int) -> dict[str, Any]:
    """One row of `predictors`."""
    names = ["spearman", "spearman.low", "spearman.high", "auc", "auc.low", "auc.high", "within", "p"]
    if len(x) < 3 or not np.ptp(x) or not np.ptp(y):
        note = "fewer than three heads" if len(x) < 3 else f"the {'score' if np.ptp(y) else 'outcome'} is constant"
        return {"heads": len(x), **dict.fromkeys(names, np.nan), "note": note}
    random = np.random.default_rng(seed)
    again = np.concatenate([np.arange(len(x))[None], random.integers(len(x), size=(resamples, len(x)))])
    rank = spearman(x[again], y[again])
    row: dict[str, Any] = {"heads": len(x), **dict(zip(names, (rank[0], *ends(rank[1:])), strict=False))}
    row |= dict.fromkeys(names[3:6], np.nan)
    if set(np.unique(y)) == {0.0, 1.0}:
        drawn = drawn_anew(y == 1, np.zeros_like(layers), resamples, seed)
        ours = int(y.sum())
        sums = stats.rankdata(x[drawn], axis=1)[:, :ours].sum(1)
        auc = (sums - ours * (ours + 1) / 2) / (ours * (len(y) - ours))
        row |= dict(zip(names[3:6], (auc[0], *ends(auc[1:])), strict=True))
    a, b = (centred_ranks(values, layers) for values in (x, y))
    if not a.any() or not b.any():
        return row | {"within": np.nan, "p": 1.0, "note": "alike within each layer"}
    row["within"] = float(a @ b / np.sqrt((a @ a) * (b @ b)))
    dealt = np.zeros(permutations)
    for layer in np.unique(layers):
        here = layers == layer
        dealt += b[here][random.random((permutations, int(here.sum()))).argsort(1)] @ a[here]
    p = (1 + (np.abs(dealt) >= abs(a @ b) * (1 - 1e-12)).sum()) / (1 + permutations)
    return row | {"p": float(p), "note": ""}
