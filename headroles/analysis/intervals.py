"""Intervals, permutation tests and corrections: shares, means, areas, correlations, resamples (no torch)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy  # its parts are imported at their first use: `scipy.stats` takes half a second

from headroles.tables.columns import ENDS

Array = npt.NDArray[np.floating]
Bools = npt.NDArray[np.bool_]
Whole = npt.NDArray[np.int64]
Ends = tuple[float, float]
NONE: Ends = (math.nan, math.nan)
LEVEL = 0.05  # quantiles of the resamples at half of it, from both ends, bound an interval
Z = 1.9599639845400545  # standard errors from the mean to a bound at this level
COARSE = 2**-13  # relative rounding of resamples, which have 13 significant bits
PRIOR = 0.2  # weight, in hits, of the prior that all tokens of a sentence behave alike
SINGLE = 0.25  # share of resamples without a value that separates one sentence from two
PERMUTATIONS = 9999  # by default, for every permutation p
FEW = 8  # the least number of pairs for an interval of their correlation


def wilson(share: Array, of: Array | int, z: Array | float = Z) -> tuple[Array, Array]:
    """Compute the interval of a share of counts (Wilson 1927): 95 % with the default `z`."""
    middle = (share + z**2 / (2 * of)) / (1 + z**2 / of)
    half = z / (1 + z**2 / of) * np.sqrt(share * (1 - share) / of + z**2 / (4 * of**2))
    low, high = np.where(share == 0, 0.0, middle - half), np.where(share == 1, 1.0, middle + half)
    return np.maximum(low, 0.0), np.minimum(high, 1.0)


def exact_share(share: float, of: int) -> Ends:
    """Compute the exact 95 % interval of a share of examples (Clopper and Pearson 1934): [.69, 1] for 10 of 10."""
    hits = share * of  # not an integer for a mean of values between 0 and 1, which varies at most as much
    low = float(scipy.special.betaincinv(hits, of - hits + 1, LEVEL / 2)) if hits > 0 else 0.0
    return low, float(scipy.special.betainccinv(hits + 1, of - hits, LEVEL / 2)) if hits < of else 1.0


def t_limit(freedom: Array | float) -> Array:
    """Return the standard errors from the mean to a bound at this level, by Student's t."""
    return np.asarray(-scipy.special.stdtrit(freedom, LEVEL / 2))


def share(values: Array, total: Array, clusters: Array) -> tuple[Array, Array]:
    """Return the 95 % interval of shares of queries that are clustered in sentences; NaN for a single sentence.

    It is Wilson's interval on the effective number of queries, estimated by the variance of the resamples, with t for z
    (Korn and Graubard 1998; Franco et al. 2019). Few hits do not show the correlation within sentences: their design
    effect is drawn towards the one of fully correlated sentences. `values` are the shares and their resamples, [heads,
    1 + resamples], `total` the number of queries, `clusters` the effective number of sentences, both [heads].
    """
    observed, squares = values[:, 0], (values[:, 1:] - values[:, :1]) ** 2
    with np.errstate(all="ignore"):
        spread = np.nansum(squares, axis=1) / np.isfinite(squares).sum(1) * clusters / (clusters - 1)
        size = np.minimum(np.where(spread > 0, observed * (1 - observed) / spread, clusters), total)
        hits = size * np.minimum(observed, 1 - observed)
        design, alike = total / size, np.maximum(total / clusters, total / size)
        size = total * (hits + PRIOR) / (hits * design + PRIOR * alike)
        low, high = wilson(observed, size, t_limit(clusters - 1))
    enough = np.isfinite(observed) & np.isfinite(squares).any(1) & (clusters > 1.5)  # a single sentence has no spread
    return np.where(enough, low, np.nan), np.where(enough, high, np.nan)


