"""Summaries of tables of heads: correlations that hold what they are of, and heads counted once."""

from __future__ import annotations

import math
from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers.close import close
from helpers.relations import index
from scipy import stats

import headroles as hr
from headroles.analysis import intervals
from headroles.analysis.summaries import agreement, correlations, functions, score_correlations, thirds
from headroles.plots.labels import label_of
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
        assert row["pearson"] == pytest.approx(stats.pearsonr(*pair).statistic, abs=1e-12)
        assert row["spearman"] == pytest.approx(stats.spearmanr(*pair).statistic, abs=1e-12)
    assert correlations(*related(ONE_KIND))["heads"].to_dict() == {"all": 96}  # of one kind there is one row


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
    columns |= {f"position-{variant}[-1]": columns["position[-1]"] for variant in ("nosink", "norm")}  # alike
    told = functions(hr.roles(frame.table(columns, index, "made up")))
    assert told.to_numpy()[:, 1:].tolist() == [["none", 1], ["positional", 1], ["rare", 1], ["several", 1]]


def test_thirds_are_of_layers_that_have_heads():
    index = frame.index({("dec-self", layer): 1 for layer in range(2, 8)})
    table = frame.table({"survival[l0 5]": [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]}, index, "made up")
    assert thirds(table).to_numpy().tolist() == [[1, 2, 0, 2, 2, 2]]


SCORED = frame.index({("enc-self", 0): 5, ("enc-self", 1): 5, ("cross", 0): 5})
NAMES = ["confidence", "entropy", "importance", "ablation[loss]", "survival[l0 5]"]


def score_table(seed=0):
    random = np.random.default_rng(seed)
    values = random.normal(size=(len(SCORED), len(NAMES)))
    values[:, 1] = -values[:, 0] + 0.01 * values[:, 1]  # entropy says what confidence says
    values[:, 4] = values[:, 2] > 0
    values[10:, 2] = np.nan  # importance of cross heads is not known
    drawn = {
        name: (values[:, [at]] + 0.1 * random.normal(size=(len(SCORED), 30))).astype(np.float32)
        for at, name in enumerate(NAMES[:2])
    }
    return frame.table(dict(zip(NAMES, values.T, strict=True)), SCORED, "model:m|weights:w", draws=drawn)


def test_correlations_are_those_of_scipy():
    scores = score_table()
    found = score_correlations(scores).set_index(["first", "second"])
    assert len(found) == 10
    layers = [[*range(0, 5)], [*range(5, 10)], [*range(10, 15)]]
    for first, second in combinations(NAMES, 2):
        both = scores[[first, second]].dropna()
        row = found.loc[(first, second)]
        assert row["heads"] == len(both)
        close(row["all"], stats.spearmanr(both[first], both[second]).statistic, size=1)
        parts = [scores.iloc[layer][[first, second]].dropna() for layer in layers]
        varied = [part for part in parts if len(part) > 2 and (part.nunique() > 1).all()]
        close(row["within"], np.mean([stats.spearmanr(part[first], part[second]).statistic for part in varied]), size=1)
    assert found.index[0] == ("confidence", "entropy")  # the strongest is first


@pytest.mark.slow
def test_intervals_take_heads_as_the_sample():
    """Of unrelated scores about one interval in twenty excludes 0, over all heads and within layers."""
    index = frame.index({("enc-self", layer): 8 for layer in range(6)})
    columns = {f"position[{at}]": np.random.default_rng(at).normal(size=len(index)) for at in range(25)}
    found = score_correlations(frame.table(columns, index, "model:m"))
    for name in ("all", "within"):
        outside = ((found[f"{name}.low"] > 0) | (found[f"{name}.high"] < 0)).sum()
        assert stats.binom.ppf(0.001, len(found), 0.05) <= outside <= stats.binom.ppf(0.999, len(found), 0.05)
    row = found.iloc[0]
    z, error = np.arctanh(row["all"]), 1.959964 * np.sqrt((1 + row["all"] ** 2 / 2) / 45)
    close(row[["all.low", "all.high"]], np.tanh([z - error, z + error]))
    few = score_correlations(score_table().loc[["cross"]], ["confidence", "entropy"])
    assert few[["all.low", "within.high"]].isna().all(axis=None)  # five heads


