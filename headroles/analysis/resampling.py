"""Permutation statistics of two groups of heads, stratified by layer: differences, ranks, correlations (no torch)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from headroles.analysis import intervals
from headroles.analysis.intervals import NONE, Array, Ends, p_value, rank_correlation
from headroles.tables.columns import ENDS

Bools = npt.NDArray[np.bool_]
Whole = npt.NDArray[np.int64]
PERMUTATIONS = 9999  # by default, for every permutation p


def strata(index: pd.Index) -> Whole:
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
    within, within_ends, p = _difference(held, y, layers, permuted_roles(held, layers, n_permutations, seed))
    statistics = {
        "difference": (difference, difference_ends),
        "median": _median(held, y, permutations),
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
    """Compute the chance that a head with the role has the larger value (ties half), and its 95 % interval."""
    count, rest = int(held.sum()), int((~held).sum())
    areas, errors = roc_areas(np.vstack([held, permutations]), y)
    known = 1 not in (count, rest) and (areas[0] in (0, 1) or _bounded(held, y, np.ones((len(y), 1), bool)))
    return float(areas[0]), intervals.auc(areas, errors, count, rest) if known else NONE


def roc_areas(roles: Bools, y: Array) -> tuple[Array, Array]:
    """Return areas under ROC curves of roles [draws, heads], and their standard errors (Brunner and Munzel 2000).

    The roles are sets of equally many heads. The errors allow for outcomes that are spread otherwise with the role than
    without; NaN for a single head on one side.
    """
    order = np.argsort(y)
    ascending, members = y[order], roles[:, order]
    first, last = (np.searchsorted(ascending, ascending, side) for side in ("left", "right"))
    among = np.pad(members.cumsum(1), ((0, 0), (1, 0)))  # members among the first heads: [draws, 1 + heads]
    members_below = (among[:, first] + among[:, last]) / 2  # ties half
    others_below = (first + last) / 2 - members_below
    count, rest = int(roles[0].sum()), int((~roles[0]).sum())
    areas = np.where(members, others_below, 0.0).sum(1) / (count * rest)
    middle = areas[:, None]
    squares = np.where(members, others_below / rest - middle, members_below / count - 1 + middle) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [
            (squares * side).sum(1) / (size * np.float64(size - 1))
            for side, size in ((members, count), (~members, rest))
        ]
    return areas, np.sqrt(sum(parts))


def _difference(held: Bools, y: Array, layers: Whole, permutations: Bools) -> tuple[float, Ends, float]:
    """A mean difference within layers, its interval and p; NaN if no layer has heads of both groups."""
    mixed = [layer for layer in np.unique(layers) if 0 < held[layers == layer].mean() < 1]
    if not mixed:
        return np.nan, NONE, np.nan
    members = layers[:, None] == np.array(mixed)
    differences, errors = contrasts(np.vstack([held, permutations]), y, members)
    observed = float(differences[0])
    if binary(y):  # their spread follows from the mean
        counts = np.stack([members[held].sum(0), members.sum(0), y @ members / members.sum(0)], axis=1)
        ends = intervals.chances(observed, counts, differences[1:]) if len(permutations) else NONE
        return observed, ends, p_value(differences[1:], observed)
    ends, p = intervals.studentised(differences, errors)
    return observed, ends if _bounded(held, y, members) else NONE, p


def contrasts(roles: Bools, y: Array, members: Bools) -> tuple[Array, Array]:
    """Return mean differences within layers of roles [draws, heads], and their standard errors.

    The roles have equally many heads in each layer of `members` [heads, layers]. Each head with the role is compared
    with the heads without it in its layer. The errors allow for outcomes that are spread otherwise with the role than
    without: for one layer they are Welch's (1938). NaN errors for a single head with the role.
    """
    sizes, counts = members.sum(0), members[roles[0]].sum(0)
    rest, count = sizes - counts, counts.sum()
    layer, compared = members.argmax(1), members.any(1)
    y = np.asarray(y, np.float64)
    y = y - y[members.argmax(0)][layer]  # exact where values are close
    parts = np.where(members, y[:, None] - y @ members / sizes, 0.0)  # distances from the layer's mean
    held = roles.astype(np.float64)
    sums = held @ parts  # [draws, layers]
    without = -sums / rest
    differences = (sums - counts * without).sum(1) / count
    if count == 1:  # a single head has no spread, which rounding would take for a small one
        return differences, np.full(len(roles), np.nan)
    away = np.where(compared, parts.sum(1) - without[:, layer], 0.0)  # from the heads without it: [draws, heads]
    spread_with = (held * (away - differences[:, None]) ** 2) @ compared
    spread_without = ((1 - held) * away**2) @ members
    pooled = spread_without.sum(1, keepdims=True) / max(1.0, (rest - 1).sum())
    variances = np.where(rest > 1, spread_without / np.maximum(rest - 1, 1), pooled) / rest
    shared = (variances * counts * (counts - 1)).sum(1)  # heads of a layer are compared with the same others
    return differences, np.sqrt((spread_with + shared) / (count * (count - 1)))


def _bounded(held: Bools, y: Array, members: Bools) -> bool:
    """Whether outcomes vary in both groups of these layers, and enough permutations differ for p to be below 0.05."""
    compared, counts, sizes = members.any(1), members[held].sum(0), members.sum(0)
    same = 2 if (2 * counts == sizes).all() else 1  # exchanged groups differ as much
    ways = math.prod(map(math.comb, sizes.tolist(), counts.tolist()))
    varied = all(np.ptp(y[group & compared]) > 0 for group in (held, ~held))
    return varied and ways * intervals.LEVEL > same


def _median(held: Bools, y: Array, permutations: Bools) -> tuple[float, Ends]:
    """A difference of medians and its interval, which takes their errors as proportional to those of the means."""
    roles = np.vstack([held, permutations])
    ordered = [y[np.nonzero(sets)[1]].reshape(len(roles), -1) for sets in (roles, ~roles)]
    medians = np.median(ordered[0], 1) - np.median(ordered[1], 1)
    whole = np.ones((len(y), 1), bool)
    errors = contrasts(roles, y, whole)[1]
    known = _bounded(held, y, whole) and not binary(y)
    return float(medians[0]), intervals.studentised(medians, errors)[0] if known else NONE


def _correlations(held: Bools, y: Array, difference: Ends) -> Ends:
    """Ends of the correlation with having the role, from those of the difference of means."""
    variance = float(held.mean() * (1 - held.mean()))
    residual = float(np.where(held, y - y[held].mean(), y - y[~held].mean()).var())
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
