"""Significance: what a sweep's variants change, with intervals, paired tests and their corrections; needs no model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from headroles.ablation.example_stats import ExampleStats
from headroles.ablation.metrics import Mean, Metric
from headroles.analysis.intervals import least_p
from headroles.analysis.multiple_testing import benjamini_hochberg, holm
from headroles.scores.accumulator import bounds, counting

Array = npt.NDArray[np.floating[Any]]


class Effects:
    """What the variants of a sweep change: `columns` (suffix -> [variant]), `draws` [variant, resample]."""

    def __init__(self, intact: float, columns: Mapping[str, Array], draws: Array) -> None:
        self.intact, self.columns, self.draws = intact, dict(columns), draws


def effects(found: ExampleStats, *, n_resamples: int = 1000, seed: int = 0) -> Effects:
    """The effects of a sweep's variants with their statistics, each on the examples it was run on.

    Suffixes: none for metric(closed) - metric(intact), `.low` and `.high` for its 95 % interval over paired Poisson
    bootstrap resamples of the examples, `.p` two-sided, `.holm`, `.bh`, and `.examples`, on how many.
    """
    weights = counting(found.numbers, n_resamples, seed).numpy()  # [1 + resamples, example]
    run = np.stack([np.isfinite(each).all(-1) for each in found.closed.values()])  # [variant, example]
    with np.errstate(invalid="ignore"):  # a resample without any example has no value
        intact = found.metric.value(weights @ found.intact)  # [1 + resamples]
        values = []
        for closed, rows in zip(found.closed.values(), run, strict=True):
            base = intact if rows.all() else found.metric.value(weights[:, rows] @ found.intact[rows])
            values.append(found.metric.value(weights[:, rows] @ closed[rows]) - base)
    value = np.stack(values)
    low, high = bounds(value[:, 1:]) if n_resamples else np.full((2, len(value)), np.nan)
    p = p_values(found, value[:, 1:])
    columns = {"": value[:, 0], ".low": low, ".high": high, ".p": p, ".holm": holm(p), ".bh": benjamini_hochberg(p)}
    return Effects(float(intact[0]), columns | {".examples": run.sum(1)}, value[:, 1:])


def p_values(found: ExampleStats, draws: Array) -> Array:
    """p of every variant, two-sided: a paired t-test where the metric is a mean, otherwise the paired bootstrap.

    Never below what a test by the signs of so many examples could reach: two examples say little, however alike.
    """
    rows = [(np.isfinite(each).all(-1), each) for each in found.closed.values()]
    if is_mean(found.metric):
        p = np.array([_t_test(found.intact[run], each[run]) for run, each in rows])
    else:
        p = _bootstrap_test(draws)
    return np.asarray(np.maximum(p, [least_p(int(run.sum())) for run, _ in rows]))


def is_mean(metric: Metric) -> bool:
    """Whether a metric is a mean over steps or examples, so that a t-test is of it."""
    return type(metric).value is Mean.value


def best(
    found: ExampleStats, index: pd.MultiIndex, *, halves: bool = False, n_resamples: int = 1000, seed: int = 0
) -> Any:
    """The head of each layer that is best to keep alone (Michel et al. 2019, Tables 2, 3, 5): a row per layer.

    `found` is a sweep of the plan "rest" of the heads of `index`. Columns: `head`, and `effect`, the
    change of the metric when the others of the layer are closed, with `.low`, `.high`, `.p`, `.holm` and `.bh`. Chosen
    on all examples, its effect is too good; with `halves` it is chosen on a random half (`chosen` is its effect there)
    and all else is of the other half (Tables 5 and 6 choose on another corpus).
    """
    rows = np.random.default_rng(seed).permutation(len(found.numbers))
    half = len(rows) // 2 if halves else 0
    if halves and not half:
        raise ValueError("two halves need at least two examples")
    heads = [tuple(head) for head in index]
    rests = [frozenset(one for one in heads if one[:2] == head[:2] and one != head) for head in heads]
    variants = [list(found.closed).index(rest) for rest in rests]

    def of(part: npt.NDArray[np.int64], n_resamples: int) -> dict[str, Array]:
        told = effects(found.take(np.sort(part)), n_resamples=n_resamples, seed=seed).columns
        return {end: values[variants] for end, values in told.items()}

    told = of(rows[half:], n_resamples)
    seen = of(rows[:half], 0)[""] if halves else told[""]
    places = pd.Series(seen * found.metric.better, index=index)
    kept = places.groupby(level=["kind", "layer"], sort=False).idxmax().tolist()
    chosen = index.get_indexer(pd.MultiIndex.from_tuples(kept))
    columns: dict[str, Any] = {"head": [head for _, _, head in kept]}
    columns |= {"chosen": seen[chosen]} if halves else {}
    columns |= {f"effect{end}": told[end][chosen] for end in ("", ".low", ".high", ".p")}
    p = columns["effect.p"]
    columns |= {"effect.holm": holm(p), "effect.bh": benjamini_hochberg(p)}
    names = pd.MultiIndex.from_tuples([head[:2] for head in kept], names=["kind", "layer"])
    table = pd.DataFrame(columns, index=names)
    text = f"{found.signature}|plan:rest|halves:{halves}|resamples:{n_resamples}|seed:{seed}"
    table.attrs["signatures"] = dict.fromkeys(table.columns, text)
    return table


def _t_test(intact: Array, closed: Array) -> float:
    """A paired t-test of a ratio of sums, by the delta method; of a plain mean it is scipy's `ttest_rel`."""
    change, count = closed[:, 0] - intact[:, 0], intact[:, 1]
    effect = change.sum() / count.sum()
    rest = change - effect * count
    if len(rest) < 2 or not (rest**2).sum():
        return 1.0 if effect == 0 or len(rest) < 2 else 0.0
    error = np.sqrt(len(rest) / (len(rest) - 1) * (rest**2).sum()) / count.sum()
    return float(2 * stats.t.sf(abs(effect / error), len(rest) - 1))


def _bootstrap_test(draws: Array) -> Array:
    """How often resampled effects are on the other side of 0, two-sided, the intact corpus counted as one of them."""
    if not draws.shape[1]:
        return np.full(len(draws), np.nan)
    many = np.isfinite(draws).sum(1) + 1
    below, above = ((side.sum(1) + 1) / many for side in (draws <= 0, draws >= 0))
    smaller: Array = np.minimum(2 * np.minimum(below, above), 1)
    return smaller
