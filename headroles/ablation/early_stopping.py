"""Early stopping: measure a variant only on as much of a corpus as it takes to decide about its effect."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TypedDict

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from headroles.ablation.example_stats import ExampleStats, HeadSet
from headroles.ablation.prediction_powered import estimates, sizes
from headroles.ablation.significance import effects, is_mean
from headroles.ablation.sweep import Sweep
from headroles.analysis.intervals import Array, least_p

FIRST, GROWTH = 256, 1.5  # examples at the first interim test, and the growth from each test to the next
FIRST_PREDICTED, GROWTH_PREDICTED = 64, 1.25  # the same where a gradient predicts the effects
CHANGED = 16  # examples that an ablation must have changed before its interval is believed
FIXED = 0.1  # share of `risk` for a p that is the same at all interim tests, where the rest falls with information

log = logging.getLogger(__name__)


def staged(
    sweep: Sweep,
    variants: list[HeadSet],
    *,
    predict: bool = False,
    early: bool = True,
    precision: float = 1.0,
    level: float = 0.01,
    risk: float = 0.001,
    miss: float = 0.05,
    first: int | None = None,
) -> ExampleStats:
    """Sweep random parts of the corpus, each variant until its effect is decided.

    There is an interim test after `first` examples (by default 256, with predictions 64), and after each growth of
    their number. With `early`, a variant is stopped if its p is below its share of `risk`: without an effect, the
    probability of such a stop or of p below `level` at the end is at most `level` + `risk` (Haybittle 1971, Peto 1976).
    It is also stopped if the probability that p on the whole corpus will be below `level`, given the effect so far
    (normal, no prior), is below `miss` (stochastic curtailment). Effects of variants that were stopped by their p are
    on average too far from 0.

    With `predict`, the gradient predicts the effects of all variants on all examples first, and the tests are those of
    prediction-powered estimates (`headroles.ablation.prediction_powered`). The number of examples is then replaced by
    the information that they give: the squared ratio of the errors on the whole corpus and now. Nine tenths of `risk`
    go to a boundary that falls with information (`crossed`). With a `precision` above 1 a variant is also stopped once
    its interval is at most so many times as wide as the whole corpus would give.

    Returns:
        Example statistics, NaN for the examples on which a variant was not run.

    Raises:
        ValueError: If there is no variant, or `first` is below 1.
    """
    if not variants:
        raise ValueError("nothing to ablate: got no variant; expected at least one")
    rng = np.random.default_rng(sweep.seed)
    left, stats = list(variants), None
    if predict:
        stats = sweep.predict(variants).measured()
        assert stats.predicted is not None
        stats = replace(stats, sizes=sizes(stats.predicted.values()))
        measured = set(stats.numbers)
        order = drawn(stats, [number for number in sweep.examples if number in measured], rng)
    else:
        order = rng.permutation(sweep.examples)
    start, growth = (FIRST_PREDICTED, GROWTH_PREDICTED) if predict else (FIRST, GROWTH)
    ends = looks(len(order), start if first is None else first, growth)
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        more = sweep.run(left, rows=sorted(order[start:end].tolist()))
        stats = _filled(stats, more) if predict and stats else _joined(stats, more, variants)
        if end == len(order):
            break
        tests = Tests(level=level, risk=risk, miss=miss) if early else None
        clear = known(stats, left, end, len(order), precision=precision, tests=tests, number=len(ends) - 1)
        left = [variant for variant, done in zip(left, clear, strict=True) if not done]
        log.info("interim test %d, %d examples: %d of %d variants continue", number + 1, end, len(left), len(variants))
        if not left:
            break
    assert stats is not None
    return stats.check()


class Tests(TypedDict):
    """Risks of all interim tests together: those of `staged`."""

    level: float
    risk: float
    miss: float


def known(
    statistics: ExampleStats,
    variants: list[HeadSet],
    examples: int,
    corpus: int,
    *,
    precision: float = 1.0,
    tests: Tests | None = None,
    number: int = 1,
) -> npt.NDArray[np.bool_]:
    """Return which variants need no more examples: their interval is narrow enough, or their test is decided.

    The test is one of `number` interim tests.
    """
    share = np.full(len(variants), examples / corpus)
    if statistics.predicted is None:
        clear = np.zeros(len(variants), dtype=bool)
        return clear if tests is None else stopped(scores(statistics, variants), share, **_split(tests, number))
    estimated = estimates(statistics, variants)
    believed = [
        estimate.changed >= CHANGED or not statistics.predicted[variant].any()  # or a head that nothing depends on
        for estimate, variant in zip(estimated, variants, strict=True)
    ]
    clear = np.array([estimate.widening <= precision for estimate in estimated]) & believed & (precision > 1)
    if tests is None:
        return clear
    # few examples, and few that changed, prove little, however alike they are
    p = np.maximum(np.nan_to_num([estimate.p for estimate in estimated], nan=1.0), least_p(examples))
    z = norm.isf(p / 2) * np.sign([estimate.effect for estimate in estimated])
    information = np.array([estimate.information for estimate in estimated])
    share = np.where(believed, information, share)
    clear |= crossed(z, share, level=tests["level"], risk=(1 - FIXED) * tests["risk"])
    return clear | stopped(z, share, **_split(tests, number / FIXED))


def drawn(statistics: ExampleStats, examples: Sequence[int], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Order examples at random, the larger the earlier, as `chances` counts them."""
    assert statistics.sizes is not None
    size = dict(zip(statistics.numbers, statistics.sizes, strict=True))
    ranks = rng.random(len(examples)) / [size[number] for number in examples]
    return np.asarray(examples)[np.argsort(ranks)]


