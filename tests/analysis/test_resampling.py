"""Permutation statistics agree with scipy and with their intervals, also for few heads."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from helpers.relations import effects, index, told
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import headroles as hr
from headroles.analysis import intervals
from headroles.analysis.resampling import contrasts, permuted_roles, relation, roc_areas

ALIKE = "the outcome is the same for all heads with the role, or for all without: no interval of differences"
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
    [*((many, 200, 0.89, 1, (0, 0, 0, 0.5, 0)) for many in (3, 6)),
     *((many, 60, 0.9, 0, (1, 1, 1, AREA, 2 * AREA - 1)) for many in (2, 3, 6))],
)  # fmt: skip
def test_intervals_of_few_heads_cover_also_where_the_role_spreads_outcomes(many, seeds, share, spread, true):
    layers, covered = np.repeat(np.arange(6), 12), []
    for seed in range(seeds):
        random = np.random.default_rng(seed)
        held = np.isin(np.arange(72), random.permutation(72)[:many])
        noise = random.normal(size=72)
        row = one_relation(held, noise * (1 + held) if spread else noise + held, layers)
        names = zip(("difference", "median", "within", "auc", "rank_biserial"), true, strict=True)
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
    from headroles.analysis.resampling import contrasts

    random = np.random.default_rng(0)
    y, members = random.normal(size=(40, 12)) + 0.1, np.ones((12, 1), bool)
    for values in y:
        assert np.isnan(contrasts(np.eye(12, dtype=bool), values, members)[1]).all()