def clusters(totals: Array) -> Array:
    """Return the effective number of sentences, by the numbers of queries [..., 1 + resamples]; NaN without resamples.

    It is the squared total over the sum of squared counts (Kish 1965). Poisson counts have variance 1, so the variance
    of the resamples is the sum of the squared counts of the sentences.
    """
    if totals.shape[-1] < 2:
        return np.full(totals.shape[:-1], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(totals[..., 0] ** 2 / ((totals[..., 1:] - totals[..., :1]) ** 2).mean(-1))


def single(draws: Array) -> Bools:
    """Return which values, by resamples [heads, resamples], are of a single sentence, which has no spread: [heads].

    Such a value is NaN in e^-1 = 37 % of Poisson resamples, one of two sentences in 14 %.
    """
    lacking = np.isnan(draws)
    return np.asarray((lacking.mean(1) > SINGLE) & ~lacking.all(1)) if draws.shape[1] else np.zeros(len(draws), bool)


def over_seeds(values: Array) -> Ends:
    """Return the 95 % interval of a mean over seeds, by values [seeds, 1 + resamples]; NaN for a single seed.

    Student's t for the seeds and the normal for the examples; their half widths are added as squares.
    """
    seeds = len(values)
    if seeds < 2 or values.shape[1] < 2:
        return NONE
    middle, error = float(values[:, 0].mean()), float(values[:, 0].std(ddof=1)) / math.sqrt(seeds)
    half = math.hypot(t_limit(seeds - 1) * error, Z * float(np.nanstd(values[:, 1:].mean(0))))
    return middle - half, middle + half


def difference(values: Sequence[Array], ends: Sequence[Array], correlation: Array) -> tuple[Array, Array]:
    """Return the interval of new - old from the intervals of both numbers (Zou and Donner 2008).

    It need not be symmetric, so it holds for shares near 0 and 1. `values` are the old and the new number, two of
    [heads], and `ends` the ends of both, two of [2, heads]. The correlation of independent estimates is 0.
    """
    (old, new), ((old_low, old_high), (new_low, new_high)) = values, ends

    def half(less: Array, more: Array) -> Array:
        return np.asarray(np.sqrt(np.maximum(less**2 + more**2 - 2 * correlation * less * more, 0.0)))

    return new - old - half(new - new_low, old_high - old), new - old + half(new_high - new, old - old_low)


def rank_correlation(observed: float, pairs: int) -> Ends:
    """Compute the 95 % interval of Spearman's correlation (Bonett and Wright 2000); NaN for few pairs."""
    if pairs < FEW or not abs(observed) < 1 - 1e-12:
        return NONE
    return _fisher(observed, Z * math.sqrt((1 + observed**2 / 2) / (pairs - 3)))


def correlation(observed: float, draws: Array, pairs: int) -> Ends:
    """Compute the 95 % interval of Pearson's correlation: t and the spread of resamples, after Fisher's z."""
    varied = draws[np.abs(draws) < 1 - 1e-12]  # not NaN
    if pairs < FEW or len(varied) < 2 or not abs(observed) < 1 - 1e-12:
        return NONE
    return _fisher(observed, float(t_limit(pairs - 2)) * float(np.arctanh(varied).std()))


def _fisher(observed: float, half: float) -> Ends:
    """Return the interval of a correlation, with the half width `half` after Fisher's z."""
    return math.tanh(math.atanh(observed) - half), math.tanh(math.atanh(observed) + half)


def unskewed(ratio: Array | float, skewness: Array | float) -> Array:
    """Return the ratio of a mean to its standard error, corrected for the skewness of that mean (Hall 1992).

    With skewed values t rejects too often on one side. Hall's cubic transformation removes this to the first order. A
    mean of n values has their skewness over the root of n.
    """
    return np.asarray(ratio + skewness * ratio**2 / 3 + skewness**2 * ratio**3 / 27 + skewness / 6)


def t_test(mean: float, error: float, skewness: float, freedom: int) -> tuple[float, float, float]:
    """Return the 95 % interval of a mean and its two-sided p, by t or by unskewed t, whichever rejects less.

    The interval has the means that the test does not reject. Without an error the mean is certain.
    """
    if not error:
        return mean, mean, 0.0 if mean else 1.0
    limit, bend = float(t_limit(freedom)), skewness if abs(skewness) > 1e-6 else 1e-6
    least, most = (3 / bend * (np.cbrt(1 + bend * (end - bend / 6)) - 1) for end in (-limit, limit))  # unskewed: end
    ratio = min(abs(mean / error), abs(float(unskewed(mean / error, skewness))))
    ends = mean - error * max(limit, float(most)), mean - error * min(-limit, float(least))
    return *ends, float(2 * scipy.special.stdtr(freedom, -ratio))


def least_p(examples: int) -> float:
    """Return the least p of a paired test on so many examples: the p of a sign test; never 0."""
    return max(2.0 ** (1 - max(examples, 1)), float(np.finfo(float).tiny))


def no_surer(low: Array, high: Array, p: Array, examples: Array | int) -> tuple[Array, Array, Array]:
    """Return ends and p of paired tests on so many examples: p is at least `least_p`, and the ends say no more."""
    least = np.vectorize(least_p, otypes=[float])(examples)
    inside = least > LEVEL
    return np.where(inside, np.minimum(low, 0), low), np.where(inside, np.maximum(high, 0), high), np.maximum(p, least)


def p_value(permuted: Array, observed: float) -> float:
    """Compute a two-sided permutation p; the observed number counts as one of the permutations."""
    near = 1e-12 * max(float(np.abs(permuted).max(initial=0)), abs(observed))
    return float((1 + (np.abs(permuted) >= abs(observed) - near).sum()) / (1 + len(permuted)))


def studentised(estimates: Array, errors: Array) -> tuple[Ends, float]:
    """Return the 95 % interval and p of an estimate, by permutation of its ratio to its standard error.

    Estimates and errors are the observed ones, then those under each permutation, which expects 0. It holds also if the
    two groups are spread differently (Janssen 1997; Chung and Romano 2013). Ends are NaN for too few permutations.
    """
    observed, error, least = float(estimates[0]), float(errors[0]), 1e-6 * float(errors.max())
    if not least > 0:
        return NONE, p_value(estimates[1:], observed)
    ratios, enough = estimates / np.maximum(errors, least), needed(len(estimates) - 1)
    p, sizes = p_value(ratios[1:], float(ratios[0])), np.sort(np.abs(ratios[1:]))
    near = 1e-12 * float(sizes.max(initial=0))
    if not enough or error < least:
        return NONE, p
    half = float(sizes[-enough] + near) * error
    return (observed - half, observed + half), p


def chances(observed: float, counts: Array, permuted: Array) -> Ends:
    """Return the 95 % score interval of a difference of chances over strata.

    0 is outside exactly where permutation rejects it. NaN for too few permutations, or if the strata do not vary.
    `counts` are heads with the role, heads, and mean outcome of each stratum: [strata, 3].
    """
    held, sizes, mean = counts.T
    weight = held / held.sum()

    def error(at: float) -> float:
        with_role = np.clip(mean + at * (sizes - held) / sizes, 0, 1)
        without = np.clip(mean - at * held / sizes, 0, 1)
        variance = with_role * (1 - with_role) / held + without * (1 - without) / (sizes - held)
        return math.sqrt(float((weight**2 * variance * sizes / (sizes - 1)).sum()))

    return _score_ends(observed, error, permuted, error(0.0), -1.0, 1.0) if error(0.0) else NONE


# Many limits, in standard errors, reject the same permutations: taken is the one nearest to the limit of the normal
# distribution. It lies above the last permutation that is not rejected, and below the first that is.
def _score_ends(
    observed: float, error: Callable[[float], float], permuted: Array, spread: float, least: float, most: float
) -> Ends:
    """Return the ends, from `least` to `most`, that are as many errors away as permutation rejects at 5 %.

    The error is computed at the end itself. That of the permuted numbers, which expect 0, is `spread`. NaN for too few
    permutations.
    """
    if not (enough := needed(len(permuted))):
        return NONE
    sizes = np.sort(np.abs(permuted))
    last = float(sizes[-enough] + 1e-9 * sizes[-1])
    rejected = sizes[sizes > last]
    upper = float(rejected[0]) * (1 - 1e-6) / spread if len(rejected) else math.inf
    limit = min(max(Z, last / spread), upper)

    def beyond(at: float) -> float:
        return abs(observed - at) - limit * error(at)

    ends = []
    for end in (least, most):
        steps = pairwise(np.linspace(observed, end, 201).tolist())
        inside, outside = next((step for step in steps if beyond(step[1]) > 0), (end, None))
        crosses = outside is not None and beyond(inside) < 0
        ends.append(float(scipy.optimize.brentq(beyond, inside, outside)) if crosses else inside)
    return ends[0], ends[1]


def needed(permutations: int) -> int:
    """Return how many permutations must be as far from 0 as the observed number for p of at least 0.05."""
    return max(0, math.ceil(LEVEL * (1 + permutations) - 1 - 1e-9))


def bootstrap_counts(numbers: Sequence[int], n_resamples: int, seed: int) -> Array:
    """Return how often sentences count in the corpus (once) and in each resample: [1 + resamples, sentence].

    Counts are Poisson(1) by the seed and the sentence's number alone (Hanley & MacGibbon 2006).
    """
    rows = [np.random.Generator(np.random.Philox(key=[seed, n])).poisson(1.0, n_resamples) for n in numbers]
    return np.concatenate([np.ones((1, len(numbers))), np.stack(rows, axis=1)])


def bounds(draws: Array) -> tuple[Array, Array]:
    """Return the 95 % percentile interval of values [heads, resamples], ignoring NaN; NaN without: two of [heads]."""
    quantiles, numbers = np.full((2, len(draws)), np.nan), np.sum(~np.isnan(draws), axis=1)
    for count in np.unique(numbers[numbers > 0]):
        rows = numbers == count
        known = np.sort(draws[rows], axis=1)[:, :count]  # NaN are last
        quantiles[:, rows] = np.quantile(known, [LEVEL / 2, 1 - LEVEL / 2], axis=1)
    return quantiles[0], quantiles[1]


def rounded(draws: Array) -> npt.NDArray[np.float32]:
    """Round resampled values to 13 significant bits, far finer than their error: files take half the space."""
    half = np.uint32(1 << 10)  # of the last of the 12 bits kept after the leading one
    bits = draws.astype(np.float32).view(np.uint32)
    return ((bits + half) & ~np.uint32(2 * half - 1)).view(np.float32)


def holm(p: Array) -> Array:
    """Correct p by Holm (1979), which controls the chance of any false finding."""
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.asarray(np.minimum(steps, 1)[np.argsort(order)])


def benjamini_hochberg(p: Array) -> Array:
    """Correct p by Benjamini and Hochberg (1995), which controls the share of false findings."""
    return np.asarray(scipy.stats.false_discovery_control(p))


def corrections(p: Array) -> dict[str, Array]:
    """Correct p, of any shape, over all that are not NaN: "holm" and "bh"."""
    values, known = {name: np.full(p.shape, np.nan) for name in ("holm", "bh")}, np.isfinite(p)
    if known.any():
        values["holm"][known], values["bh"][known] = holm(p[known]), benjamini_hochberg(p[known])
    return values


def corrected(table: pd.DataFrame) -> pd.DataFrame:
    """Add columns `holm` and `bh` after `p`, computed over the rows that have one."""
    for place, (name, values) in enumerate(corrections(table["p"].to_numpy(float)).items(), list(table).index("p") + 1):
        table.insert(place, name, values)
    return table


def strata(index: pd.Index) -> Whole:
    """Return the layer of each head within its kind, as a number: [heads]."""
    layers: Whole = pd.MultiIndex.from_tuples([head[:2] for head in index]).factorize()[0]
    return layers


def relation(
    held: Bools, margin: Array, y: Array, layers: Whole, n_resamples: int, n_permutations: int, seed: int
) -> dict[str, float]:
    """Return the numbers of `hr.relate` for a role and an outcome, with intervals; NaN if undefined.

    Of each head there is whether it has the role (`held`), how far it is above the role's threshold, the outcome, and
    its layer as numbered by `strata`. The role is permuted `n_resamples` times over all heads, for intervals, and
    `n_permutations` times within layers, for p and the interval of `within`.
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
        "spearman": (rank, rank_correlation(rank, len(y)) if n_resamples else NONE),
        "within": (within, within_ends),
    }
    row: dict[str, float] = {}
    for name, (value, ends) in statistics.items():
        row |= with_ends(name, value, ends)
    return row | {"p": p}


def with_ends(name: str, value: float, ends: Ends) -> dict[str, float]:
    """Return a number and the ends of its interval by column: name, name.low, name.high."""
    return dict(zip((f"{name}{end}" for end in ENDS), (value, *ends), strict=True))


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
    """Return the chance that a head with the role has the larger value (ties half), and its 95 % interval.

    The interval is symmetric on the scale of logits (Pauly et al. 2016). If the groups do not overlap, it is by the
    fifth method of Newcombe (2006). 0.5 is outside exactly where permutation of the role rejects it. NaN for too few
    permutations.
    """
    areas, errors = roc_areas(np.vstack([held, permutations]), y)
    observed, count, rest, more = float(areas[0]), int(held.sum()), int((~held).sum()), len(y) / 2 - 1

    def error(at: float) -> float:
        return math.sqrt(at * (1 - at) * (1 + more * (1 - at) / (2 - at) + more * at / (1 + at)) / (count * rest))

    if 1 not in (count, rest) and observed in (0.0, 1.0):
        return observed, _score_ends(observed, error, areas[1:] - 0.5, error(0.5), 0.0, 1.0)
    if 1 in (count, rest) or not _bounded(held, y, np.ones((len(y), 1), bool)):
        return observed, NONE
    inside = np.clip(areas, 1e-9, 1 - 1e-9)
    (low, high), _ = studentised(scipy.special.logit(inside), errors / (inside * (1 - inside)))
    return observed, (float(scipy.special.expit(low)), float(scipy.special.expit(high)))


def roc_areas(roles: Bools, y: Array) -> tuple[Array, Array]:
    """Return areas under ROC curves of roles [draws, heads], and their standard errors (Brunner and Munzel 2000).

    The roles have equally many heads. The errors allow for another spread of outcomes with the role than without; NaN
    for a single head on one side.
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
        sides = ((members, count), (~members, rest))
        parts = [(squares * side).sum(1) / (size * np.float64(size - 1)) for side, size in sides]
    return areas, np.sqrt(sum(parts))


def _difference(held: Bools, y: Array, layers: Whole, permutations: Bools) -> tuple[float, Ends, float]:
    """Return a mean difference within layers, its interval and p; NaN if no layer has heads of both groups."""
    mixed = [layer for layer in np.unique(layers) if 0 < held[layers == layer].mean() < 1]
    if not mixed:
        return np.nan, NONE, np.nan
    members = layers[:, None] == np.array(mixed)
    differences, errors = contrasts(np.vstack([held, permutations]), y, members)
    observed = float(differences[0])
    if binary(y):  # their spread follows from the mean
        counts = np.stack([members[held].sum(0), members.sum(0), y @ members / members.sum(0)], axis=1)
        ends = chances(observed, counts, differences[1:]) if len(permutations) else NONE
        return observed, ends, p_value(differences[1:], observed)
    ends, p = studentised(differences, errors)
    return observed, ends if _bounded(held, y, members) else NONE, p


def contrasts(roles: Bools, y: Array, members: Bools) -> tuple[Array, Array]:
    """Return mean differences within layers of roles [draws, heads], and their standard errors.

    The roles have equally many heads in each layer of `members` [heads, layers]. Each head with the role is compared
    with the heads without it in its layer. The errors allow for another spread of outcomes with the role than without:
    for one layer they are Welch's (1938). NaN errors for a single head with the role.
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
    if count == 1:  # a single head has no spread, but rounding would give a small one
        return differences, np.full(len(roles), np.nan)
    away = np.where(compared, parts.sum(1) - without[:, layer], 0.0)  # from the heads without it: [draws, heads]
    spread_with = (held * (away - differences[:, None]) ** 2) @ compared
    spread_without = ((1 - held) * away**2) @ members
    pooled = spread_without.sum(1, keepdims=True) / max(1.0, (rest - 1).sum())
    variances = np.where(rest > 1, spread_without / np.maximum(rest - 1, 1), pooled) / rest
    shared = (variances * counts * (counts - 1)).sum(1)  # heads of a layer are compared with the same others
    return differences, np.sqrt((spread_with + shared) / (count * (count - 1)))


def _bounded(held: Bools, y: Array, members: Bools) -> bool:
    """Return whether outcomes vary in both groups of these layers, and enough permutations differ for p below 0.05."""
    compared, counts, sizes = members.any(1), members[held].sum(0), members.sum(0)
    same = 2 if (2 * counts == sizes).all() else 1  # exchanged groups differ as much
    ways = math.prod(map(math.comb, sizes.tolist(), counts.tolist()))
    varied = all(np.ptp(y[group & compared]) > 0 for group in (held, ~held))
    return varied and ways * LEVEL > same


def _median(held: Bools, y: Array, permutations: Bools) -> tuple[float, Ends]:
    """A difference of medians and its interval: errors of medians are taken as proportional to errors of means."""
    roles = np.vstack([held, permutations])
    ordered = [y[np.nonzero(sets)[1]].reshape(len(roles), -1) for sets in (roles, ~roles)]
    medians = np.median(ordered[0], 1) - np.median(ordered[1], 1)
    whole = np.ones((len(y), 1), bool)
    errors = contrasts(roles, y, whole)[1]
    known = _bounded(held, y, whole) and not binary(y)
    return float(medians[0]), studentised(medians, errors)[0] if known else NONE


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
    return pearson(scipy.stats.rankdata(first, axis=1), scipy.stats.rankdata(second, axis=1))


def pearson(first: Array, second: Array) -> Array:
    """Compute the correlation of the rows of two arrays: [draws, heads] -> [draws]; NaN if one is constant."""
    a, b = first - first.mean(1, keepdims=True), second - second.mean(1, keepdims=True)
    # the mean of equal floats may differ from them
    constant = (np.ptp(first, axis=1) == 0) | (np.ptp(second, axis=1) == 0)
    with np.errstate(invalid="ignore"):
        return np.where(constant, np.nan, (a * b).sum(1) / np.sqrt((a**2).sum(1) * (b**2).sum(1)))
