"""Significance: effects of ablations from example statistics, with intervals, paired tests and corrections."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from headroles.ablation.example_stats import ExampleStats
from headroles.ablation.metrics import Mean, Metric
from headroles.ablation.prediction_powered import estimates
from headroles.analysis.intervals import LEVEL, Array, Ends, bounds, corrections, exact_share, least_p, no_surer, t_test
from headroles.tables import frame

ENOUGH, FEW = 300, 100  # examples that p needs for skewed changes, and for any (engineering/quality/effect-tests.csv)
SKEWED = 4.0  # skewness of changes of which 3 in 100 are large, and more

log = logging.getLogger(__name__)


class Effects(NamedTuple):
    """Effects of the variants of a sweep."""

    intact: float  # the metric of the intact model
    columns: Mapping[str, Array]  # by suffix: [variant]
    draws: Array  # resampled effects: [variant, resample]


def effects(statistics: ExampleStats, *, n_resamples: int = 1000, seed: int = 0) -> Effects:
    """Return effects, metric(ablated) - metric(intact), in the columns of `ablate`.

    Statistics with predictions give prediction-powered effects. Examples with nothing to measure are left out.
    """
    statistics = statistics.measured()
    if statistics.predicted is not None:
        return _prediction_powered(statistics, n_resamples, seed)
    values = statistics.resampled([statistics.intact, *statistics.masked.values()], n_resamples, seed)
    value = values[1:] - values[:1]
    columns = _columns(statistics, value[:, 0], *tested(statistics, value[:, 1:]))
    return Effects(float(values[0, 0]), columns, value[:, 1:])


def _prediction_powered(statistics: ExampleStats, n_resamples: int, seed: int) -> Effects:
    variants = estimates(statistics)
    examples = np.array([np.isfinite(values).all(-1).sum() for values in statistics.masked.values()])
    effect, low, high, p = np.array([(variant.effect, *variant.tested) for variant in variants]).T
    columns = _columns(statistics, effect, *_no_surer(statistics.metric, low, high, p, examples))
    columns[".examples"] = examples
    for name in ("slope", "explained"):
        columns[f".{name}"] = np.array([getattr(variant, name) for variant in variants])
    influence, draws = np.stack([variant.influence for variant in variants]), effect[:, None]
    for part, weights in statistics.resamples(n_resamples, seed):
        draws = draws + influence[:, part] @ (weights[1:] - 1.0).T
    return Effects(float(statistics.metric.compute(statistics.intact.sum(0))), columns, draws)


def _columns(statistics: ExampleStats, effect: Array, low: Array, high: Array, p: Array) -> dict[str, Array]:
    """Return columns of effects; no p for a metric that any change makes worse, as then the null cannot be true."""
    if statistics.metric.starts_at_best:
        high, p = np.minimum(high, np.maximum(effect, 0.0)), np.full_like(p, np.nan)
    return {"": effect, ".low": low, ".high": high, ".p": p} | {f".{end}": row for end, row in corrections(p).items()}


def tested(statistics: ExampleStats, draws: Array) -> tuple[Array, Array, Array]:
    """Return the ends of the 95 % interval and the two-sided p of every variant: three of [variant].

    Interval and p are one test: 0 is outside where p is below 0.05. If the metric is a mean, it is the paired t-test,
    plain or corrected for the skewness of the changes, whichever p is larger (of several methods the one that errs
    least: figures/engineering/quality); otherwise the paired bootstrap, from `draws` [variant, resample]. p is at
    least that of a sign test on all examples: with fewer than six every interval has 0. With skewed changes they need
    300 examples: fewer may miss large changes of few, and then p tests that no example changes.
    """
    if is_mean(statistics.metric):
        moments = [_moments(statistics.intact, values) for values in statistics.masked.values()]
        low, high, p = np.array([t_test(*row, len(statistics.numbers) - 1) for row in moments]).reshape(-1, 3).T
    else:
        (low, high), p = bounds(draws), _bootstrap_test(draws)
    return _no_surer(statistics.metric, low, high, p, np.full(len(p), len(statistics.numbers)))


def _no_surer(metric: Metric, low: Array, high: Array, p: Array, examples: Array) -> tuple[Array, Array, Array]:
    """Return ends and p of tests on so many examples, no surer than these allow: all of [variant]."""
    for place in np.flatnonzero(high - low < 1e-12) if metric.is_share else ():  # equal but for rounding
        low[place], high[place] = _change_of_all(float(low[place]), examples[place])
    return no_surer(low, high, p, examples)


def _change_of_all(change: float, examples: int) -> Ends:
    """Return the exact interval of a change of a share that is the same in all examples: of others some may differ."""
    lost, won = exact_share(max(-change, 0.0), examples), exact_share(max(change, 0.0), examples)
    return won[0] - lost[1], won[1] - lost[0]


def skewness(statistics: ExampleStats) -> dict[str, object]:
    """Return the largest skewness of changes as a provenance field, by which `warn_of_few` warns; none if small."""
    masked = statistics.masked.values() if is_mean(statistics.metric) else ()
    skews = [abs(_moments(statistics.intact, values)[2]) for values in masked]
    largest = max(skews, default=0.0) * len(statistics.numbers) ** 0.5  # of an example; that of the mean is smaller
    return {"skewness": f"{largest:.2g}"} if largest > SKEWED else {}


def metric_with_interval(statistics: ExampleStats, *, n_resamples: int = 1000, seed: int = 0) -> dict[str, float]:
    """Compute the metric of the intact model of a sweep: `value`, and `low` and `high`, its 95 % interval."""
    (values,) = statistics.resampled([statistics.intact], n_resamples, seed)
    row = interval(values, statistics.metric, len(statistics.numbers))
    return dict(zip(("value", "low", "high"), row, strict=True))


def interval(
    values: Array, metric: Metric, examples: int, *, before: Array | None = None
) -> tuple[float, float, float]:
    """Return a metric, or its change from `before`, and the 95 % interval, by values on so many examples and resamples.

    Resamples of examples that are all right, or all wrong, do not vary: then the interval of a share is exact.
    """
    changes = values if before is None else values - before
    value, (low,), (high,) = float(changes[0]), *bounds(changes[None, 1:])
    if metric.is_share and low == high:
        low, high = exact_share(value, examples) if before is None else _change_of_all(value, examples)
    return value, float(low), float(high)


def warn_of_few(table: pd.DataFrame) -> None:
    """Warn of p from few examples, by the provenance of a new or kept table."""
    name = str(table.columns[0])
    notes = dict(frame.fields(frame.provenance(table, name)))
    count = int(notes.get("measured", notes["examples"]))
    if 1 < count < (ENOUGH if "skewness" in notes else FEW):
        has_p = f"{name}.p" not in table or table[f"{name}.p"].notna().any()
        what, least = "p and interval" if has_p else "ends of the interval", least_p(count)
        why = "they promise too much if a few examples in a hundred change a lot"
        why = f"no p can be below {least:.2g}" if has_p and least > LEVEL / 5 else why  # 0.01, of what is printed
        log.warning("%s of %s are from %d examples: %s; try %d or more", what, name, count, why, ENOUGH)


def is_mean(metric: Metric) -> bool:
    """Return whether a metric is a mean over steps or examples, which a t-test needs."""
    return type(metric).compute is Mean.compute


def best(
    statistics: ExampleStats, index: pd.MultiIndex, *, halves: bool = False, n_resamples: int = 1000, seed: int = 0
) -> pd.DataFrame:
    """Select for each layer the best head to keep as the only one (Michel et al. 2019, Tables 2, 3, 5).

    With `halves` it is selected on a random half of the examples and measured on the other (Tables 5 and 6 select on
    another corpus). Otherwise both use all examples, and the effect of the selected head is too good on average.

    Returns:
        A table with a row per layer: `head`, and `effect`, the change of the metric when the other heads of the layer
        are masked, with `.low`, `.high`, `.p`, `.holm` and `.bh`; with `halves` also `chosen`, the effect on the half
        that selected the head.

    Raises:
        ValueError: If `halves` is set and only one example has something to measure.
    """
    statistics = statistics.measured()
    rows = np.random.default_rng(seed).permutation(len(statistics.numbers))
    half = len(rows) // 2 if halves else 0
    if halves and not half:
        raise ValueError(f"too few examples for two halves: got {len(rows)}; expected 2 or more")
    heads = [tuple(head) for head in index]
    others = [frozenset(other for other in heads if other[:2] == head[:2] and other != head) for head in heads]
    variants = [list(statistics.masked).index(masked) for masked in others]

    def effects_on(part: npt.NDArray[np.int64], n_resamples: int) -> dict[str, Array]:
        columns = effects(statistics.take(np.sort(part)), n_resamples=n_resamples, seed=seed).columns
        return {end: values[variants] for end, values in columns.items()}

    measured = effects_on(rows[half:], n_resamples)
    selection = effects_on(rows[:half], 0)[""] if halves else measured[""]
    quality = pd.Series(selection * statistics.metric.better, index=index)
    kept = quality.groupby(level=["kind", "layer"], sort=False).idxmax().tolist()
    chosen = index.get_indexer(pd.MultiIndex.from_tuples(kept))
    columns: dict[str, object] = {"head": [head for _, _, head in kept]}
    columns |= {"chosen": selection[chosen]} if halves else {}
    columns |= {f"effect{end}": measured[end][chosen] for end in ("", ".low", ".high", ".p")}
    columns |= {f"effect.{name}": values for name, values in corrections(measured[".p"][chosen]).items()}
    names = pd.MultiIndex.from_tuples([head[:2] for head in kept], names=["kind", "layer"])
    text = f"{statistics.signature}|unit:all_but_one|halves:{halves}|resamples:{n_resamples}|seed:{seed}"
    return frame.signed(pd.DataFrame(columns, index=names), text)


def _moments(intact: Array, masked: Array) -> tuple[float, float, float]:
    """Return the change of a ratio of sums, its standard error and skewness by the delta method; NaN if unknown."""
    change, count = masked[:, 0] - intact[:, 0], intact[:, 1]
    if len(change) < 2 or not count.sum():
        return np.nan, np.nan, np.nan
    effect = change.sum() / count.sum()
    rest = change - effect * count
    if not (rest**2).sum():
        return effect, 0.0, 0.0
    error = np.sqrt(len(rest) / (len(rest) - 1) * (rest**2).sum()) / count.sum()
    return effect, error, (rest**3).sum() / (rest**2).sum() ** 1.5


def _bootstrap_test(draws: Array) -> Array:
    """Compute the two-sided p of resampled effects [variant, resample], the corpus counted as one resample."""
    if not draws.shape[1]:
        return np.full(len(draws), np.nan)
    count = np.isfinite(draws).sum(1) + 1
    below, above = ((side.sum(1) + 1) / count for side in (draws <= 0, draws >= 0))
    return np.where(count > 1, np.minimum(2 * np.minimum(below, above), 1), np.nan)
