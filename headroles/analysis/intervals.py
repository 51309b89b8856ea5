"""Intervals that hold in small samples: of shares, areas under curves, shifts, correlations, means over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

Array = npt.NDArray[np.floating[Any]]
Ends = tuple[float, float]
NONE: Ends = (math.nan, math.nan)
LEVEL = 0.05
Z = float(stats.norm.isf(LEVEL / 2))
PRIOR = 0.2  # so many hits weigh the belief that all tokens of a sentence behave alike
FEW = 8  # fewer pairs than that say nothing of where their correlation ends


def wilson(share: Any, of: Any, z: Any = Z) -> tuple[Any, Any]:
    """The interval of a share of counts (Wilson 1927): 95 % with the default `z`."""
    middle = (share + z**2 / (2 * of)) / (1 + z**2 / of)
    half = z / (1 + z**2 / of) * np.sqrt(share * (1 - share) / of + z**2 / (4 * of**2))
    low, high = np.where(share == 0, 0.0, middle - half), np.where(share == 1, 1.0, middle + half)
    return np.maximum(low, 0.0), np.minimum(high, 1.0)


def share(values: Array, total: Array, clusters: Array) -> tuple[Array, Array]:
    """The 95 % interval of shares of queries that come in sentences: two of [heads].

    `values` are each share and its bootstrap resamples of sentences, [heads, 1 + resamples]; `total` the queries and
    `clusters` the sentences, in effect: squared total over the sum of squares of a sentence's queries (Kish 1965). It
    is Wilson's interval on the effective number of queries that the variance of the resamples says, with t for z
    (Korn and Graubard 1998; Franco et al. 2019). Few hits say little of how alike the queries of a sentence are: their
    design effect is drawn towards that of sentences whose queries are all alike.
    """
    found, away = values[:, 0], (values[:, 1:] - values[:, :1]) ** 2
    with np.errstate(all="ignore"):
        spread = np.nansum(away, axis=1) / np.isfinite(away).sum(1) * clusters / (clusters - 1)
        of = np.minimum(np.where(spread > 0, found * (1 - found) / spread, clusters), total)
        hits = of * np.minimum(found, 1 - found)
        design, alike = total / of, np.maximum(total / clusters, total / of)
        of = total * (hits + PRIOR) / (hits * design + PRIOR * alike)
        low, high = wilson(found, of, stats.t.isf(LEVEL / 2, clusters - 1))
    known = np.isfinite(found) & (clusters > 1.5)  # a single sentence has no spread
    return np.where(known, low, np.nan), np.where(known, high, np.nan)


def clusters(totals: Array) -> Array:
    """How many sentences there are in effect, from how many queries there are in all and in each resample: [..., 1+n].

    Poisson's counts have variance 1: that of the resamples is the sum of the squares of a sentence's queries.
    """
    whole = totals[..., :1]
    if totals.shape[-1] < 2:  # without resamples nothing is known of it
        return np.full(totals.shape[:-1], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(whole[..., 0] ** 2 / ((totals[..., 1:] - whole) ** 2).mean(-1))


def over_seeds(values: Array) -> Ends:
    """The 95 % interval of a mean over seeds, from each seed's value on the examples and on resamples: [seed, 1 + n].

    Student's t for the seeds and the normal for the examples, their half widths added as squares; none for one seed.
    """
    seeds = len(values)
    if seeds < 2 or values.shape[1] < 2:
        return NONE
    middle, error = float(values[:, 0].mean()), float(values[:, 0].std(ddof=1)) / math.sqrt(seeds)
    half = math.hypot(float(stats.t.isf(LEVEL / 2, seeds - 1)) * error, Z * float(np.nanstd(values[:, 1:].mean(0))))
    return middle - half, middle + half


def rank_correlation(found: float, pairs: int) -> Ends:
    """The 95 % interval of Spearman's correlation (Bonett and Wright 2000); none for few pairs or a perfect one."""
    if pairs < FEW or not abs(found) < 1 - 1e-12:
        return NONE
    half = Z * math.sqrt((1 + found**2 / 2) / (pairs - 3))
    return math.tanh(math.atanh(found) - half), math.tanh(math.atanh(found) + half)


def correlation(found: float, draws: Array, pairs: int) -> Ends:
    """The 95 % interval of Pearson's correlation: t and the spread of resamples, both after Fisher's z."""
    known = draws[np.abs(draws) < 1 - 1e-12]  # not NaN
    if pairs < FEW or len(known) < 2 or not abs(found) < 1 - 1e-12:
        return NONE
    half = float(stats.t.isf(LEVEL / 2, pairs - 2)) * float(np.arctanh(known).std())
    return math.tanh(math.atanh(found) - half), math.tanh(math.atanh(found) + half)


def least_p(examples: int) -> float:
    """The least p of a paired test on so many examples: what a test by their signs could reach; never 0."""
    return max(2.0 ** (1 - max(examples, 1)), float(np.finfo(float).tiny))


