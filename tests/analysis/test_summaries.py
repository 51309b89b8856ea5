"""Summaries of tables of heads: correlations that hold what they are of, and heads counted once."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from helpers.relations import index

import headroles as hr
from headroles.analysis import intervals
from headroles.analysis.summaries import correlations, functions
from headroles.tables import frame

MANY = frame.index({(kind, layer): 8 for kind in frame.KINDS for layer in range(4)})  # 96 heads
ONE_KIND = frame.index({("enc-self", layer): 8 for layer in range(12)})
NUMBERS = [f"{name}{end}" for name in ("pearson", "spearman") for end in ("", ".low", ".high")]


def related(index=MANY, *, seed=0, correlation=0.6, decimals=None):
    """Two columns of normal numbers with a correlation."""
    one, noise = np.random.default_rng(seed).normal(size=(2, len(index)))
    pair = one, correlation * one + math.sqrt(1 - correlation**2) * noise
    return [pd.Series(each if decimals is None else each.round(decimals), index) for each in pair]


@pytest.mark.parametrize("decimals", [None, 1])
def test_correlations_are_scipys_over_all_heads_and_by_kind(decimals):
    one, other = related(decimals=decimals)
    found = correlations(one, other)
    assert list(found.index) == ["all", *frame.KINDS]
    assert list(found) == ["heads", *NUMBERS]
    assert found["heads"].tolist() == [96, 32, 32, 32]
    for name, row in found.iterrows():
        pair = [each if name == "all" else each[each.index.get_level_values("kind") == name] for each in (one, other)]
        assert row["pearson"] == pytest.approx(scipy.stats.pearsonr(*pair).statistic, abs=1e-12)
        assert row["spearman"] == pytest.approx(scipy.stats.spearmanr(*pair).statistic, abs=1e-12)


def test_heads_are_matched_by_what_they_are_and_not_by_their_rows():
    one, other = related()
    shuffled = other.sample(frac=1, random_state=0)
    names = ["pearson", "spearman"]
    for pair in ((one, shuffled), (shuffled, one)):
        found = correlations(*pair).loc[["all", *frame.KINDS], names]
        np.testing.assert_allclose(found, correlations(one, other)[names], atol=1e-12)


@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.6, 0.99])
def test_an_interval_holds_what_it_is_of(correlation):
    for seed in range(5):
        found = correlations(*related(seed=seed, correlation=correlation))
        for name in ("pearson", "spearman"):
            assert (found[f"{name}.low"] <= found[name]).all()
            assert (found[name] <= found[f"{name}.high"]).all()
            assert found[[f"{name}.low", f"{name}.high"]].abs().le(1 + 1e-12).all(axis=None)


@pytest.mark.slow
def test_intervals_cover_a_planted_correlation():
    rows = [correlations(*related(ONE_KIND, seed=seed)).loc["all"] for seed in range(200)]
    found = pd.DataFrame(rows)
    planted = {"pearson": 0.6, "spearman": 6 / math.pi * math.asin(0.3)}  # the rank correlation of normal numbers
    for name, value in planted.items():
        covered = ((found[f"{name}.low"] <= value) & (value <= found[f"{name}.high"])).mean()
        assert 0.88 <= covered <= 0.99
        assert ((found[f"{name}.low"] <= found[name]) & (found[name] <= found[f"{name}.high"])).all()


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -0.3])
def test_effects_that_are_all_alike_have_no_correlation(value):
    one, other = related()
    flat = one * 0 + value
    for pair in ((flat, other), (one, flat), (flat, flat)):
        found = correlations(*pair)
        assert found["heads"].tolist() == [96, 32, 32, 32]
        assert found[NUMBERS].isna().all(axis=None)


def test_where_only_a_kind_is_all_alike_the_others_have_theirs():
    one, other = related()
    one[one.index.get_level_values("kind") == "cross"] = 0.25
    found = correlations(one, other)
    assert found.loc["cross", NUMBERS].isna().all()
    assert found.drop("cross").notna().all(axis=None)


def test_tables_of_different_heads_are_refused():
    one, other = related()
    elsewhere = frame.index({(kind, layer): 8 for kind in ("enc-self", "dec-self") for layer in range(6)})
    for pair, sizes in (
        ((one, other[:40]), "96 and 40 rows, 40"),
        ((one[:40], other), "40 and 96 rows, 40"),
        ((one[:50], other[40:]), "50 and 56 rows, 10"),
        ((one, related(elsewhere)[0]), "96 and 96 rows, 64"),
    ):
        with pytest.raises(ValueError, match=f"^the tables are of different heads: got {sizes} in common; "):
            correlations(*pair)


def test_of_one_kind_there_is_one_row():
    found = correlations(*related(ONE_KIND))
    assert list(found.index) == ["all"]
    assert found["heads"].tolist() == [96]


def test_correlations_of_few_heads_have_no_interval():
    where, random = index(layers=1), np.random.default_rng(0)
    one, other = (pd.Series(random.normal(size=8), where) for _ in range(2))
    known = correlations(one, other).loc["all"]
    assert known["pearson.low"] < known["pearson"] < known["pearson.high"]
    assert known["spearman.high"] == pytest.approx(intervals.rank_correlation(known["spearman"], 8)[1])
    few, perfect = correlations(one[:7], other[:7]).loc["all"], correlations(one, 2 * one).loc["all"]
    for found in (few, perfect):
        assert np.isnan(found[["pearson.low", "pearson.high", "spearman.low", "spearman.high"]]).all()


def test_functions_count_each_head_once():
    index = frame.index({("enc-self", 0): 4})
    columns = {"position[-1]": [0.95, 0.95, 0.5, 0.1], "rarity": [0.1, 0.6, 0.7, 0.2]}
    told = functions(hr.roles(frame.table(columns, index, "made up")))
    assert dict(zip(told["function"], told["count"], strict=True)) == {
        "none": 1,
        "positional": 1,
        "rare": 1,
        "several": 1,
    }