def test_the_map_shows_exactly_the_table():
    found = score_correlations(score_table())
    axes = hr.plots.score_map(found)
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert sorted(labels) == sorted(map(label_of, NAMES))
    assert abs(labels.index("confidence") - labels.index("entropy")) == 1  # the most alike are side by side
    grid = np.ma.filled(axes.collections[0].get_array(), np.nan).reshape(5, 5)
    texts = {(text.get_position()[1] - 0.5, text.get_position()[0] - 0.5): text for text in axes.texts}
    for row in found.itertuples(index=False):
        a, b = labels.index(label_of(row.first)), labels.index(label_of(row.second))
        assert grid[a, b] == grid[b, a] == row.all
        text = texts[a, b]
        assert text.get_text().replace("−", "-") == f"{100 * row.all:z.0f}"
        unsure = found[(found["first"] == row.first) & (found["second"] == row.second)].iloc[0]
        assert (text.get_color() == "0.65") == bool(unsure["all.low"] <= 0 <= unsure["all.high"])
    assert np.isnan(np.diag(grid)).all()
    plt.close(axes.figure)
    within = hr.plots.score_map(found, "within")
    assert "within layers" in within.figure.axes[-1].get_ylabel()
    plt.close(within.figure)


def test_the_map_has_room_for_its_labels_and_shows_the_title_of_a_score():
    random = np.random.default_rng(0)
    names = ["mine", *(f"syntax[{relation} dep>head]" for relation in ("amod", *map(str, range(30))))]
    table = frame.table({name: random.random(len(SCORED)) for name in names}, SCORED, "score.mine.title:to the left")
    axes = hr.plots.score_map(score_correlations(table))
    axes.figure.canvas.draw()
    labels = [*axes.get_yticklabels(), *axes.get_xticklabels()]
    assert {"to the left", "adjective → its noun"} < {text.get_text() for text in labels}
    for box in (text.get_window_extent() for text in labels):
        assert min(box.x0, box.y0) >= 0
    width, height = axes.get_window_extent().size
    assert width == pytest.approx(height, rel=0.15)
    plt.close(axes.figure)


@pytest.mark.slow
def test_agreement_is_spearmans():
    index = frame.index({(kind, layer): 4 for kind in frame.KINDS for layer in range(2)} | {("cross", 2): 4})
    rng = np.random.default_rng(0)
    names = ["one", "two", "three"]
    columns = {name: rng.integers(0, 9, len(index)).astype(float) for name in names}  # with ties
    columns["three"][-4:] = 1  # of a layer in which it does not vary
    draws = {
        name: (values[:, None] + rng.normal(size=(len(index), 30))).astype(np.float32)
        for name, values in columns.items()
    }
    more = {name: np.pad(drawn, ((0, 0), (0, 9 * (name == "two")))) for name, drawn in draws.items()}
    score_table = frame.table(columns, index, "signed", draws=more)
    found = agreement(score_table, names[:2], "three")
    assert found["all"].is_monotonic_decreasing
    layers = [part.index for _, part in score_table.groupby(level=["kind", "layer"]) if part["three"].nunique() > 1]

    def expected(one, other):
        within = [stats.spearmanr(one[layer], other[layer]).statistic for layer in layers]
        return stats.spearmanr(one, other).statistic, np.mean(within)

    for name in names[:2]:
        assert found.loc[name, ["all", "within"]].tolist() == pytest.approx(
            expected(score_table[name], score_table["three"])
        )
        pairs = zip(draws[name].T, draws["three"].T, strict=True)
        resampled = [expected(*(pd.Series(each, index) for each in pair)) for pair in pairs]
        half, middle = 1.96 * np.std(resampled, axis=0), found.loc[name, ["all", "within"]].to_numpy(float)
        low, high = np.maximum(middle - half, -1), np.minimum(middle + half, 1)
        np.testing.assert_allclose(found.loc[name, ["all.low", "within.low"]].astype(float), low)
        np.testing.assert_allclose(found.loc[name, ["all.high", "within.high"]].astype(float), high)


def test_agreement_without_resamples_has_no_bounds_and_of_heads_that_are_all_alike_no_ranks():
    index = frame.index({("enc-self", 0): 4, ("enc-self", 1): 4})
    columns = {"one": np.arange(8.0), "two": np.arange(8.0)[::-1], "flat": np.ones(8)}
    found = agreement(frame.table(columns, index, "signed"), ["one"], "two")
    assert found.loc["one", ["all", "within"]].tolist() == pytest.approx([-1, -1])
    assert found[["all.low", "all.high", "within.low", "within.high"]].isna().all(axis=None)
    draws = {"flat": np.ones((8, 5), np.float32), "two": np.random.default_rng(0).random((8, 5)).astype(np.float32)}
    assert agreement(frame.table(columns, index, "signed", draws=draws), ["flat"], "two").isna().all(axis=None)
    pairs = frame.table(columns, frame.index({("enc-self", layer): 2 for layer in range(4)}), "signed")
    assert agreement(pairs, ["one"], "two").notna().to_numpy().tolist() == [[True, *5 * [False]]]
