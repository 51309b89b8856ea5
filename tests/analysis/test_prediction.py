"""Predictors are ranked by what they say of survival."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.relations import index
from scipy import stats

import headroles as hr
from headroles.tables import frame


def test_predictors_are_ranked_by_what_they_say_of_survival():
    where, random = index(layers=3), np.random.default_rng(0)
    layer = where.get_level_values("layer").to_numpy(float)
    alive = (random.random(24) < 0.5).astype(float)
    scores = {"importance": alive + 0.1 * random.random(24), "confidence": layer, "entropy": [1.0] * 24}
    table = frame.table(scores | {"position[-1]": range(24), "ablation[loss]": range(24)}, where, "s")
    out = frame.table({"survival[x 12]": alive, "survival[x 12].order": range(24)}, where, "s")
    found = hr.predict_outcome(table, out, n_resamples=50, n_permutations=199)
    assert found["score"].tolist() == ["importance", "confidence", "entropy"]
    best, flat, same = (found.iloc[place] for place in range(3))
    assert best["spearman"] == pytest.approx(stats.spearmanr(scores["importance"], alive).statistic)
    assert (best["auc"], best["p"]) == (1, 1 / 200)
    assert flat["auc"] == pytest.approx(stats.mannwhitneyu(layer[alive == 1], layer[alive == 0]).statistic / (
        alive.sum() * (1 - alive).sum()))  # fmt: skip
    assert flat["note"] == "alike within each layer"
    assert np.isnan(flat["p"])
    assert same["note"] == "the score is constant"
    chosen = {"outcome_columns": ["survival[x 12].order"], "columns": ["position[-1]"]}
    turns = hr.predict_outcome(table, out, **chosen, n_permutations=99).iloc[0]
    assert turns["spearman"] == turns["within"] == pytest.approx(1)
    assert np.isnan(turns["auc"])
