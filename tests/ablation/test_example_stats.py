"""Example statistics: the metric in resamples of the examples, some at a time."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from helpers.ablations import measured

from headroles.ablation import example_stats
from headroles.ablation.significance import effects
from headroles.analysis.intervals import bootstrap_counts


def made(examples, heads=3):
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 20, examples).astype(float)
    return measured(counts, rng.normal(0, 1, (heads, examples)).astype(np.float32).astype(float))


def test_values_are_those_of_all_counts_at_once():
    stats = made(50)
    weights = bootstrap_counts(stats.numbers, 30, 4)
    expected = stats.metric.compute(weights @ stats.intact)
    np.testing.assert_array_equal(stats.resampled([stats.intact], 30, 4), [expected])


def test_parts_add_up_to_the_whole(monkeypatch):
    stats = made(50)
    whole = stats.resampled(stats.masked.values(), 30, 4)
    monkeypatch.setattr(example_stats, "BLOCK", 7)
    np.testing.assert_allclose(stats.resampled(stats.masked.values(), 30, 4), whole, rtol=1e-13)


def test_an_example_that_was_not_run_counts_for_nothing():
    stats = made(50)
    values = np.array(stats.intact)
    values[10:] = np.nan
    found = stats.resampled([values], 30, 4)
    expected = stats.take(np.arange(10)).resampled([stats.intact[:10]], 30, 4)
    np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_resamples_of_all_examples():
    peaks = []
    for examples in (2_000, 12_000):
        stats = made(examples)
        tracemalloc.start()
        effects(stats, n_resamples=1000)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 10_000 * 1000  # bytes: a resample of each example alone would be 8 kB
