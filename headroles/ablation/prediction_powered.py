"""Prediction-powered effects: predictions on all examples, corrected by ablations on some, without bias."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from headroles.ablation.example_stats import ExampleStats, HeadSet
from headroles.ablation.sweep import Sweep
from headroles.analysis.intervals import Array, t_limit, t_test

FIRST, GROWTH = 64, 1.25  # examples before the first check of the intervals, and the growth from each check to the next
CHANGED = 16  # examples that an ablation must have changed before its interval is reliable

log = logging.getLogger(__name__)


def run_until_precise(sweep: Sweep, variants: list[HeadSet], precision: float) -> ExampleStats:
    """Return predictions on all examples, and ablations on random ones until intervals are narrow enough.

    A variant is finished once its interval is at most `precision` times as wide as that of the whole corpus, which is
    checked at `interim_sizes`; the other examples are NaN.
    """
    stats = sweep.predict(variants).measured()
    assert stats.predicted is not None
    stats = replace(stats, sizes=sizes(stats.predicted.values()))
    measured, rng = set(stats.numbers), np.random.default_rng(sweep.seed)
    order = drawn(stats, [number for number in sweep.examples if number in measured], rng)
    remaining = list(variants)
    for start, end in pairwise([0, *interim_sizes(len(order))]):
        stats = _filled(stats, sweep.run(remaining, rows=sorted(order[start:end].tolist())))
        if end < len(order):
            finished = precise(stats, remaining, precision)
            remaining = [variant for variant, done in zip(remaining, finished, strict=True) if not done]
            log.info("%d examples: %d of %d variants continue", end, len(remaining), len(variants))
        if not remaining:
            break
    return stats.check()


def drawn(statistics: ExampleStats, examples: Sequence[int], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Order examples at random; those with a larger size tend to be earlier (probabilities: `chances`)."""
    assert statistics.sizes is not None
    size = dict(zip(statistics.numbers, statistics.sizes, strict=True))
    ranks = rng.random(len(examples)) / [size[number] for number in examples]
    return np.asarray(examples)[np.argsort(ranks)]


def interim_sizes(examples: int) -> list[int]:
    """Return the growing numbers of examples after which intervals are checked; the last is all of them."""
    ends = [FIRST]
    while ends[-1] < examples:
        ends.append(max(ends[-1] + 1, int(ends[-1] * GROWTH)))
    return [*ends[:-1], examples]


def precise(statistics: ExampleStats, variants: list[HeadSet], precision: float) -> list[bool]:
    """Return for each variant whether its interval is narrow enough and enough examples changed."""
    assert statistics.predicted is not None
    return [
        estimate.widening <= precision
        and (estimate.changed >= CHANGED or not statistics.predicted[variant].any())  # nothing depends on these heads
        for estimate, variant in zip(estimates(statistics, variants), variants, strict=True)
    ]


def _filled(before: ExampleStats, more: ExampleStats) -> ExampleStats:
    """Fill in the statistics of some examples; examples that were not run have NaN."""
    places = {number: place for place, number in enumerate(before.numbers)}
    rows = [places[number] for number in more.numbers]
    empty = np.full_like(before.intact, np.nan)
    masked = {variant: before.masked.get(variant, empty).copy() for variant in before.predicted or ()}
    intact = before.intact.copy()
    intact[rows] = more.intact
    for variant, values in more.masked.items():
        masked[variant][rows] = values
    return replace(before, intact=intact, masked=masked)


@dataclass(frozen=True)
class Estimate:
    """Estimated effect of a variant on the mean of a metric."""

    effect: float
    error: float  # standard error as an estimate for the population that the corpus was drawn from
    whole_error: float  # standard error if the whole corpus were ablated
    corpus_error: float  # standard error as an estimate of the effect on this corpus; 0 if all of it was ablated
    freedom: int  # degrees of freedom of the residuals
    slope: float  # effect per unit of the predicted one: lambda of PPI++ x (1 + n / N), n ablated, N others
    explained: float  # share of the variance over the ablated examples that the prediction explains
    changed: int  # number of ablated examples that the ablation changed; few prove little, however small the error
    influence: Array  # of each example on the estimate, sums to 0: [example]

    @property
    def tested(self) -> tuple[float, float, float]:
        """The 95 % interval for the population and the two-sided p of no effect; NaN without degrees of freedom."""
        if self.freedom < 1:
            return np.nan, np.nan, np.nan
        skewness = (self.influence**3).sum() / (self.influence**2).sum() ** 1.5 if self.error else 0.0
        return t_test(self.effect, self.error, float(skewness), self.freedom)

    @property
    def half_width(self) -> float:
        """Half the width of the interval without regard to skewness."""
        return float(t_limit(self.freedom) * self.error) if self.freedom > 0 else np.nan

    @property
    def widening(self) -> float:
        """Width of the interval over the width if the whole corpus were ablated."""
        whole = float(t_limit(len(self.influence) - 1)) * self.whole_error
        return self.half_width / whole if whole else 1.0


