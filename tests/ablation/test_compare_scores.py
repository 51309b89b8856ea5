"""Scores are compared with effects by rank correlations and by ablation curves."""

from __future__ import annotations

from itertools import combinations

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import scipy.stats
from helpers import zoo
from helpers.close import bound, close
from helpers.letters import corpus, tokens_of
from scipy import stats

import headroles as hr
from headroles.ablation.curves import ABLATION, ablation_curve, agreement, areas, compare
from headroles.models import heads as families
from headroles.plots.labels import label_of
from headroles.tables import frame

INDEX = frame.index({("enc-self", 0): 5, ("enc-self", 1): 5, ("cross", 0): 5})
NAMES = ["confidence", "entropy", "importance", "ablation[loss]", "survival[l0 5]"]


def table(seed=0):
    random = np.random.default_rng(seed)
    values = random.normal(size=(len(INDEX), len(NAMES)))
    values[:, 1] = -values[:, 0] + 0.01 * values[:, 1]  # entropy says what confidence says
    values[:, 4] = values[:, 2] > 0
    values[10:, 2] = np.nan  # importance of cross heads is not known
    drawn = {
        name: (values[:, [at]] + 0.1 * random.normal(size=(len(INDEX), 30))).astype(np.float32)
        for at, name in enumerate(NAMES[:2])
    }
    return frame.table(dict(zip(NAMES, values.T, strict=True)), INDEX, "model:m|weights:w", draws=drawn)


def test_correlations_are_those_of_scipy():
    scores = table()
    found = hr.score_correlations(scores).set_index(["first", "second"])
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
    found = hr.score_correlations(frame.table(columns, index, "model:m"))
    for name in ("all", "within"):
        outside = ((found[f"{name}.low"] > 0) | (found[f"{name}.high"] < 0)).sum()
        assert stats.binom.ppf(0.001, len(found), 0.05) <= outside <= stats.binom.ppf(0.999, len(found), 0.05)
    row = found.iloc[0]
    z, error = np.arctanh(row["all"]), 1.959964 * np.sqrt((1 + row["all"] ** 2 / 2) / 45)
    close(row[["all.low", "all.high"]], np.tanh([z - error, z + error]))
    few = hr.score_correlations(table().loc[["cross"]], ["confidence", "entropy"])
    assert few[["all.low", "within.high"]].isna().all(axis=None)  # five heads


def test_agreement_and_correlations_are_one_number():
    scores = frame.only(table(), ["confidence", "entropy"])
    found = hr.score_correlations(scores).set_index(["first", "second"])
    known = hr.agreement(scores, ["confidence"], "entropy").loc["confidence"]
    close(found.loc[("confidence", "entropy"), ["all", "within"]], known[["all", "within"]], size=1)


def test_the_map_shows_exactly_the_table():
    found = hr.score_correlations(table())
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


matplotlib.use("Agg")


@pytest.mark.slow
def test_agreement_is_spearmans():
    index = families.head_index(zoo.tiny("marian"))
    rng = np.random.default_rng(0)
    names = ["one", "two", "three"]
    columns = {name: rng.integers(0, 9, len(index)).astype(float) for name in names}  # with ties
    draws = {
        name: (values[:, None] + rng.normal(size=(len(index), 30))).astype(np.float32)
        for name, values in columns.items()
    }
    table = frame.table(columns, index, "signed", draws=draws)
    found = agreement(table, names[:2], "three")
    assert found["all"].is_monotonic_decreasing
    layers = [part.index for _, part in table.groupby(level=["kind", "layer"])]

    def expected(one, other):
        within = [scipy.stats.spearmanr(one[layer], other[layer]).statistic for layer in layers]
        return scipy.stats.spearmanr(one, other).statistic, np.mean(within)

    for name in names[:2]:
        assert found.loc[name, ["all", "within"]].tolist() == pytest.approx(expected(table[name], table["three"]))
        pairs = zip(draws[name].T, draws["three"].T, strict=True)
        resampled = [expected(*(pd.Series(each, index) for each in pair)) for pair in pairs]
        half, middle = 1.96 * np.std(resampled, axis=0), found.loc[name, ["all", "within"]].to_numpy(float)
        low, high = np.maximum(middle - half, -1), np.minimum(middle + half, 1)
        np.testing.assert_allclose(found.loc[name, ["all.low", "within.low"]].astype(float), low)
        np.testing.assert_allclose(found.loc[name, ["all.high", "within.high"]].astype(float), high)


