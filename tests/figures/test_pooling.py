"""Pooling over trained models: planted effects are found, those of a covariate and of a layer are not, p is uniform."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from pooling import graded_roles, pooled_survival, random_effects
from scipy import stats

from headroles.tables import frame


def model(seed, *, effect=0.0, of_layer=0.0, of_covariate=0.0, layers=3, size=8):
    """A table of heads of which half survive, by what the effects say and by chance."""
    random = np.random.default_rng(seed)
    index = frame.index({("enc-self", layer): size for layer in range(layers)})
    layer = index.get_level_values("layer").to_numpy()
    confidence = random.normal(size=len(index))
    positional = random.normal(size=len(index)) + layer * of_layer + confidence * of_covariate
    drawn = effect * positional + of_covariate * confidence + of_layer * layer + random.normal(size=len(index))
    survival = (drawn > np.median(drawn)).astype(float)
    columns = {"positional": positional, "syntactic": random.normal(size=len(index)), "confidence": confidence}
    return frame.table(columns | {"sink": random.normal(size=len(index)), "survival": survival}, index, "simulated")


def models(count, start=0, **effects):
    return {f"seed {seed}": model(start + seed, **effects) for seed in range(count)}


def pooled(tables, **options):
    return pooled_survival(tables, ["survival"], n_permutations=99, **options).set_index("predictor")


def test_a_planted_effect_is_found_and_no_other():
    found = pooled(models(6, effect=2.0))
    assert found.loc["positional", "r"] > 0.5
    assert found.loc["positional", "r.low"] > 0.2
    assert found.loc["positional", "holm"] == 2 / 100
    assert found.loc["positional", "p"] == 1 / 100
    assert found.loc["positional", "population.low"] > 0.2
    assert found.loc["positional", "agree"] == 1
    assert found.loc["syntactic", "r.low"] < 0 < found.loc["syntactic", "r.high"]


@pytest.mark.parametrize("effects", [{"of_layer": 3.0}, {"of_covariate": 2.0}])
def test_what_a_layer_or_a_covariate_does_is_not_the_roles(effects):
    tables = models(8, **effects)
    raw = [table[["positional", "survival"]].corr("spearman").iloc[0, 1] for table in tables.values()]
    assert min(raw) > 0.2
    found = pooled(tables).loc["positional"]
    assert found["r.low"] < 0 < found["r.high"]
    if "of_covariate" in effects:
        assert pooled(tables, covariates=()).loc["positional", "r.low"] > 0


@pytest.mark.slow
def test_p_is_uniform_where_there_is_nothing():
    drawn = [pooled(models(4, start=100 * number), predictors=["positional"]) for number in range(30)]
    for name, least in (("p", 0.01), ("population.p", 0.01)):
        values = [table[name].iloc[0] for table in drawn]
        assert np.mean(np.array(values) < 0.05) <= 0.17  # 5 of 30, of which there are more with probability .003
        assert stats.kstest(values, "uniform", alternative="greater").pvalue > least  # p is not too small


def test_an_interval_excludes_zero_exactly_where_p_is_small_and_power_grows_with_models():
    rows = [pooled(models(count, start=10 * seed, effect=0.4)) for count in (3, 8) for seed in range(4)]
    for table in rows:
        assert (((table["r.low"] > 0) | (table["r.high"] < 0)) == (table["p"] < 0.05)).all()
    few, many = (pd.concat(rows[start : start + 4]) for start in (0, 4))
    assert (few["power"].max(), many["detectable"].max()) < (many["power"].min(), few["detectable"].min())


def of_one_encoder(seed, count):
    """Models of which the heads and their survival are those of an encoder, but for a little."""
    random, first, tables = np.random.default_rng(seed), model(seed), {}
    scores = ["positional", "syntactic", "confidence", "sink"]
    drawn = random.normal(size=len(first))
    for name in range(count):
        table = first.copy()
        table[scores] += 0.1 * random.normal(size=(len(table), len(scores)))
        kept = drawn + 0.3 * random.normal(size=len(table))
        tables[f"seed {name}"] = table.assign(survival=(kept > np.median(kept)).astype(float))
    return tables


@pytest.mark.slow
def test_models_of_one_encoder_are_permuted_alike(monkeypatch):
    monkeypatch.setattr("pooling.ALIKE", 2)
    encoders = {"alike": dict.fromkeys(of_one_encoder(0, 6), "MiniLM"), "apart": None}
    rejected = dict.fromkeys(encoders, 0)
    for seed in range(20):
        for name, encoder in encoders.items():
            found = pooled(of_one_encoder(seed, 6), encoders=encoder, predictors=["positional"], covariates=())
            rejected[name] += found["p"].iloc[0] < 0.05
    assert rejected["alike"] <= 4  # more with probability .003
    assert rejected["apart"] >= 5  # as if each were a model of its own


def test_models_that_agree_head_by_head_are_refused():
    with pytest.raises(ValueError, match="models 'seed 0' and 'seed 1' agree head by head: got a rank correlation of"):
        pooled(of_one_encoder(0, 2))
    assert pooled(of_one_encoder(0, 2), encoders={"seed 0": "MiniLM", "seed 1": "MiniLM"})["models"].tolist() == [2, 2]


def test_pooled_by_hand():
    """Of equal variances the mean is plain, and the spread of effects decides the interval."""
    effects = np.array([0.1, 0.5, 0.9])
    mean, low, high, p, share = random_effects(effects, np.full(3, 0.01))
    test = stats.ttest_1samp(effects, 0)
    assert mean == pytest.approx(0.5, rel=1e-12)
    assert [low, high] == pytest.approx(test.confidence_interval(0.95), rel=1e-9)
    assert p == pytest.approx(test.pvalue, rel=1e-9)
    assert share == pytest.approx(1 - 2 / 32, rel=1e-12)  # Q = (.16 + .16) / .01


def test_layers_without_a_choice_and_missing_values_are_left_out():
    table = model(3, effect=1.0)
    columns = {name: np.r_[table[name], np.arange(8.0) if name == "positional" else np.ones(8)] for name in table}
    more = frame.table(columns, frame.index({("enc-self", layer): 8 for layer in range(4)}), "simulated")
    other = model(4, effect=1.0)
    pd.testing.assert_frame_equal(pooled({"a": table, "b": other}), pooled({"a": more, "b": other}), check_exact=False)
    none = {name: one.assign(survival=1.0) for name, one in models(3).items()}
    assert pooled(none)["models"].tolist() == [0, 0]
    assert pooled(none)["p"].isna().all()


def test_graded_roles_are_the_largest_share_and_margin():
    index = frame.index({("enc-self", 0): 2})
    columns = {
        "position[-1]": [0.2, 0.9], "position[+1]": [0.3, 0.1], "position[best]": [1.0, 1.0],
        "syntax[obj dep>head]": [0.5, 0.2], "syntax[obj dep>head].baseline": [0.4, 0.4],
        "syntax[nsubj dep>head]": [0.9, 0.3], "syntax[nsubj dep>head].baseline": [0.6, 0.6],
        "confidence": [0.7, 0.8], "sink[special]": [0.1, 0.6], "sink[first]": [0.2, 0.0],
    }  # fmt: skip
    found = graded_roles(frame.table(columns, index, "by hand"))
    assert found["positional"].tolist() == [0.3, 0.9]
    assert found["syntactic"].tolist() == pytest.approx([0.3, -0.2])
    assert found["sink"].tolist() == [0.2, 0.6]


def test_what_cannot_be_pooled_is_said():
    with pytest.raises(ValueError, match="too few models to pool: got 1; expected at least 2"):
        pooled(models(1))
    with pytest.raises(ValueError, match="model 'seed 1' lacks column 'sink'"):
        pooled(models(1) | {"seed 1": model(1).drop(columns="sink")})