def estimate(change: Array, steps: Array, predicted: Array, chance: Array | None = None) -> Estimate:
    """Return the estimated change of a metric, sum(change) / sum(steps) over all examples, by ablating some of them.

    The change on the ablated examples (NaN on the others) is regressed on its prediction and on the number of steps.
    The means of these two over all examples are known. The estimate is the regression at these means: a
    prediction-powered mean (Angelopoulos et al. 2023) with fitted weights, in survey sampling the regression estimator
    (Cochran 1977, chapter 7). With examples of one length it is PPI++ (2023b, arXiv 2311.01453) with its best lambda,
    which the authors' code limits to [0, 1]. A prediction that explains nothing gets a slope near 0; then the estimate
    is the mean over the ablated examples.

    The jackknife removes the bias of a slope that is fitted on the same examples, and gives the errors: residuals are
    divided by 1 - leverage, so that errors hold where examples differ in spread.

    Args:
        change: Change of each example, NaN where it was not ablated: [example].
        steps: Number of steps of each example: [example].
        predicted: Predicted change of each example: [example].
        chance: Probability of each example to be ablated, by default the same for all: [example]. Examples have weights
            of 1 / chance (Sarndal, Swensson and Wretman 1992, chapter 6).

    Returns:
        The estimate.
    """
    ablated = np.isfinite(change)
    count, size, mean_steps = int(ablated.sum()), len(change), float(steps.mean())
    kept = np.full(count, count / size) if chance is None else chance[ablated]  # probability of each ablated example
    balance = count / size / kept  # weight, 1 if all are as probable
    design = np.stack([np.ones(size), _standardised(predicted), _standardised(steps)], axis=1)  # [example, 3]
    rows, y = design[ablated], change[ablated]
    weighted = balance[:, None] * rows
    scales, axes = np.linalg.eigh(rows.T @ weighted)
    used = scales > 1e-10 * scales.max()  # a constant prediction or number of steps has no axis
    inverse = (axes[:, used] / scales[used]) @ axes[:, used].T
    rank = int(used.sum())
    coefficients = inverse @ weighted.T @ y
    residual = y - rows @ coefficients
    leverage = np.einsum("ij,jk,ik->i", rows, inverse, weighted)
    weights = weighted @ inverse[0]  # of the ablated examples in the estimate
    parts = weights * residual / np.maximum(1 - leverage, 1e-9)
    left_out = parts - weights * residual  # what the fit of an example to itself takes from its residual
    jackknife = (1 - 1 / count) * ((1 - kept) * left_out).sum()  # minus the bias of a fitted slope
    effect = (coefficients[0] + jackknife) / mean_steps
    fit = design @ coefficients - coefficients[0] / mean_steps * steps  # sums to 0
    spread = (balance * residual**2).sum() / balance.sum() * count / max(1, count - rank)
    influence = fit / size
    influence[ablated] += parts
    return Estimate(
        effect=float(effect),
        error=float(np.sqrt((parts**2).sum() + (fit**2).sum() / size**2) / mean_steps),
        whole_error=float(np.sqrt((spread + (fit**2).mean()) / size) / mean_steps),
        corpus_error=float(np.sqrt(((1 - kept) * parts**2).sum()) / mean_steps),
        freedom=count - rank,
        slope=float(coefficients[1] / predicted.std()) if predicted.std() else 0.0,
        explained=_explained(y, predicted[ablated], balance),
        changed=int(np.count_nonzero(y)),
        influence=influence / mean_steps,
    )


def estimates(statistics: ExampleStats, variants: list[HeadSet] | None = None) -> list[Estimate]:
    """Estimate the effects of variants, by default all, from example statistics with predictions."""
    assert statistics.predicted is not None
    total, steps = statistics.intact.T
    sizes = statistics.sizes

    @cache
    def chance(count: int) -> Array | None:
        return None if sizes is None else chances(sizes, count)

    changes = {variant: statistics.masked[variant][:, 0] - total for variant in variants or statistics.masked}
    return [
        estimate(change, steps, statistics.predicted[variant], chance(int(np.isfinite(change).sum())))
        for variant, change in changes.items()
    ]


def sizes(predicted: Iterable[Array]) -> Array:
    """Return how likely examples are to be drawn, in units of the mean: [example]; larger predictions are likelier.

    Residuals are larger where predictions are larger, and the best probabilities follow the spread of residuals (Zrnic
    and Candes 2024, active inference). All variants share the examples: half of the size is the root mean square of the
    predictions over variants, the other half is equal for all. So weights are at most twice those of equal sizes, even
    if predictions are poor.
    """
    spread = np.sqrt(np.mean([_standardised(row) ** 2 for row in predicted], axis=0))
    mean = float(spread.mean())
    return (spread / mean + 1) / 2 if mean else np.ones_like(spread)


def chances(sizes: Array, count: int) -> Array:
    """Return the probability that each example is among the first `count` drawn: [example].

    Examples are ordered by random numbers between 0 and 1 over their sizes (sequential Poisson sampling; Ohlsson 1998).
    Probabilities to be among the first are near min(1, t x size), where t is such that they add up to `count`.
    """
    if count >= len(sizes):
        return np.ones(len(sizes))
    falling = np.sort(sizes)[::-1]
    rest = np.cumsum(falling[::-1])[::-1]  # of the sizes from each one on
    scale = (count - np.arange(len(sizes))) / rest  # t, if all larger ones are certain
    certain = int(np.argmax(scale * falling <= 1))
    return np.asarray(np.minimum(1.0, sizes * scale[certain]))


def _standardised(values: Array) -> Array:
    centred = values - values.mean()
    spread = centred.std()
    return centred / spread if spread > 1e-12 * np.abs(values).max() else np.zeros_like(centred)


def _explained(change: Array, predicted: Array, weights: Array) -> float:
    """Squared correlation of weighted examples; 0 where one of the two does not vary."""
    if len(change) < 3 or not change.std() or not predicted.std():
        return 0.0
    spread = np.cov(change, predicted, aweights=weights)
    return float(spread[0, 1] ** 2 / (spread[0, 0] * spread[1, 1]))
