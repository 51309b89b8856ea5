"""How often p of mean effects errs, and whether its interval covers and agrees.

Simulated changes of examples, of which a few may change a lot: means with p and interval by several methods, the
library's own among them. Writes a row per setting and method: the share of `runs` with p below 0.05 and 0.01 where the
true mean is 0; with p below 0.05 where it is 2.8 standard errors (`power`); the share of 95 % intervals that hold the
true mean (`covered`), and that disagree with p about 0 (`disagree`); their median `width` in standard errors.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from scipy import stats

from headroles.ablation.example_stats import ExampleStats
from headroles.ablation.metrics import Loss
from headroles.ablation.significance import effects
from headroles.analysis.intervals import unskewed

RESAMPLES = 999
Random = np.random.Generator
Method = Callable[[Any], tuple[Any, Any, Any]]  # changes [run, example] -> low, high, p: each [run]


def main(output: Annotated[Path, typer.Option()], runs: int = 2000) -> None:
    rows = []
    for (shape, draw), examples in product(SHAPES.items(), (30, 100, 300, 1000)):
        changes = draw(np.random.default_rng(0), (runs, examples))
        deviation = draw(np.random.default_rng(1), (1000, 1000)).std()
        shift = 2.8 * deviation / np.sqrt(examples)
        for name, method in METHODS.items():
            low, high, p = method(changes)
            row = {"changes": shape, "examples": examples, "method": name, "runs": runs}
            row |= {"p05": (p < 0.05).mean(), "p01": (p < 0.01).mean()}
            row |= {"power": (method(changes + shift)[2] < 0.05).mean()}
            row |= {"covered": ((low <= 0) & (high >= 0)).mean()}
            row |= {"disagree": ((p < 0.05) != ((low > 0) | (high < 0))).mean()}
            rows.append(row | {"width": np.median(high - low) / (deviation / np.sqrt(examples))})
    table = pd.DataFrame(rows)
    table.to_csv(output, index=False, float_format="%.4g")
    print(table.pivot(index=["changes", "examples"], columns="method", values=["p05", "covered"]).to_string())


def _rare(of_changed: Callable[[Random, tuple[int, int]], Any], share: float, mean: float) -> Any:
    """Changes of a share of the examples, whose mean is subtracted; the others change next to nothing."""

    def draw(random: Random, size: tuple[int, int]) -> Any:
        changed = np.where(random.random(size) < share, of_changed(random, size), 0.0)
        return changed - share * mean + 0.02 * random.normal(size=size)

    return draw


SHAPES: dict[str, Callable[[Random, tuple[int, int]], Any]] = {
    "normal": lambda random, size: random.normal(size=size),
    "log-normal": lambda random, size: np.exp(random.normal(size=size)) - np.exp(0.5),
    "10 % by one": _rare(lambda _, size: np.ones(size), 0.1, 1.0),
    "3 % by one": _rare(lambda _, size: np.ones(size), 0.03, 1.0),
    "3 % by exponential sizes": _rare(lambda random, size: random.exponential(size=size), 0.03, 1.0),
    "3 % up or down": _rare(lambda random, size: random.normal(size=size), 0.03, 0.0),
}


def library(changes: Any) -> tuple[Any, Any, Any]:
    """The effects of `hr.ablate`."""
    intact = np.ones((changes.shape[1], 2))
    masked = {
        frozenset({("enc-self", 0, row)}): intact + np.stack([one, 0 * one], 1) for row, one in enumerate(changes)
    }
    found = effects(ExampleStats(intact, masked, list(range(len(intact))), 0, Loss()), n_resamples=RESAMPLES).columns
    return found[".low"], found[".high"], found[".p"]


def percentiles(changes: Any) -> tuple[Any, Any, Any]:
    """Percentiles of resamples, with the larger p of t and of Hall's corrected t: the library's until November 2026."""
    _, draws, _ = _resampled(changes)
    low, high = np.quantile(draws, [0.025, 0.975], axis=1)
    return low, high, np.maximum(t(changes)[2], hall(changes)[2])


def t(changes: Any) -> tuple[Any, Any, Any]:
    """Student's t."""
    mean, error, _ = _moments(changes)
    half, freedom = stats.t.isf(0.025, changes.shape[1] - 1), changes.shape[1] - 1
    return mean - half * error, mean + half * error, 2 * stats.t.sf(np.abs(mean / error), freedom)