def looks(examples: int, first: int = FIRST, growth: float = GROWTH) -> list[int]:
    """Return the growing numbers of examples at which variants are tested; the last is all of them."""
    if first < 1:
        raise ValueError(f"too few examples for the first interim test: got {first}; expected at least 1")
    ends = [first]
    while ends[-1] < examples:
        ends.append(max(ends[-1] + 1, int(ends[-1] * growth)))
    return [*ends[:-1], examples]


def scores(statistics: ExampleStats, variants: list[HeadSet]) -> Array:
    """Compute the effects of variants over their standard errors, on the examples measured so far: [variant]."""
    rows = np.isfinite(statistics.masked[variants[0]]).all(-1)
    left = replace(statistics, masked={variant: statistics.masked[variant] for variant in variants}).take(
        np.flatnonzero(rows)
    )
    effect = effects(left, n_resamples=0 if is_mean(statistics.metric) else 200)
    if is_mean(statistics.metric):
        sizes: Array = norm.isf(effect.columns[".p"] / 2) * np.sign(effect.columns[""])
        return sizes
    with np.errstate(divide="ignore", invalid="ignore"):  # no effect on any resample
        sizes = effect.columns[""] / np.nanstd(effect.draws, axis=1)
    limit = float(norm.isf(least_p(int(rows.sum())) / 2))  # few examples prove little, however alike they are
    return np.clip(np.nan_to_num(sizes, posinf=np.inf, neginf=-np.inf), -limit, limit)


def stopped(z: Array, share: float | Array, *, level: float, risk: float, miss: float) -> npt.NDArray[np.bool_]:
    """Return which variants have a clear effect (p below `risk`), or almost no chance of a significant one: [variant].

    On the whole corpus an effect z is predicted to be z / sqrt(share), with standard deviation sqrt((1 - share) /
    share) (Spiegelhalter et al. 1986). `share` is that of the examples measured so far, or of the information that they
    give.
    """
    share = np.minimum(share, 1 - 1e-9)
    significant = np.abs(z) > norm.isf(risk / 2)
    end, spread = z / np.sqrt(share), np.sqrt((1 - share) / share)
    limit = norm.isf(level / 2)
    chance = norm.sf((limit - end) / spread) + norm.cdf((-limit - end) / spread)
    clear: npt.NDArray[np.bool_] = significant | (chance < miss)
    return clear


def crossed(z: Array, share: Array, *, level: float, risk: float) -> npt.NDArray[np.bool_]:
    """Return which variants have an effect beyond a boundary that falls with the share of information: [variant].

    Without an effect, z times the root of that share is a Brownian motion, which ends at the z of the whole corpus (Lan
    and Wittes 1988). It is stopped at b, half way between the limits of z for p = `level` and p = `risk`. By
    reflection, the probability that it comes to b or -b, however often it is tested, but that p of the whole corpus is
    not below `level`, is at most `risk`.
    """
    limit = norm.isf(level / 2)
    beyond: npt.NDArray[np.bool_] = np.abs(z) * np.sqrt(share) > (limit + max(limit, norm.isf(risk / 2))) / 2
    return beyond


def _split(tests: Tests, number: float) -> Tests:
    """Share the risk among so many tests."""
    return Tests(level=tests["level"], risk=tests["risk"] / max(1, number), miss=tests["miss"])


def _joined(before: ExampleStats | None, more: ExampleStats, variants: list[HeadSet]) -> ExampleStats:
    """Concatenate the statistics of two parts of a corpus, the second with fewer variants."""
    none = np.full_like(more.intact, np.nan)
    masked = {variant: more.masked.get(variant, none) for variant in variants}
    if before is None:
        return replace(more, masked=masked)
    return replace(
        more,
        intact=np.concatenate([before.intact, more.intact]),
        masked={variant: np.concatenate([before.masked[variant], part]) for variant, part in masked.items()},
        numbers=before.numbers + more.numbers,
    )


def _filled(before: ExampleStats, more: ExampleStats) -> ExampleStats:
    """Write the statistics of some examples into those of all, of which the rest is NaN."""
    places = {number: place for place, number in enumerate(before.numbers)}
    rows = [places[number] for number in more.numbers]
    none = np.full_like(before.intact, np.nan)
    masked = {variant: before.masked.get(variant, none).copy() for variant in before.predicted or ()}
    intact = before.intact.copy()
    intact[rows] = more.intact
    for variant, values in more.masked.items():
        masked[variant][rows] = values
    return replace(before, intact=intact, masked=masked)
