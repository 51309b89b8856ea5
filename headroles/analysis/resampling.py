"""Permutation statistics of two groups of heads, stratified by layer: differences, ranks, correlations (no torch)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from headroles.analysis import intervals
from headroles.analysis.intervals import NONE, Ends, chances, p_value, rank_correlation, shift

Array = npt.NDArray[np.floating[Any]]
Bools = npt.NDArray[np.bool_]
Whole = npt.NDArray[np.int64]
ENDS = ("", ".low", ".high")


def strata(index: pd.Index[Any]) -> Whole:
    """Return the layer of each head within its kind, as a number: [heads]."""
    layers: Whole = pd.MultiIndex.from_tuples([head[:2] for head in index]).factorize()[0]
    return layers


def relation(
    held: Bools, margin: Array, y: Array, layers: Whole, n_resamples: int, n_permutations: int, seed: int
) -> dict[str, float]:
    """Compute the statistics of a role and an outcome, with intervals.

    Args:
        held: Whether each head has the role: [heads].
        margin: How far each head is above the role's threshold: [heads].
        y: The outcome: [heads].
        layers: Layer of each head, as numbered by `strata`.
        n_resamples: Permutations of the role over all heads, for the intervals over all heads.
        n_permutations: Permutations of the role within layers, for p and the interval of `within`.
        seed: Seed of the permutations.

    Returns:
        Name -> number; NaN if undefined.
    """
    one_stratum = np.zeros_like(layers)
    permutations = permuted_roles(held, one_stratum, n_resamples, seed)
    difference, difference_ends, _ = _difference(held, y, one_stratum, permutations)
    area, area_ends = auc(held, y, permutations)
    if binary(y) and n_resamples:  # then the area is (1 + difference) / 2
        area_ends = (1 + difference_ends[0]) / 2, (1 + difference_ends[1]) / 2
    rank = float(spearman(margin[None], y[None])[0])
    within, within_ends, p = _within(held, y, layers, n_permutations, seed)
    statistics = {
        "difference": (difference, difference_ends),
        "median": (float(np.median(y[held]) - np.median(y[~held])), _median(held, y, permutations)),
        "auc": (area, area_ends),
        "rank_biserial": (2 * area - 1, (2 * area_ends[0] - 1, 2 * area_ends[1] - 1)),
        "point_biserial": (
            float(pearson(held[None].astype(float), y[None])[0]),
            _correlations(held, y, difference_ends),
        ),
        "spearman": (rank, rank_correlation(rank, len(y)) if n_resamples else NONE),
        "within": (within, within_ends),
    }
    if 1 in (held.sum(), (~held).sum()):
        statistics |= {name: (value, NONE) for name, (value, _) in statistics.items() if name != "spearman"}
    row = {
        f"{name}{end}": number
        for name, (value, ends) in statistics.items()
        for end, number in zip(ENDS, (value, *ends), strict=True)
    }
    return row | {"p": p}


def binary(y: Array) -> bool:
    """Return whether an outcome is 0 or 1."""
    return bool(np.isin(y, (0.0, 1.0)).all())


def permuted_roles(held: Bools, layers: Whole, permutations: int, seed: int) -> Bools:
    """Permute which heads have the role, as many in each layer: [permutations, heads]."""
    generator = np.random.default_rng(seed)
    permuted = np.repeat(held[None], permutations, axis=0)
    for layer in np.unique(layers):
        places = np.flatnonzero(layers == layer)
        size, count = len(places), int(held[places].sum())
        if 0 < count < size:
            chosen = generator.random((permutations, size)).argsort(1)[:, :count]
            permuted[:, places] = False
            np.put_along_axis(permuted, places[chosen], True, axis=1)
    return permuted


def auc(held: Bools, y: Array, permutations: Bools) -> tuple[float, Ends]:
    """Compute the area under the ROC curve of a role, and its interval.

    It is the chance that a head with the role has the larger value (ties half).

    Args:
        held: Whether each head has the role: [heads].
        y: The value of each head: [heads].
        permutations: Permutations of `held`: [permutations, heads].

    Returns:
        The area under the ROC curve and the ends of its 95 % interval, NaN without permutations.
    """
    count, rest, ranks = int(held.sum()), int((~held).sum()), stats.rankdata(y)
    area, areas = ((role @ ranks - count * (count + 1) / 2) / (count * rest) for role in (held, permutations))
    enough = len(permutations) > 0 and 1 not in (count, rest)
    return float(area), intervals.auc(float(area), count, rest, areas) if enough else NONE


def _within(held: Bools, y: Array, layers: Whole, n_permutations: int, seed: int) -> tuple[float, Ends, float]:
    """Mean difference within layers, its interval and p; NaN and p = 1 if no layer has both groups."""
    if not _weights(held, layers).any():
        return np.nan, NONE, 1.0
    within, ends, permuted = _difference(held, y, layers, permuted_roles(held, layers, n_permutations, seed))
    return within, ends, p_value(permuted, within)


def _difference(held: Bools, y: Array, layers: Whole, permutations: Bools) -> tuple[float, Ends, Array]:
    """A difference of means within layers, its interval, and its values under permutation."""
    weights = _weights(held, layers)
    parts = np.stack([weights * (values - _means(values, layers)) for values in (y, held.astype(float))], axis=1)
    observed, permuted, overlap = float((held @ parts)[0]), *(permutations @ parts).T
    if not len(permutations):
        return observed, NONE, permuted
    if not binary(y):
        return observed, shift(observed, permuted, overlap), permuted
    members = [layers == layer for layer in np.unique(layers[weights > 0])]
    counts = np.array([(held[member].sum(), member.sum(), y[member].mean()) for member in members])
    return observed, chances(observed, counts, permuted), permuted


def _weights(held: Bools, layers: Whole) -> Array:
    """Weight of each head's distance from its layer's mean in the mean difference; 0 in layers of one group."""
    share = _means(held.astype(float), layers)
    mixed = (share > 0) & (share < 1)
    return np.where(mixed, 1 / np.where(mixed, 1 - share, 1) / max(1, int((held & mixed).sum())), 0.0)


def _means(values: Array, layers: Whole) -> Array:
    """The mean of each head's layer."""
    return np.asarray((np.bincount(layers, values) / np.maximum(np.bincount(layers), 1))[layers])


