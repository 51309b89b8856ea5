"""Effects have the p of textbooks, and the best heads of halves are chosen and measured on different examples."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from helpers.ablations import measured
from helpers.skewness import ends_of_mean, p_of_mean

from headroles.ablation.example_stats import ExampleStats
from headroles.ablation.metrics import F1, Accuracy, Agreement, Loss, Perplexity
from headroles.ablation.significance import best, effects, skewness, warn_of_few
from headroles.analysis.intervals import benjamini_hochberg, holm
from headroles.tables import frame


def p_of(found, **options):
    return effects(found, **{"n_resamples": 200} | options).columns[".p"]


@pytest.mark.parametrize("count", [1.0, 4.0])
def test_p_of_a_mean_is_that_of_a_paired_t_test_that_allows_for_skewness(count):
    changes = np.random.default_rng(1).normal(0.2, 1, (20, 30))
    found = measured(np.full(30, count), changes)
    expected = [p_of_mean(each[:, 0] - found.intact[:, 0]) for each in found.masked.values()]
    np.testing.assert_allclose(p_of(found, n_resamples=0), expected, rtol=1e-9)


def test_p_of_a_ratio_is_that_of_a_t_test_of_its_linear_part():
    rng = np.random.default_rng(2)
    counts = rng.integers(1, 20, 40).astype(float)
    changes = rng.normal(0.3, 1, (20, 40)) * counts
    ratios = changes.sum(1) / counts.sum()
    linear = ratios[:, None] + (changes - ratios[:, None] * counts) / counts.mean()
    expected = [p_of_mean(row) for row in linear]
    np.testing.assert_allclose(p_of(measured(counts, changes), n_resamples=0), expected, rtol=1e-9)


@pytest.mark.parametrize("large", [1.0, -1.0], ids=["up", "down"])
@pytest.mark.parametrize("examples", [30, 200])
def test_the_ends_of_an_interval_are_where_p_is_a_twentieth(large, examples):
    """They were percentiles of resamples, which disagreed with p about 0 in one of ten skewed samples."""
    random = np.random.default_rng(7)
    changes = np.where(random.random((40, examples)) < 0.03, large, 0.0) + 0.1 * random.normal(size=(40, examples))
    columns = effects(measured(np.ones(examples), changes), n_resamples=200).columns
    for row, low, high in zip(changes, columns[".low"], columns[".high"], strict=True):
        assert low < row.mean() < high
        assert [p_of_mean(row - low), p_of_mean(row - high)] == pytest.approx([0.05, 0.05], rel=1e-6)
    outside = (columns[".low"] > 0) | (columns[".high"] < 0)
    assert (outside == (columns[".p"] < 0.05)).all()


@pytest.mark.parametrize("examples", [5, 6])
def test_intervals_of_very_few_examples_are_no_surer_than_p(examples):
    columns = effects(measured(np.ones(examples), np.array([[1.0], [-1.0]]) + np.zeros(examples))).columns
    assert columns[".p"].tolist() == [2 * 0.5**examples] * 2
    assert ((columns[".low"] > 0) | (columns[".high"] < 0)).tolist() == [examples == 6] * 2


def test_a_share_that_changes_in_no_example_or_in_all_is_not_certain():
    """Of 60 examples none changes: by Clopper and Pearson up to 6 % of others may; if all do, as many may not."""
    found = measured(np.ones(60), -np.array([[0.0], [1.0]]) * np.ones(60), Accuracy())
    most = scipy.stats.beta.ppf(0.975, 1, 60)
    for predicted in (None, dict.fromkeys(found.masked, np.random.default_rng(0).normal(size=60))):
        columns = effects(replace(found, predicted=predicted), n_resamples=0).columns
        assert columns[".low"].tolist() == pytest.approx([-most, -1])
        assert columns[".high"].tolist() == pytest.approx([most, 2 * most - 1])


def test_a_metric_that_starts_at_its_maximum_has_effects_with_intervals_and_no_p():
    changes = -np.random.default_rng(0).exponential(size=(3, 20)) * np.array([[0.0], [1.0], [1.0]])
    changes[2, 1:] = 0  # a single example changes
    columns = effects(measured(np.ones(20), changes, Agreement()), n_resamples=200).columns
    assert np.isnan([columns[f".{name}"] for name in ("p", "holm", "bh")]).all()
    np.testing.assert_allclose(columns[""], changes.mean(1))
    assert (columns[".low"] <= columns[""]).all()
    assert (columns[".high"] <= 0).all()
    assert columns[".high"][1] < 0 == columns[".high"][2]


@pytest.mark.parametrize(
    ("examples", "rare", "warns"), [(99, 0, 1), (100, 0, 0), (299, 9, 1), (300, 9, 0), (299, 0, 0)]
)
def test_few_examples_are_warned_of_and_more_if_few_of_them_change_a_lot(examples, rare, warns, caplog):
    changes = np.random.default_rng(0).normal(0, 0.01, (2, examples))
    changes[1, :rare] += 1
    found = measured(np.ones(examples), changes)
    field = skewness(found)
    assert field == ({"skewness": f"{max(map(abs, scipy.stats.skew(changes, 1))):.2g}"} if rare else {})
    warn_of_few(frame.signed(pd.DataFrame({"effect": [0.0]}), frame.sign(examples=examples, **field)))
    assert sum(f"p and interval of effect are from {examples} " in message for message in caplog.messages) == warns


def test_a_warning_of_few_examples_speaks_of_p_where_there_is_one(caplog):
    columns = {"ablation[agreement]": [-0.1], "ablation[agreement].p": [np.nan]}
    warn_of_few(frame.signed(pd.DataFrame(columns), frame.sign(examples=20)))
    warn_of_few(frame.signed(pd.DataFrame({"effect": [0.0]}), frame.sign(examples=4)))
    assert caplog.messages[0].startswith("ends of the interval of ablation[agreement] are from 20 examples")
    assert "from 4 examples: no p can be below 0.12; try 300 or more" in caplog.messages[1]


def test_an_effect_that_is_always_the_same_is_certain_and_none_is_nothing():
    for metric, certain in ((Loss(), 2.0**-49), (Perplexity(), 2 / 201)):
        found = measured(np.ones(50), np.stack([np.zeros(50), np.ones(50)]), metric)
        assert p_of(found).tolist() == [1, certain]
    assert np.isnan(p_of(measured(np.ones(1), np.ones((1, 1))), n_resamples=0)).all()


def test_p_of_another_metric_is_how_often_a_resample_is_on_the_other_side():
    found = measured(np.ones(30), np.random.default_rng(3).normal(0.2, 1, (20, 30)), Perplexity())
    effect = effects(found, n_resamples=200, seed=5)
    for draws, p in zip(effect.draws, effect.columns[".p"], strict=True):
        other_side = min((draws <= 0).sum(), (draws >= 0).sum())
        assert p == pytest.approx(min(1, 2 * (other_side + 1) / 201))
        assert p >= 2 / 201


@pytest.mark.parametrize("metric", [Loss(), Perplexity()], ids=lambda metric: metric.name)
def test_where_there_is_no_effect_p_is_uniform_and_nothing_is_found(metric):
    rng = np.random.default_rng(4)
    counts = rng.integers(1, 20, 120).astype(float)
    found = effects(measured(counts, rng.normal(0, 1, (200, 120)) * np.sqrt(counts), metric), n_resamples=1000)
    assert scipy.stats.kstest(found.columns[".p"], "uniform").pvalue > 0.01
    assert found.columns[".holm"].min() > 0.01
    assert found.columns[".bh"].min() > 0.01


# --- the best head of each layer ------------------------------------------------------------------------------------

INDEX = frame.index({("enc-self", 0): 4, ("enc-self", 1): 3, ("cross", 0): 5})
RIGHT = {Loss: -1, Accuracy: 1}  # the sign of what is better


def rest_of(head):
    return frozenset(other for other in INDEX if other[:2] == head[:2] and other != head)


def alone(metric=None, changes=None, seed=0, examples=31):
    """A made-up sweep of closing all but each head of a layer."""
    rng = np.random.default_rng(seed)
    changes = rng.normal(0.1, 1, (len(INDEX), examples)) if changes is None else changes
    found = measured(np.ones(examples), changes, metric, seed=seed)
    masked = dict(zip(map(rest_of, INDEX), found.masked.values(), strict=True))
    return replace(found, masked=masked, numbers=rng.permutation(100)[:examples].tolist(), signature="a:1|b:2")


def by_hand(found, halves, seed):
    """(kind, layer) -> the columns of `best`, by a plain loop over layers and heads."""
    shuffled = np.random.default_rng(seed).permutation(len(found.numbers))
    half = len(shuffled) // 2
    first, second = (shuffled[:half], shuffled[half:]) if halves else (shuffled, shuffled)
    changes = {head: found.masked[rest_of(head)][:, 0] - found.intact[:, 0] for head in INDEX}
    rows = {}
    for layer in dict.fromkeys(head[:2] for head in INDEX):
        own = [head for head in INDEX if head[:2] == layer]
        kept = max(own, key=lambda head: RIGHT[type(found.metric)] * changes[head][first].mean())
        p = p_of_mean(changes[kept][second])
        seen = {"chosen": changes[kept][first].mean()} if halves else {}
        effect = {"effect": changes[kept][second].mean(), "effect.p": p}
        effect |= dict(zip(("effect.low", "effect.high"), ends_of_mean(changes[kept][second]), strict=True))
        rows[layer] = {"head": kept[2]} | seen | effect
    return rows


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("metric", [Loss(), Accuracy()], ids=lambda metric: metric.name)
def test_the_best_head_of_each_layer_is_that_of_a_plain_loop(metric, halves):
    for seed in range(3):
        found = alone(metric, seed=seed)
        expected = by_hand(found, halves, seed)
        pad = partial(np.pad, pad_width=((0, 9), (0, 0)))  # by examples with nothing to measure
        masked, numbers = {heads: pad(each) for heads, each in found.masked.items()}, [*found.numbers, *range(100, 109)]
        found = replace(found, intact=pad(found.intact), masked=masked, numbers=numbers)
        table = best(found, INDEX, halves=halves, n_resamples=50, seed=seed)
        assert list(table.index) == list(expected)
        assert table.index.names == ["kind", "layer"]
        corrected = ["effect.holm", "effect.bh"]
        assert set(table) == {*next(iter(expected.values())), *corrected}
        for row, values in zip(table.to_dict("records"), expected.values(), strict=True):
            assert {name: row[name] for name in values} == pytest.approx(values, rel=1e-7, abs=1e-9)
        p = table["effect.p"].to_numpy()
        np.testing.assert_allclose(table[corrected].to_numpy().T, [holm(p), benjamini_hochberg(p)])
        said = f"a:1|b:2|unit:all_but_one|halves:{halves}|resamples:50|seed:{seed}"
        assert {frame.provenance(table, name) for name in table} == {said}


def test_two_examples_alike_are_no_proof():
    for metric, statistics in (Loss(), 2), (F1(), 7):
        intact = np.ones((2, statistics))
        masked = {frozenset({("enc-self", 0, 0)}): 3 * intact, frozenset({("enc-self", 0, 1)}): intact}
        masked = {key: np.column_stack([each[:, :-1], intact[:, -1]]) for key, each in masked.items()}
        found = ExampleStats(intact, masked, [0, 1], 0, metric)
        assert (effects(found, n_resamples=200).columns[".p"] >= 0.5).all()


@pytest.mark.parametrize("shape", ["rare", "lognormal"])
def test_p_of_a_mean_effect_with_rare_large_changes_is_seldom_small(shape):
    random, size = np.random.default_rng(0), (2000, 100)
    if shape == "rare":  # 3 % of the examples change much, the others a little the other way
        changes = np.where(random.random(size) < 0.03, 1, -0.03 / 0.97) + 0.02 * random.normal(size=size)
    else:
        changes = np.exp(random.normal(size=size)) - np.exp(0.5)
    p = effects(measured(np.ones(changes.shape[1]), changes), n_resamples=0).columns[".p"]
    assert (p < 0.05).mean() < 0.065  # 0.11 and 0.08 by t


def test_an_effect_without_examples_has_no_p_and_is_not_among_the_tests():
    changes = np.random.default_rng(0).normal(1, 1, (3, 40))
    changes[2] = np.nan
    for metric in (Loss(), Perplexity()):
        columns = effects(measured(np.ones(40), changes, metric), n_resamples=200).columns
        assert np.isnan([columns[f".{name}"][2] for name in ("low", "high", "p", "holm", "bh")]).all()
        p = columns[".p"][:2]
        np.testing.assert_allclose(columns[".holm"][:2], np.maximum(2 * p.min(), p))