def p_value(dealt: Array, found: float) -> float:
    """How often a number is as far from 0 when the role is dealt out anew, itself counted as one of the dealings."""
    near = 1e-12 * max(float(np.abs(dealt).max(initial=0)), abs(found))
    return float((1 + (np.abs(dealt) >= abs(found) - near).sum()) / (1 + len(dealt)))


def shift(found: float, dealt: Array, overlap: Array) -> Ends:
    """By how much a role shifts an outcome: all shifts that a permutation test does not reject at 5 % (95 % interval).

    `found` is a difference of means, `dealt` the same when the role is dealt out anew, [dealings], `overlap` what of a
    shift of 1 is left then. So 0 is outside exactly where `p_value` is below 0.05. None where there are too few ways
    to deal the role out, or nothing varies but by the shift.
    """
    enough = needed(len(dealt))
    scale = 1e-12 * max(float(np.abs(dealt).max(initial=0)), abs(found))
    parts = np.stack([found - dealt, found + dealt])
    rest = np.stack([1 - overlap, 1 + overlap])
    with np.errstate(divide="ignore", invalid="ignore"):
        crossed = np.where(np.abs(parts) <= scale, 0.0, parts) / rest
    always = (rest < 1e-9).any(0)  # the same heads, or all the others, again
    lows = np.sort(np.where(always, -np.inf, crossed.min(0)))
    highs = np.sort(np.where(always, np.inf, crossed.max(0)))
    low, high = (float(lows[enough - 1]), float(highs[-enough])) if enough else (-math.inf, math.inf)
    return (low, high) if math.isfinite(low) and high - low > scale else NONE


def critical(dealt: Array, error: float) -> float:
    """How many standard errors from its expectation a number is rejected at 5 % when the role is dealt out anew.

    `dealt` are its distances when it is, `error` its standard error where the role does nothing. Of all limits that
    reject the same dealings it is the one nearest to the normal distribution's.
    """
    sizes, enough = np.sort(np.abs(dealt)), needed(len(dealt))
    last = float(sizes[-enough]) if enough else math.inf
    near = 1e-9 * float(sizes[-1]) if len(sizes) else 0.0
    beyond = sizes[sizes > last + near]
    upper = float(beyond[0]) * (1 - 1e-6) / error if len(beyond) else math.inf
    return min(max(Z, (last + near) / error), upper)


def auc(found: float, ours: int, rest: int, dealt: Array) -> Ends:
    """The 95 % interval of the area under a ROC curve (Newcombe 2006, method 5), `dealt` when a role is dealt out anew.

    0.5 is outside where dealing out rejects it: there the standard error is that of Mann and Whitney's test.
    """
    more = (ours + rest) / 2 - 1

    def error(at: float) -> float:
        return math.sqrt(at * (1 - at) * (1 + more * (1 - at) / (2 - at) + more * at / (1 + at)) / (ours * rest))

    return _solved(found, error, critical(dealt - 0.5, error(0.5)), 0.0, 1.0)


def chances(found: float, counts: Array, dealt: Array) -> Ends:
    """The 95 % score interval of a difference of chances over strata, `dealt` when a role is dealt out anew.

    `counts` are of each stratum how many have the role, how many there are, and the mean: [stratum, 3]. A stratum keeps
    its mean whatever the difference is. 0 is outside where dealing out rejects it.
    """
    ours, many, mean = counts.T
    weight = ours / ours.sum()

    def error(at: float) -> float:
        one = np.clip(mean + at * (many - ours) / many, 0, 1)
        other = np.clip(mean - at * ours / many, 0, 1)
        variance = one * (1 - one) / ours + other * (1 - other) / (many - ours)
        return math.sqrt(float((weight**2 * variance * many / (many - 1)).sum()))

    return _solved(found, error, critical(dealt, error(0.0)), -1.0, 1.0) if error(0.0) else NONE


def _solved(found: float, error: Callable[[float], float], limit: float, least: float, most: float) -> Ends:
    """Where a number is `limit` standard errors away, each taken at the end itself."""
    if not math.isfinite(limit):
        return NONE

    def beyond(at: float) -> float:
        return abs(found - at) - limit * error(at)

    ends = []
    for end in (least, most):
        away = np.linspace(found, end, 201)[1:]
        first = next((place for place, at in enumerate(away) if beyond(float(at)) > 0), None)
        if first is None:
            ends.append(end)
            continue
        inside = found if first == 0 else float(away[first - 1])
        ends.append(float(optimize.brentq(beyond, inside, float(away[first]))) if beyond(inside) < 0 else inside)
    return ends[0], ends[1]


def needed(dealings: int) -> int:
    """How many dealings must be as far from 0 for p of at least 0.05."""
    return max(0, math.ceil(LEVEL * (1 + dealings) - 1 - 1e-9))
