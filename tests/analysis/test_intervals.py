"""Intervals cover what they say near the ends and for two heads or seeds, and agree with their tests."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
from helpers.relations import effects, index, told
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import headroles as hr
from headroles.ablation.early_stopping import scores
from headroles.ablation.example_stats import ExampleStats
from headroles.ablation.metrics import F1, Loss
from headroles.ablation.significance import effects as found_effects
from headroles.analysis import intervals
from headroles.analysis.association import matters
from headroles.analysis.intervals import bootstrap_counts
from headroles.analysis.prediction import predict_outcome
from headroles.analysis.resampling import contrasts, permuted_roles, relation, roc_areas
from headroles.analysis.summaries import correlations
from headroles.pruning.comparison import _summary
from headroles.tables import frame

ALIKE = "the outcome is the same for all heads with the role, or for all without: no interval of differences"
LITTLE = "too few permutations within layers: no interval of within"


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


@pytest.mark.slow
@pytest.mark.parametrize("many", [3, 6])
def test_intervals_cover_also_where_the_role_spreads_outcomes(many):
    layers, covered = np.repeat(np.arange(6), 12), []
    true = {"difference": 0.0, "median": 0.0, "within": 0.0, "auc": 0.5, "rank_biserial": 0.0}
    for seed in range(200):
        random = np.random.default_rng(seed)
        held = np.isin(np.arange(72), random.permutation(72)[:many])
        row = one_relation(held, random.normal(size=72) * (1 + held), layers)
        covered.append([row[f"{name}.low"] <= value <= row[f"{name}.high"] for name, value in true.items()])
    assert (np.mean(covered, axis=0) >= 0.89).all()


@pytest.mark.slow
@pytest.mark.parametrize("many", [2, 3, 6])
def test_intervals_of_few_heads_cover(many):
    layers, covered = np.repeat(np.arange(6), 12), []
    area = stats.norm.cdf(1 / math.sqrt(2))
    true = {"difference": 1.0, "median": 1.0, "within": 1.0, "auc": area, "rank_biserial": 2 * area - 1}
    for seed in range(60):
        random = np.random.default_rng(seed)
        held = np.isin(np.arange(72), random.permutation(72)[:many])
        row = one_relation(held, random.normal(size=72) + held, layers)
        covered.append([row[f"{name}.low"] <= value <= row[f"{name}.high"] for name, value in true.items()])
    assert (np.mean(covered, axis=0) >= 0.9).all()


def test_two_heads_at_the_top_are_not_sure_of_it():
    where = index(layers=1, many=40)
    row = hr.relate(told(where, rarity=np.arange(40) >= 38), effects(where, loss=range(40)), n_permutations=999).iloc[0]
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


def test_infinite_numbers_are_refused():
    where = index(layers=1)
    broken = effects(where, loss=[0, 1, math.inf, 3, 4, 5, 6, 7])
    message = (
        r"^'ablation\[loss\]' is infinite for 1 of 8 heads, such as enc-self:0:2; expected finite numbers, or NaN "
        r"where unknown; leave these heads out, or choose other columns$"
    )
    fine = frame.table({"survival[x]": [0.0, 1] * 4, "confidence": range(8)}, where, "s")
    calls = [
        lambda: hr.relate(told(where, rarity=[1, 0] * 4), broken),
        lambda: predict_outcome(broken, fine, columns=["ablation[loss]"]),
        lambda: correlations(broken["ablation[loss]"], fine["confidence"]),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call()


def test_which_way_an_outcome_matters():
    expected = {
        "ablation[loss]": "higher", "ablation[bleu]": "lower", "ablation[loss rest]": "lower",
        "ablation[bleu rest mean]": "higher", "ablation[accuracy layer early]": "lower", "ablation[own]": "unknown",
        "survival[l0 12]": "higher", "survival[importance 8].turn": "higher", "importance": "higher",
        "relevance[cp].size": "higher", "confidence": "unknown",
    }  # fmt: skip
    assert {name: matters(name) for name in expected} == expected
    where = index(layers=1)
    table = hr.relate(told(where, rarity=[1, 0] * 4), effects(where, bleu=range(8)), n_resamples=0, n_permutations=9)
    assert table["matters"].tolist() == ["lower"]


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


def test_a_comparison_pairs_its_seeds_and_says_nothing_of_one():
    names, random = ("random", "importance"), np.random.default_rng(0)
    each = pd.DataFrame(
        [{"strategy": name, "heads": 4, "tuned": True, "seed": seed} for seed in range(3) for name in names]
    )
    luck = np.repeat([0.0, 3, -5], 2)  # of a seed, for both
    draws = (luck + np.tile([0.0, 1], 3))[:, None] + 0.01 * random.normal(size=(6, 101))
    table = _summary(each, draws).set_index("strategy")
    assert table.loc["importance", "gain"] == pytest.approx(1, abs=0.05)
    assert 0.8 < table.loc["importance", "gain.low"] < table.loc["importance", "gain.high"] < 1.2
    assert table.loc["importance", "value.low"] < -5
    differences = np.array([0.0, 1.0, 2.0])
    part = intervals.over_seeds(np.repeat(differences[:, None], 9, axis=1))  # all examples alike
    assert part == pytest.approx(stats.t.interval(0.95, 2, 1, stats.sem(differences)))
    alone = _summary(each[:2], draws[:2])
    assert alone[["value.low", "value.high", "gain.low", "seeds.sd"]].isna().all(axis=None)
    assert alone["gain"].iloc[1] == pytest.approx(1, abs=0.05)


def test_correlations_of_few_heads_have_no_interval():
    where, random = index(layers=1), np.random.default_rng(0)
    one, other = (pd.Series(random.normal(size=8), where) for _ in range(2))
    known = correlations(one, other).loc["all"]
    assert known["pearson.low"] < known["pearson"] < known["pearson.high"]
    assert known["spearman.high"] == pytest.approx(intervals.rank_correlation(known["spearman"], 8)[1])
    few, perfect = correlations(one[:7], other[:7]).loc["all"], correlations(one, 2 * one).loc["all"]
    for found in (few, perfect):
        assert np.isnan(found[["pearson.low", "pearson.high", "spearman.low", "spearman.high"]]).all()


def test_two_examples_alike_are_no_proof():
    for metric, statistics in (Loss(), 2), (F1(), 7):
        intact = np.ones((2, statistics))
        masked = {frozenset({("enc-self", 0, 0)}): 3 * intact, frozenset({("enc-self", 0, 1)}): intact}
        masked = {key: np.column_stack([each[:, :-1], intact[:, -1]]) for key, each in masked.items()}
        found = ExampleStats(intact, masked, [0, 1], 0, metric)
        assert (found_effects(found, n_resamples=200).columns[".p"] >= 0.5).all()
        assert (np.abs(scores(found, list(masked))) <= stats.norm.isf(0.25) + 1e-9).all()


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
