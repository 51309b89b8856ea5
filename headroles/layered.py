"""Statistics of two groups of heads that respect layers: differences, ranks, dealing out anew (no torch)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

Array = npt.NDArray[np.floating[Any]]
Bools = npt.NDArray[np.bool_]
Whole = npt.NDArray[np.int64]


def strata(index: pd.Index[Any]) -> Whole:
    """The layer of each head, of its kind, as a number: [heads]."""
    layers: Whole = pd.MultiIndex.from_tuples([head[:2] for head in index]).factorize()[0]
    return layers


def numbers(held: Bools, margin: Array, y: Array, layers: Whole, draws: Whole) -> dict[str, Array]:
    """The numbers of a relation, each [draws], of heads drawn [draws, heads], those with the role first."""
    ours = int(held.sum())
    drawn, above = y[draws], margin[draws]
    one, other = drawn[:, :ours], drawn[:, ours:]
    having = np.zeros(drawn.shape[1])
    having[:ours] = 1
    ranks = stats.rankdata(drawn, axis=1)
    auc = (ranks[:, :ours].sum(1) - ours * (ours + 1) / 2) / (ours * other.shape[1])
    return {
        "difference": one.mean(1) - other.mean(1),
        "median": np.median(one, 1) - np.median(other, 1),
        "auc": auc,
        "rank_biserial": 2 * auc - 1,
        "point_biserial": pearson(np.broadcast_to(having, drawn.shape), drawn),
        "spearman": spearman(above, drawn),
        "within": _within(drawn, layers[draws], ours),
    }


def drawn_anew(held: Bools, layers: Whole, resamples: int, seed: int) -> Whole:
    """The heads as they are, and drawn anew: those with the role, then those without, layer by layer."""
    random = np.random.default_rng(seed)
    have, rest = np.flatnonzero(held), np.flatnonzero(~held)
    again = [random.choice(have, (resamples, len(have)))]
    rest = rest[np.argsort(layers[rest], kind="stable")]
    for layer in np.unique(layers[rest]):
        own = rest[layers[rest] == layer]
        again.append(random.choice(own, (resamples, len(own))))
    return np.concatenate([np.concatenate([have, rest])[None], np.concatenate(again, axis=1)])


def _within(drawn: Array, layers: Whole, ours: int) -> Array:
    """The mean difference of heads with the role from those without in their layer; NaN where no layer has both."""
    total, count = np.zeros(len(drawn)), np.zeros(len(drawn))
    for layer in np.unique(layers[:, ours:]):
        one, other = layers[:, :ours] == layer, layers[:, ours:] == layer
        mean = (drawn[:, ours:] * other).sum(1) / other.sum(1)
        total += ((drawn[:, :ours] - mean[:, None]) * one).sum(1)
        count += one.sum(1)
    with np.errstate(invalid="ignore"):
        return np.asarray(total / count)


def dealt_anew(held: Bools, y: Array, layers: Whole, permutations: int, seed: int) -> float:
    """p of `within`, two-sided; 1 where no layer has heads with the role and heads without."""
    random = np.random.default_rng(seed)
    found, dealt, most = 0.0, np.zeros(permutations), 0.0
    for layer in np.unique(layers):
        here = layers == layer
        many, own = int(here.sum()), int(held[here].sum())
        if not 0 < own < many:
            continue
        weighed = (y[here] - y[here].mean()) * many / (many - own)
        found += weighed[held[here]].sum()
        order = random.random((permutations, many)).argsort(1)[:, :own]
        dealt += weighed[order].sum(1)
        most += np.abs(weighed).sum()
    return float((1 + (np.abs(dealt) >= np.abs(found) - 1e-12 * most).sum()) / (1 + permutations))


def centred_ranks(values: Array, layers: Whole) -> Array:
    """Ranks within each layer, less their mean."""
    ranks = pd.Series(values).groupby(layers).rank()
    return np.asarray(ranks - ranks.groupby(layers).transform("mean"), float)


def spearman(one: Array, other: Array) -> Array:
    """The rank correlation of the rows of two arrays [draws, heads]."""
    return pearson(stats.rankdata(one, axis=1), stats.rankdata(other, axis=1))


def pearson(one: Array, other: Array) -> Array:
    """The correlation of the rows of two arrays [draws, heads]; NaN where one is constant."""
    a, b = one - one.mean(1, keepdims=True), other - other.mean(1, keepdims=True)
    constant = (np.ptp(one, axis=1) == 0) | (np.ptp(other, axis=1) == 0)  # whose mean need not be exactly what they are
    with np.errstate(invalid="ignore"):
        return np.where(constant, np.nan, (a * b).sum(1) / np.sqrt((a**2).sum(1) * (b**2).sum(1)))


def ends(draws: Array) -> tuple[float, float]:
    """A 95 % interval of resampled values; NaN where none is known."""
    known = draws[np.isfinite(draws)]
    low, high = np.quantile(known, [0.025, 0.975]) if len(known) else (np.nan, np.nan)
    return float(low), float(high)
