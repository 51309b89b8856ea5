"""Statistics of two groups of heads that respect layers: differences, ranks, dealing out anew (no torch)."""

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
    """The layer of each head, of its kind, as a number: [heads]."""
    layers: Whole = pd.MultiIndex.from_tuples([head[:2] for head in index]).factorize()[0]
    return layers


def relation(
    held: Bools, margin: Array, y: Array, layers: Whole, n_resamples: int, n_permutations: int, seed: int
) -> dict[str, float]:
    """The numbers of a role and an outcome, each with `.low` and `.high`, and p of `within`; NaN where there is none.

    Intervals over all heads come from `resamples` ways to deal the role out anew among them, that of `within` from the
    `permutations` ways, within layers, that its p counts.
    """
    heads_per_batch = np.zeros_like(layers)
    dealings = dealt(held, heads_per_batch, n_resamples, seed)
    difference, span, _ = _difference(held, y, heads_per_batch, dealings)
    area, ends = auc(held, y, dealings)
    if binary(y) and n_resamples:  # the area is half of the difference, and half
        ends = (1 + span[0]) / 2, (1 + span[1]) / 2
    rank = float(spearman(margin[None], y[None])[0])
    within, inside, p = _within(held, y, layers, n_permutations, seed)
    found = {
        "difference": (difference, span),
        "median": (float(np.median(y[held]) - np.median(y[~held])), _median(held, y, dealings)),
        "auc": (area, ends),
        "rank_biserial": (2 * area - 1, (2 * ends[0] - 1, 2 * ends[1] - 1)),
        "point_biserial": (float(pearson(held[None].astype(float), y[None])[0]), _correlations(held, y, span)),
        "spearman": (rank, rank_correlation(rank, len(y)) if n_resamples else NONE),
        "within": (within, inside),
    }
    if 1 in (held.sum(), (~held).sum()):
        found |= {name: (value, NONE) for name, (value, _) in found.items() if name != "spearman"}
    row = {
        f"{name}{end}": each
        for name, (value, both) in found.items()
        for end, each in zip(ENDS, (value, *both), strict=True)
    }
    return row | {"p": p}


def binary(y: Array) -> bool:
    """Whether an outcome is 0 or 1."""
    return bool(np.isin(y, (0.0, 1.0)).all())


def dealt(held: Bools, layers: Whole, dealings: int, seed: int) -> Bools:
    """Which heads have the role when it is dealt out anew, to as many of each layer: [dealings, heads]."""
    random = np.random.default_rng(seed)
    found = np.repeat(held[None], dealings, axis=0)
    for layer in np.unique(layers):
        here = np.flatnonzero(layers == layer)
        many, own = len(here), int(held[here].sum())
        if 0 < own < many:
            chosen = random.random((dealings, many)).argsort(1)[:, :own]
            found[:, here] = False
            np.put_along_axis(found, here[chosen], True, axis=1)
    return found


def auc(held: Bools, y: Array, dealings: Bools) -> tuple[float, Ends]:
    """The chance that a head with the role has the larger value (ties half), and its interval."""
    ours, rest, ranks = int(held.sum()), int((~held).sum()), stats.rankdata(y)
    found, areas = ((each @ ranks - ours * (ours + 1) / 2) / (ours * rest) for each in (held, dealings))
    known = len(dealings) > 0 and 1 not in (ours, rest)
    return float(found), intervals.auc(float(found), ours, rest, areas) if known else NONE


def _within(held: Bools, y: Array, layers: Whole, n_permutations: int, seed: int) -> tuple[float, Ends, float]:
    """The mean difference of heads with the role from those without in their layer, its interval and its p.

    NaN where no layer has both, and then p is 1.
    """
    if not _weights(held, layers).any():
        return np.nan, NONE, 1.0
    within, ends, others = _difference(held, y, layers, dealt(held, layers, n_permutations, seed))
    return within, ends, p_value(others, within)


def _difference(held: Bools, y: Array, layers: Whole, dealings: Bools) -> tuple[float, Ends, Array]:
    """A difference of means within layers, its interval, and what it is when the role is dealt out anew: [dealings]."""
    weights = _weights(held, layers)
    parts = np.stack([weights * (each - _means(each, layers)) for each in (y, held.astype(float))], axis=1)
    found, others, overlap = float((held @ parts)[0]), *(dealings @ parts).T
    if not len(dealings):
        return found, NONE, others
    if not binary(y):
        return found, shift(found, others, overlap), others
    both = [layers == layer for layer in np.unique(layers[weights > 0])]
    counts = np.array([(held[here].sum(), here.sum(), y[here].mean()) for here in both])
    return found, chances(found, counts, others), others


def _weights(held: Bools, layers: Whole) -> Array:
    """What a head's distance from the mean of its layer adds to the mean difference; 0 where no head is otherwise."""
    share = _means(held.astype(float), layers)
    mixed = (share > 0) & (share < 1)
    return np.where(mixed, 1 / np.where(mixed, 1 - share, 1) / max(1, int((held & mixed).sum())), 0.0)


def _means(values: Array, layers: Whole) -> Array:
    """The mean of each head's layer."""
    return np.asarray((np.bincount(layers, values) / np.maximum(np.bincount(layers), 1))[layers])


def _median(held: Bools, y: Array, dealings: Bools) -> Ends:
    """The interval of a difference of medians, from what dealing out anew makes of outcomes less the difference."""
    found = float(np.median(y[held]) - np.median(y[~held]))
    needed = intervals.needed(len(dealings))
    if not needed or binary(y):
        return NONE
    less = y - found * held
    one, other = (less[np.nonzero(each)[1]].reshape(len(dealings), -1) for each in (dealings, ~dealings))
    half = float(np.sort(np.abs(np.median(one, 1) - np.median(other, 1)))[-needed])
    return (found - half, found + half) if half else NONE


def _correlations(held: Bools, y: Array, difference: Ends) -> Ends:
    """The ends of the correlation with having the role, from those of the difference of means."""
    share = float(held.mean() * (1 - held.mean()))
    rest = float(((y - _means(y, held.astype(int))) ** 2).mean())
    both = np.array(difference)
    if binary(y):
        low, high = np.clip(both * np.sqrt(share) / y.std(), -1, 1)
    else:
        low, high = both * np.sqrt(share) / np.sqrt(rest + both**2 * share)
    return float(low), float(high)


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
