"""Example statistics add up, come back from files, and say what is in them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from helpers import zoo
from helpers.ablations import measured
from helpers.letters import tokens_of
from helpers.sweeps import equal

import headroles as hr
from headroles.ablation import example_stats
from headroles.ablation.example_stats import ExampleStats, written
from headroles.ablation.metrics import BLEU, F1, METRICS
from headroles.ablation.significance import effects
from headroles.analysis.intervals import bootstrap_counts
from headroles.data.corpus import Corpus
from headroles.tables.io import load_table, save_table


def made(examples, heads=3):
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 20, examples).astype(float)
    return measured(counts, rng.normal(0, 1, (heads, examples)).astype(np.float32).astype(float))


@pytest.mark.slow
def test_values_are_those_of_all_counts_at_once(monkeypatch):
    stats = made(50)
    weights = bootstrap_counts(stats.numbers, 30, 4)
    expected = stats.metric.compute(weights @ stats.intact)
    np.testing.assert_array_equal(stats.resampled([stats.intact], 30, 4), [expected])
    whole = stats.resampled(stats.masked.values(), 30, 4)
    monkeypatch.setattr(example_stats, "BLOCK", 7)  # parts add up to the whole
    np.testing.assert_allclose(stats.resampled(stats.masked.values(), 30, 4), whole, rtol=1e-13)


@pytest.mark.parametrize("metric", [F1(), METRICS["accuracy"]])
def test_a_resample_without_examples_has_no_value(metric):
    """Also of metrics that are 0 of no example. Three perfect examples are perfect in every resample of some."""
    right = np.eye(2)[[1, 1, 1]]
    stats = ExampleStats(metric.statistics(right, right), {}, [0, 1, 2], 0, metric)
    values, empty = stats.resampled([stats.intact], 200)[0], ~bootstrap_counts(range(3), 200, 0).any(1)
    assert empty.any()
    np.testing.assert_array_equal(values, np.where(empty, np.nan, 1.0))


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


SETS = [
    frozenset([("cross", 1, 11), ("enc-self", 0, 2), ("cross", 1, 3)]), frozenset(), frozenset([("dec-self", 10, 0)]),
    frozenset([("dec-self", 2, 0)]),
]  # fmt: skip


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_sweep_comes_back_from_a_file(metric, tmp_path):
    rng = np.random.default_rng(0)
    values = rng.normal(3, 1, (1 + len(SETS), 7, 10 if isinstance(metric, (BLEU, F1)) else 2))
    values[2, 3:] = np.nan
    numbers = [5, 2, 9, 0, 30, 1, 7]
    masked = dict(zip(SETS, values[1:], strict=True))
    found = ExampleStats(values[0], masked, numbers, 3, metric, "model:a/b|text:0f|metric:x")
    again = ExampleStats.of(load_table(save_table(found.table(), tmp_path / "examples.parquet")), metric)
    equal(again, found)
    assert again.metric is metric
    assert all(type(number) is int for number in again.numbers)
    if metric.name in ("loss", "perplexity", "accuracy"):
        one, other = (effects(each, n_resamples=30) for each in (found, again))
        np.testing.assert_array_equal(one.draws, other.draws)
        pd.testing.assert_frame_equal(pd.DataFrame(one.columns), pd.DataFrame(other.columns), check_exact=True)


def test_a_table_of_examples_names_what_is_in_it(tmp_path):
    found = measured(np.ones(3), np.zeros((2, 3)))
    table = load_table(save_table(found.table(), tmp_path / "examples.parquet"))
    assert list(table) == ["masked", "example", "sum", "steps"]
    assert table["masked"].tolist() == ["intact"] * 3 + ["dec-self:0:0"] * 3 + ["dec-self:0:1"] * 3
    assert table["example"].tolist() == [0, 1, 2] * 3
    assert {text.partition("|")[0] for text in table.attrs["signatures"].values()} == {"too_long:0"}
    words = ["cross:1:3 cross:1:11 enc-self:0:2", "none", "dec-self:10:0", "dec-self:2:0"]
    assert [written(each) for each in SETS] == words


TEXTS = ("a b c d", "b d a", "d c b a c", "c c a b")
SINGLE = ("a", "d", "b")  # of one token each: a decoder predicts from the second token on


@pytest.mark.parametrize("options", [{}, {"precision": 1.1}, {"metric": "perplexity"}, {"metric": "agreement"}])
def test_texts_of_one_token_are_no_examples_of_a_decoder(options, caplog):
    tables = [
        hr.ablate(zoo.tiny("gpt2"), tokens_of("gpt2"), Corpus.of(texts), n_resamples=50, **options)
        for texts in (TEXTS, TEXTS + SINGLE)
    ]
    ends = (".p", ".low", ".high", "]", ".examples")
    with_single, without = (table[[name for name in table if name.endswith(ends)]] for table in reversed(tables))
    name = options.get("metric", "loss")
    assert f"{name}: left out examples with nothing to measure: 5, 6, 7 of 7" in caplog.text
    pd.testing.assert_frame_equal(with_single, without, rtol=1e-4, check_exact=False)


def test_p_is_that_of_the_examples_with_a_number():
    """Two changes of one sign have p of at least 1/2, however many examples have none."""
    intact = np.array([[2.0, 1.0], [3.0, 1.0], *[[0.0, 0.0]] * 6])
    masked = {frozenset({("dec-self", 0, 0)}): intact + [[1.0, 0.0], [1.5, 0.0], *[[0.0, 0.0]] * 6]}
    stats = ExampleStats(intact, masked, list(range(8)), 0, METRICS["loss"])
    assert effects(stats, n_resamples=0).columns[".p"] == pytest.approx(0.5)
    assert len(stats.measured().numbers) == 2
