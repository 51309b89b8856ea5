"""Correlations of all scores: those of scipy over heads and within layers, and the map shows exactly the table."""

from __future__ import annotations

from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers.close import close
from scipy import stats

import headroles as hr
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: hr.score_correlations(table(), ["confidence"]),
            "no scores to correlate: got confidence; expected two",
        ),
        (
            lambda: hr.score_correlations(table(), ["confidence", "salience"]),
            "got confidence, salience; expected two or more",
        ),
        (lambda: hr.plots.score_map(pd.DataFrame({"first": ["a"]})), "not a table of hr.score_correlations: got"),
    ],
)
def test_what_cannot_be_correlated_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
