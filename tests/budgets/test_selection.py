"""The table of a budget: effects and tests by plain statistics, the choice by each ranking, and a study."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.budgets import budget, calibration, given
from helpers.skewness import ends_of_mean, p_of_mean

import headroles as hr
from headroles.budgets.selection import summary


def test_effects_have_the_intervals_and_p_of_a_t_test_that_allows_for_skewness():
    effects = np.random.default_rng(0).normal([0, 1, -1], 1, (40, 3))
    columns = summary(effects)
    for group in range(3):
        ends = [columns["effect.low"][group], columns["effect.high"][group]]
        assert ends == pytest.approx(ends_of_mean(effects[:, group]))
        assert columns["effect.p"][group] == pytest.approx(max(p_of_mean(effects[:, group]), 2.0**-39))
    assert (columns["effect.holm"] >= columns["effect.p"]).all()
    nothing = summary(np.zeros((3, 2)))
    assert nothing["effect.p"].tolist() == [1, 1]
    assert np.isnan(summary(effects[:1])["effect.p"]).all()


def test_integrated_gradients_keep_the_largest_effects():
    table = budget(by="integrated-gradients")
    effects = calibration().along_path(4)
    np.testing.assert_allclose(table["effect"], effects.mean(0), rtol=1e-5)
    kept = table["effect"].rank(ascending=False) <= 2
    assert table["retrieval"].tolist() == kept.astype(float).tolist()
    assert (table["retrieval"] + table["streaming"]).tolist() == [1] * 4
    assert table["ranking[integrated-gradients]"].tolist() == table["effect"].tolist()
    fields = hr.provenance(table, "streaming").split("|")
    assert {"sink:2", "recent:3", "by:integrated-gradients", "keep:2", "points:4"} <= set(fields)


def test_ablation_measures_each_group_alone():
    table = budget(by="ablation")
    np.testing.assert_allclose(table["effect"], calibration().one_by_one().mean(0), rtol=1e-5)
    assert "points" not in hr.provenance(table, "effect")


def test_retrieval_is_the_score_of_the_best_head_of_a_group():
    heads = hr.score(*given(), "retrieval", n_resamples=0)["retrieval"].to_numpy().reshape(4, 2)
    table = budget(by="retrieval")
    assert table["ranking[retrieval]"].tolist() == heads.max(1).tolist()


def test_learnt_gates_rank_the_groups():
    table = budget(by="l0", steps=20)
    assert table["ranking[l0]"].tolist() == calibration().learned(2, steps=20, seed=0).tolist()
    assert table["retrieval"].sum() == 2
    assert "steps:20" in hr.provenance(table, "streaming")


def test_random_choices_follow_the_seed():
    choices = {tuple(budget(seed=seed)["retrieval"]) for seed in range(8)}
    assert len(choices) > 2
    assert all(sum(choice) == 2 for choice in choices)


def test_a_column_of_heads_or_of_groups_ranks_too():
    heads = hr.score(*given(), "confidence", n_resamples=0)["confidence"]
    table = hr.cache_budget(*given(), keep=0.25, by=heads, sink=2, recent=3)
    best = heads.to_numpy().reshape(4, 2).max(1)
    assert table["ranking[confidence]"].tolist() == best.tolist()
    assert table["retrieval"].tolist() == (best == best.max()).astype(float).tolist()
    again = hr.cache_budget(*given(), keep=0.25, by=table["ranking[confidence]"].rename("mine"), sink=2, recent=3)
    assert again["retrieval"].tolist() == table["retrieval"].tolist()


def test_layers_with_windows_have_no_rows():
    assert budget("gemma3_text", keep=1).index.tolist() == [("dec-self", 1, 0), ("dec-self", 1, 1)]