def _median(held: Bools, y: Array, permutations: Bools) -> Ends:
    """Interval of a difference of medians, from permutations of the outcomes less the difference."""
    observed = float(np.median(y[held]) - np.median(y[~held]))
    needed = intervals.needed(len(permutations))
    if not needed or binary(y):
        return NONE
    residuals = y - observed * held
    with_role, without = (
        residuals[np.nonzero(role)[1]].reshape(len(permutations), -1) for role in (permutations, ~permutations)
    )
    half = float(np.sort(np.abs(np.median(with_role, 1) - np.median(without, 1)))[-needed])
    return (observed - half, observed + half) if half else NONE


def _correlations(held: Bools, y: Array, difference: Ends) -> Ends:
    """Ends of the correlation with having the role, from those of the difference of means."""
    variance = float(held.mean() * (1 - held.mean()))
    residual = float(((y - _means(y, held.astype(int))) ** 2).mean())
    ends = np.array(difference)
    if binary(y):
        low, high = np.clip(ends * np.sqrt(variance) / y.std(), -1, 1)
    else:
        low, high = ends * np.sqrt(variance) / np.sqrt(residual + ends**2 * variance)
    return float(low), float(high)


def permuted_values(y: Array, layers: Whole, permutations: int, generator: np.random.Generator) -> Array:
    """Permute values within layers: [permutations, heads]."""
    permuted = np.empty((permutations, len(y)))
    for layer in np.unique(layers):
        places = np.flatnonzero(layers == layer)
        permuted[:, places] = y[places][generator.random((permutations, len(places))).argsort(1)]
    return permuted


def centred_ranks(values: Array, layers: Whole) -> Array:
    """Rank values within each layer, less the mean rank."""
    ranks = pd.Series(values).groupby(layers).rank()
    return np.asarray(ranks - ranks.groupby(layers).transform("mean"), float)


def spearman(first: Array, second: Array) -> Array:
    """Compute the rank correlation of the rows of two arrays: [draws, heads] -> [draws]."""
    return pearson(stats.rankdata(first, axis=1), stats.rankdata(second, axis=1))


def pearson(first: Array, second: Array) -> Array:
    """Compute the correlation of the rows of two arrays: [draws, heads] -> [draws]; NaN if one is constant."""
    a, b = first - first.mean(1, keepdims=True), second - second.mean(1, keepdims=True)
    constant = (np.ptp(first, axis=1) == 0) | (
        np.ptp(second, axis=1) == 0
    )  # the mean of equal floats may differ from them
    with np.errstate(invalid="ignore"):
        return np.where(constant, np.nan, (a * b).sum(1) / np.sqrt((a**2).sum(1) * (b**2).sum(1)))