def test_agreement_without_resamples_has_no_bounds():
    index = families.head_index(zoo.tiny("bert"))
    table = frame.table({"one": np.arange(8.0), "two": np.arange(8.0)[::-1]}, index, "signed")
    found = agreement(table, ["one"], "two")
    assert found.loc["one", ["all", "within"]].tolist() == pytest.approx([-1, -1])
    assert found[["all.low", "all.high", "within.low", "within.high"]].isna().all(axis=None)


def test_heads_that_are_all_alike_have_no_ranks():
    index = families.head_index(zoo.tiny("bert"))
    draws = {"flat": np.ones((8, 5), np.float32), "two": np.random.default_rng(0).random((8, 5)).astype(np.float32)}
    table = frame.table({"flat": np.ones(8), "two": np.arange(8.0)}, index, "signed", draws=draws)
    assert agreement(table, ["flat"], "two").isna().all(axis=None)


RULES = ["cp", "voita"]
COMPARED = {"confidence", "importance", "relevance[cp].size", "relevance[cp logit].size", "relevance[voita].size"}


COMPARED |= {"relevance[voita logit].size"}


OPTIONS = {"rules": RULES, "seeds": 2, "n_resamples": 20}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison on a few sentences: its study, and what it returned."""
    study = hr.Study(tmp_path_factory.mktemp("compared"))
    return study, compare(zoo.tiny("marian"), tokens_of("marian"), corpus(6), corpus(20)[6:], study=study, **OPTIONS)


@pytest.mark.slow
def test_a_comparison_keeps_its_tables(compared):
    study, (found, area) = compared
    assert {"heads", "curves", "areas", "agreement"} <= set(study.names())
    assert set(found.index) == COMPARED
    assert set(area.index) == COMPARED | {ABLATION, "random 0", "random 1"}
    pd.testing.assert_frame_equal(_bare(study.load("agreement")), _bare(found))
    pd.testing.assert_frame_equal(_bare(study.load("areas")), _bare(area))
    pd.testing.assert_frame_equal(_bare(found), _bare(agreement(study.load("heads"), list(found.index), ABLATION)))
    assert found["all"].between(-1, 1).all()


def _bare(table):
    return table.copy(deep=False).rename_axis(columns=None).set_axis(table.columns, axis=1)


def test_the_least_relevant_heads_are_masked_first(compared):
    study, (_, area) = compared
    table, curves = study.load("heads"), study.load("curves")
    for name in ("confidence", "relevance[cp].size"):
        order = {name: table[name].sort_values(kind="stable").index.tolist()}
        alone = ablation_curve(zoo.tiny("marian"), tokens_of("marian"), corpus(20)[6:], order, n_resamples=20)
        kept = curves[curves["order"] == name].reset_index(drop=True)
        pd.testing.assert_frame_equal(_bare(kept), _bare(alone), rtol=0, atol=bound(1))
        np.testing.assert_allclose(area.loc[name], areas(alone).loc[name], rtol=0, atol=bound(1))


def test_a_second_comparison_computes_nothing_again(compared):
    study, (found, area) = compared
    names = ("heads", "curves", "areas")
    before = {name: study.path(name).stat().st_mtime_ns for name in names}
    again = compare(zoo.tiny("marian"), tokens_of("marian"), corpus(6), corpus(20)[6:], study=study, **OPTIONS)
    assert {name: study.path(name).stat().st_mtime_ns for name in names} == before
    for one, other in zip(again, (found, area), strict=True):
        pd.testing.assert_frame_equal(_bare(one), _bare(other))


def test_an_encoder_without_a_head_is_compared_by_its_states(tmp_path):
    study, encoder = hr.Study(tmp_path), zoo.tiny("bert").base_model
    found, area = compare(
        encoder, tokens_of("bert"), corpus(6), corpus(20)[6:], study=study, **OPTIONS | {"rules": ["cp"]}
    )
    assert set(found.index) == {name for name in COMPARED if "voita" not in name}
    table = study.load("heads")
    for column in ("importance", "relevance[cp]", ABLATION):
        assert "objective:Similarity()" in frame.provenance(table, column).split("|")
    assert area["area"].between(-1, 1).all()
