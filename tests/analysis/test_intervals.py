"""Intervals cover what they say near the ends and for two heads or seeds, and agree with their tests."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest
from helpers.relations import effects, index, told
from helpers.sweeps import ablated
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import headroles as hr
from headroles.ablation.example_stats import ExampleStats
from headroles.ablation.metrics import Accuracy, Loss
from headroles.ablation.significance import interval, metric_with_interval
from headroles.analysis import intervals
from headroles.analysis.intervals import bootstrap_counts, contrasts, holm, permuted_roles, relation, roc_areas
from headroles.analysis.relations import predict_outcome
from headroles.tables import frame


def of_share(sentences, chance, alike, random):
    """The interval of a share of tokens in sentences, as `Book` makes it."""
    queries = np.clip(random.lognormal(2.7, 0.5, sentences).round(), 2, 60)
    own = chance if not alike else random.beta(chance * (1 / alike - 1), (1 - chance) * (1 / alike - 1), sentences)
    weights = np.concatenate([np.ones((1, sentences)), random.poisson(1.0, (100, sentences))])
    hits, totals = weights @ random.binomial(queries.astype(int), own), weights @ queries
    (low,), (high,) = intervals.share((hits / totals)[None], totals[:1], intervals.clusters(totals[None]))
    return low, high


@pytest.mark.slow
@pytest.mark.parametrize(("chance", "alike"), [(0.003, 0.0), (0.003, 0.2), (0.02, 0.1), (0.5, 0.1), (0.99, 0.05)])
def test_intervals_of_shares_cover_near_the_ends_too(chance, alike):
    random = np.random.default_rng(1)
    ends = [of_share(100, chance, alike, random) for _ in range(150)]
    covered = np.mean([low <= chance <= high for low, high in ends])
    assert 0.9 <= covered <= 0.995


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_a_share_of_none_or_all_has_an_interval(chance):
    low, high = of_share(100, chance, 0.0, np.random.default_rng(0))
    assert (low, high)[int(chance)] == chance
    assert 0.02 < high - low < 0.06  # 3.8 / (sentences + 3.8): what sentences whose tokens are all alike may hide


def test_a_single_sentence_has_no_interval():
    totals = np.array([[9.0, 9, 0, 18, 9, 0, 9, 27]])
    with np.errstate(invalid="ignore"):
        ends = intervals.share(totals / totals / 3, totals[:, 0], intervals.clusters(totals))
    assert np.isnan(ends).all()


def test_the_variance_of_totals_says_how_many_sentences_there_are():
    lengths = np.random.default_rng(0).integers(1, 40, 300)
    totals = bootstrap_counts(range(300), 4000, 0) @ lengths
    assert intervals.clusters(totals) == pytest.approx(lengths.sum() ** 2 / (lengths**2).sum(), rel=0.1)


def test_two_heads_at_the_top_are_not_sure_of_it():
    where = index(layers=1, many=40)
    row = relation(np.arange(40) >= 38, np.zeros(40), np.arange(40.0), np.zeros(40, int), 999, 999, 0)
    assert row["auc"] == 1
    assert 0.5 < row["auc.low"] < 0.8
    assert row["auc.high"] == 1
    alive = frame.table({"survival[x]": (np.arange(40) >= 38).astype(float)}, where, "s")
    row = hr.relate(told(where, rarity=np.arange(40) >= 38), alive, n_permutations=999).iloc[0]
    assert (row["within"], row["auc"], row["note"]) == (pytest.approx(1), 1, "")
    assert 0.1 < row["within.low"] < 0.6
    scores = frame.table({"confidence": np.arange(40.0)}, where, "s")
    row = predict_outcome(scores, alive, n_permutations=99).iloc[0]
    assert (row["auc"], row["auc.high"]) == (1, 1)
    assert 0.5 < row["auc.low"] < 0.8


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "seed_noise", "example_noise"), [*product((2, 3), (0.0, 1.0), (0.1, 1.0))])
def test_means_over_seeds_cover(seeds, seed_noise, example_noise):
    random, covered = np.random.default_rng(seeds), 0
    for _ in range(200):
        examples = 3 * example_noise * random.normal(size=(100, 1)) + random.normal(size=(100, seeds))
        runs = examples + seed_noise * random.normal(size=seeds)
        weights = np.concatenate([np.ones((1, 100)), random.poisson(1.0, (100, 100))])
        low, high = intervals.over_seeds((weights @ runs / weights.sum(1, keepdims=True)).T)
        covered += low <= 0 <= high
    assert covered >= 0.92 * 200


@pytest.mark.parametrize(("examples", "least"), [(1, 1.0), (2, 0.5), (10, 2**-9), (5000, np.finfo(float).tiny)])
def test_p_is_never_0(examples, least):
    assert intervals.least_p(examples) == least
    assert least > 0
    assert intervals.p_value(np.zeros(9), 1.0) == 0.1


@given(st.integers(1, 400).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
def test_wilson_is_that_of_scipy(hits):
    ends = intervals.wilson(np.array([hits[0] / hits[1]]), hits[1])
    expected = stats.binomtest(*hits).proportion_ci(0.95, method="wilson")
    np.testing.assert_allclose([float(end[0]) for end in ends], [expected.low, expected.high], atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_corrections_are_those_of_textbooks(seed):
    rng = np.random.default_rng(seed)
    p = np.round(rng.random(30) ** 3, 2)  # some are equal
    many, order = len(p), np.argsort(p)
    stepped_down, stepped_up = np.empty(many), np.empty(many)
    for rank, place_ in enumerate(order):
        stepped_down[place_] = min(1, max((many - i) * p[order[i]] for i in range(rank + 1)))
        stepped_up[place_] = min(1, min(many / (i + 1) * p[order[i]] for i in range(rank, many)))
    np.testing.assert_allclose(holm(p), stepped_down)
    np.testing.assert_allclose(intervals.benjamini_hochberg(p), stepped_up)
    np.testing.assert_allclose(intervals.benjamini_hochberg(p), stats.false_discovery_control(p))


def test_what_was_tested_once_counts_once():
    """The heads of a kind share a test: three tests are corrected for, not 24."""
    table = ablated("marian", unit="kind")
    p = table["ablation[loss kind].p"].groupby("kind", sort=False).first()
    np.testing.assert_allclose(table["ablation[loss kind].holm"].groupby("kind", sort=False).first(), holm(p.array))


def test_a_value_of_one_sentence_differs_from_one_of_two():
    counts = np.random.default_rng(0).poisson(1.0, (500, 3))
    values = np.array([0.5, 0.2, 0.9])
    with np.errstate(invalid="ignore"):
        draws = np.stack([counts[:, :n] @ values[:n] / counts[:, :n].sum(1) for n in (1, 2, 3)])
    assert intervals.single(draws).tolist() == [True, False, False]


def test_a_share_of_all_examples_has_an_exact_interval():
    for hits, of in ((10, 10), (0, 10), (3, 7), (59, 60)):
        expected = stats.binomtest(hits, of).proportion_ci(0.95)
        assert intervals.exact_share(hits / of, of) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert intervals.exact_share(1.0, 10)[0] == pytest.approx(0.6915, abs=1e-4)
    right = np.ones((10, 2))
    found = metric_with_interval(ExampleStats(right, {}, list(range(10)), 0, Accuracy()))
    assert (found["value"], found["high"]) == (1, 1)
    assert found["low"] == pytest.approx(0.6915, abs=1e-4)  # 1 by the resamples
    unchanged = np.ones(5)  # the value, and by the resamples
    assert interval(unchanged, Accuracy(), 10, before=unchanged) == pytest.approx((0, -0.3085, 0.3085), abs=1e-4)
    assert interval(-unchanged, Accuracy(), 10, before=0 * unchanged)[1:] == pytest.approx((-1, -0.3830), abs=1e-4)
    assert interval(unchanged, Loss(), 10)[1:] == (1, 1)
    right[0, 0] = 0
    assert metric_with_interval(ExampleStats(right, {}, list(range(10)), 0, Accuracy()))["low"] < 0.9


ALIKE = "the outcome is the same for all heads with the role, or for all without: no p, no interval of differences"
LITTLE = "too few permutations within layers: no interval of within"


def one_relation(held, y, layers, n_permutations=199):
    return relation(held, np.zeros(len(y)), y, layers, 199, n_permutations, 0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(2, 8), st.sampled_from(["normal", "ties", "binary"]), st.floats(0, 2))
def test_within_leaves_out_0_exactly_where_its_p_is_small(seed, many, how, effect):
    random, layers = np.random.default_rng(seed), np.repeat(np.arange(4), 8)
    held = np.isin(np.arange(32), random.permutation(32)[:many])
    y = random.normal(size=32) + effect * held
    y = y if how == "normal" else y.round() if how == "ties" else (y > 0.5).astype(float)
    if np.ptp(y) == 0:
        return
    row = one_relation(held, y, layers)
    if not math.isnan(row["within.low"]):
        assert row["within.low"] <= row["within"] <= row["within.high"]
        assert (row["within.low"] <= 0 <= row["within.high"]) == (row["p"] >= 0.05)
    if math.isnan(row["auc.low"]):
        assert how == "ties"
        return
    areas, errors = roc_areas(np.vstack([held, permuted_roles(held, np.zeros(32, int), 199, 0)]), y)
    tested = areas - 0.5
    if how != "binary" and 0 < areas[0] < 1:
        inside = np.clip(areas, 1e-9, 1 - 1e-9)
        tested = np.log(inside / (1 - inside)) / np.maximum(errors / (inside * (1 - inside)), 1e-6)
    p = intervals.p_value(tested[1:], tested[0])
    assert (row["auc.low"] <= 0.5 <= row["auc.high"]) == (p >= 0.05)


def test_errors_are_those_of_scipy():
    random, layers = np.random.default_rng(0), np.repeat(np.arange(4), 8)
    y, held = random.normal(size=32).round(1), np.arange(32) % 8 < 3
    whole, each = np.ones((32, 1), bool), layers[:, None] == np.arange(4)
    (difference,), (error,) = contrasts(held[None], y, whole)
    assert difference / error == pytest.approx(stats.ttest_ind(y[held], y[~held], equal_var=False).statistic)
    (area,), (error,) = roc_areas(held[None], y)
    assert (area - 0.5) / error == pytest.approx(stats.brunnermunzel(y[~held], y[held]).statistic)
    first = np.arange(32) % 8 == 0  # one head of each layer
    distances = y[first] - y[~first].reshape(4, 7).mean(1)
    (difference,), (error,) = contrasts(first[None], y, each)
    assert (difference, difference / error) == pytest.approx(
        (distances.mean(), stats.ttest_1samp(distances, 0).statistic)
    )


def test_errors_within_layers_are_unbiased_whatever_the_spread():
    random, layers = np.random.default_rng(0), np.repeat(np.arange(3), 6)
    held, members = np.isin(np.arange(18), [0, 6, 7, 12, 13, 14]), layers[:, None] == np.arange(3)
    outcomes = random.normal(size=(4000, 18)) * np.where(held, 3, 1)
    found = np.array([[part[0] for part in contrasts(held[None], y, members)] for y in outcomes])
    assert (found[:, 1] ** 2).mean() == pytest.approx(found[:, 0].var(), rel=0.06)


def test_an_interval_is_as_many_errors_wide_as_dealing_out_rejects():
    y, layers = np.random.default_rng(0).normal(size=12), np.zeros(12, int)
    every = [np.isin(np.arange(12), own) for own in combinations(range(12), 3)]
    ratios = np.sort([abs(stats.ttest_ind(y[own], y[~own], equal_var=False).statistic) for own in every])
    row = relation(every[0], np.zeros(12), y, layers, 0, 39_999, 0)
    error = row["within"] / stats.ttest_ind(y[:3], y[3:], equal_var=False).statistic
    assert row["within.high"] + row["within.low"] == pytest.approx(2 * row["within"])
    assert ratios[-12] <= (row["within.high"] - row["within"]) / error <= ratios[-10]  # 11 of 220 are 5 %


AREA = stats.norm.cdf(1 / math.sqrt(2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("many", "seeds", "share", "spread", "true"),
    [*((many, 200, 0.89, 1, (0, 0, 0, 0.5)) for many in (3, 6)),
     *((many, 60, 0.9, 0, (1, 1, 1, AREA)) for many in (2, 3, 6))],
)  # fmt: skip
def test_intervals_of_few_heads_cover_also_where_the_role_spreads_outcomes(many, seeds, share, spread, true):
    layers, covered = np.repeat(np.arange(6), 12), []
    for seed in range(seeds):
        random = np.random.default_rng(seed)
        held = np.isin(np.arange(72), random.permutation(72)[:many])
        noise = random.normal(size=72)
        row = one_relation(held, noise * (1 + held) if spread else noise + held, layers)
        names = zip(("difference", "median", "within", "auc"), true, strict=True)
        covered.append([row[f"{name}.low"] <= value <= row[f"{name}.high"] for name, value in names])
    assert (np.mean(covered, axis=0) >= share).all()


def test_what_dealing_out_cannot_bound_is_said():
    where = index(layers=2, many=8)
    table = told(where, rarity=[1, 0, 0, 0, 0, 0, 0, 0] + [1] * 8)
    row = hr.relate(table, effects(where, loss=np.arange(16.0) ** 2), n_permutations=199).iloc[0]
    assert row["note"] == LITTLE  # eight ways: the smallest p is 1/8
    assert np.isnan(row[["within.low", "within.high"]].astype(float)).all()
    assert np.isfinite(row[["auc.low", "difference.low"]].astype(float)).all()
    held = np.arange(16) % 2
    row = hr.relate(told(where, rarity=held), effects(where, loss=3 * held - 0.5), n_permutations=199).iloc[0]
    assert row["note"] == ALIKE
    assert np.isnan(row[["difference.low", "within.low", "median.low"]].astype(float)).all()


def test_a_role_of_one_head_has_no_standard_error():
    random = np.random.default_rng(0)
    y, members = random.normal(size=(40, 12)) + 0.1, np.ones((12, 1), bool)
    for values in y:
        assert np.isnan(contrasts(np.eye(12, dtype=bool), values, members)[1]).all()
