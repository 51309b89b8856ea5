"""Prediction: which scores predict which heads survive, or matter (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd

from headroles.analysis.association import finite, measured, outcomes_of, values
from headroles.analysis.intervals import NONE, Array, p_value, rank_correlation
from headroles.analysis.multiple_testing import corrected
from headroles.analysis.resampling import (
    PERMUTATIONS,
    Whole,
    auc,
    binary,
    centred_ranks,
    permuted_roles,
    permuted_values,
    spearman,
    strata,
)
from headroles.tables import frame
from headroles.tables.columns import Column, of_name

PREDICTORS = ("confidence", "position", "rarity", "entropy", "distance", "importance", "relevance", "attribution")


def predict_outcome(
    scores: pd.DataFrame,
    outcomes: pd.DataFrame,
    *,
    columns: Sequence[str] | None = None,
    outcome_columns: Sequence[str] | None = None,
    n_resamples: int = 1000,
    n_permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> pd.DataFrame:
    """Rank scores by how well they predict which heads survive, or another outcome.

    Args:
        scores: Table of `hr.score`.
        outcomes: Table of the same heads with columns `survival[...]`, or other outcomes.
        columns: Columns of `scores`; by default those that are measured without ablation (of position the best).
        outcome_columns: Columns of `outcomes`; by default `survival[...]`.
        n_resamples: Permutations over all heads, for the interval of `auc`.
        n_permutations: Permutations within layers, for `p`.
        seed: Seed of the permutations.

    Returns:
        One row per outcome and score, the largest |spearman| first. `spearman` is the rank correlation over all heads
        that could be pruned. If an outcome is 0 or 1, `auc` is the chance that a head with 1 has the larger score. Both
        have a 95 % interval (Bonett and Wright 2000; of `auc` as of `hr.relate`); NaN for few heads. `within` is the
        correlation of ranks within layers of a kind, pooled, and `p` its permutation p; `holm` and `bh` correct it for
        all rows. `note` gives the reason for a missing number.

    Raises:
        ValueError: For tables of different heads, an infinite number, and if there is no score or no outcome.
    """
    known = outcomes_of(outcomes, outcome_columns)
    chosen = of_name(known, "survival") if outcome_columns is None else known
    known = [str(name) for name in scores if measured(str(name), scores)]
    predictors = [name for name in known if predicts(name)] if columns is None else list(columns)
    if not chosen or not predictors or not set(predictors) <= set(known):
        expected = ", ".join(predictors) or "some of " + ", ".join(PREDICTORS) if chosen else "survival[...]"
        got = ", ".join(map(str, scores if chosen else outcomes))
        raise ValueError(f"no {'score' if chosen else 'outcome'}: got columns {got}; expected {expected}")
    frame.check_same_heads(scores, outcomes, "scores and outcomes")
    scores = scores.sort_index()  # permutations do not depend on the order of the rows
    layers, rows = strata(scores.index), []
    for outcome, name in product(chosen, predictors):
        x, y = finite(scores[name]).to_numpy(float), values(outcomes, outcome)[scores.index].to_numpy(float)
        known_heads = np.isfinite(x) & np.isfinite(y)
        row = _prediction(x[known_heads], y[known_heads], layers[known_heads], n_resamples, n_permutations, seed)
        rows.append({"outcome": outcome, "score": name} | row)
    table = corrected(pd.DataFrame(rows))
    place = table["outcome"].map({name: place for place, name in enumerate(chosen)})
    table = table.iloc[np.lexsort((-table["spearman"].abs().fillna(-1), place))].reset_index(drop=True)
    of_tables = {"scores": frame.sources(scores, predictors), "outcomes": frame.sources(outcomes, chosen)}
    text = frame.sign(predictors=",".join(chosen), resamples=n_resamples, permutations=n_permutations, seed=seed)
    return frame.signed(table, text, frame.holding(**of_tables))


def predicts(name: str) -> bool:
    """Return whether a column is measured without ablation, and not at one of several offsets."""
    family = Column.parse(name).name
    return family in PREDICTORS and (family != "position" or name == "position[best]")


def _prediction(
    x: Array, y: Array, layers: Whole, n_resamples: int, n_permutations: int, seed: int
) -> dict[str, object]:
    """Numbers of one score and outcome; NaN where `note` gives the reason."""
    names = ["spearman", "spearman.low", "spearman.high", "auc", "auc.low", "auc.high", "within", "p"]
    if len(x) < 3 or not np.ptp(x) or not np.ptp(y):
        note = "fewer than three heads" if len(x) < 3 else f"the {'score' if np.ptp(y) else 'outcome'} is constant"
        return {"heads": len(x), **dict.fromkeys(names, np.nan), "note": note}
    rank = float(spearman(x[None], y[None])[0])
    area, ends = np.nan, NONE
    if binary(y):
        area, ends = auc(y == 1, x, permuted_roles(y == 1, np.zeros_like(layers), n_resamples, seed))
    numbers = (rank, *(rank_correlation(rank, len(x)) if n_resamples else NONE), area, *ends)
    row: dict[str, object] = {"heads": len(x), **dict(zip(names, numbers, strict=False))}
    a, b = (centred_ranks(values, layers) for values in (x, y))
    if not a.any() or not b.any():
        return row | {"within": np.nan, "p": np.nan, "note": "alike within each layer"}
    row["within"] = float(a @ b / np.sqrt((a @ a) * (b @ b)))
    permuted = permuted_values(b, layers, n_permutations, np.random.default_rng(seed)) @ a
    return row | {"p": p_value(permuted, float(a @ b)), "note": ""}