def hall(changes: Any) -> tuple[Any, Any, Any]:
    """Student's t after Hall's transformation, without resamples."""
    mean, error, skewness = _moments(changes)
    freedom = changes.shape[1] - 1
    limit = stats.t.isf(0.025, freedom)
    low, high = (mean - error * _inverse(end, skewness) for end in (limit, -limit))
    return low, high, 2 * stats.t.sf(np.abs(unskewed(mean / error, skewness)), freedom)


def bootstrap_t(changes: Any) -> tuple[Any, Any, Any]:
    """Bootstrap t."""
    return _transformed(changes, is_transformed=False)


def transformed_bootstrap_t(changes: Any) -> tuple[Any, Any, Any]:
    """Bootstrap t after Hall's transformation."""
    return _transformed(changes, is_transformed=True)


def bca(changes: Any) -> tuple[Any, Any, Any]:
    """Bias-corrected and accelerated percentiles of resamples, and the p of the test that they invert."""
    _, draws, _ = _resampled(changes)
    mean, _, skewness = _moments(changes)
    acceleration, edge = skewness / 6, 0.5 / (RESAMPLES + 1)
    below = lambda at: np.clip((draws < at[:, None]).mean(1), edge, 1 - edge)  # noqa: E731
    bias = stats.norm.ppf(below(mean))
    ends = []
    for z in stats.norm.ppf([0.025, 0.975]):
        level = stats.norm.cdf(bias + (bias + z) / (1 - acceleration * (bias + z)))
        ends.append(np.array([np.quantile(row, at) for row, at in zip(draws, level, strict=True)]))
    away = stats.norm.ppf(below(np.zeros(len(draws)))) - bias
    return *ends, 2 * stats.norm.sf(np.abs(away / (1 + acceleration * away) - bias))


def _transformed(changes: Any, *, is_transformed: bool) -> tuple[Any, Any, Any]:
    mean, error, skewness = _moments(changes)
    _, means, (errors, skewnesses) = _resampled(changes)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (means - mean[:, None]) / errors
    ratio = mean / error
    if is_transformed:
        ratios, ratio = unskewed(ratios, skewnesses), unskewed(ratio, skewness)
    ratios = np.sort(np.nan_to_num(ratios, nan=0.0), axis=1)
    last = round(0.025 * (RESAMPLES + 1)) - 1
    limits = ratios[:, -1 - last], ratios[:, last]
    low, high = (mean - error * (_inverse(end, skewness) if is_transformed else end) for end in limits)
    above, below = (
        (1 + side.sum(1)) / (RESAMPLES + 1) for side in (ratios >= ratio[:, None], ratios <= ratio[:, None])
    )
    return low, high, np.minimum(1, 2 * np.minimum(above, below))


def _moments(changes: Any) -> tuple[Any, Any, Any]:
    """Mean, its standard error and its skewness: each [run]."""
    count, rest = changes.shape[1], changes - changes.mean(1, keepdims=True)
    error = rest.std(1, ddof=1) / np.sqrt(count)
    return changes.mean(1), error, (rest**3).sum(1) / (rest**2).sum(1) ** 1.5


def _resampled(changes: Any) -> tuple[Any, Any, tuple[Any, Any]]:
    """The counts of resamples, which all runs share, their means [run, resample], and errors and skewness of these."""
    count = changes.shape[1]
    counts = np.random.default_rng(2).multinomial(count, np.full(count, 1 / count), RESAMPLES).astype(float)
    first, second, third = (changes**power @ counts.T / count for power in (1, 2, 3))
    variance = np.maximum(second - first**2, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        skewness = (third - 3 * first * second + 2 * first**3) / variance**1.5 / np.sqrt(count)
    return counts, first, (np.sqrt(variance / (count - 1)), np.nan_to_num(skewness))


def _inverse(value: Any, skewness: Any) -> Any:
    """The ratio of which Hall's transformation is `value`."""
    bend = np.where(np.abs(skewness) < 1e-6, 1e-6, skewness)
    return 3 / bend * (np.cbrt(1 + bend * (value - bend / 6)) - 1)


METHODS: dict[str, Method] = {
    "library": library,
    "percentiles": percentiles,
    "t": t,
    "Hall": hall,
    "bootstrap t": bootstrap_t,
    "transformed bootstrap t": transformed_bootstrap_t,
    "BCa": bca,
}
