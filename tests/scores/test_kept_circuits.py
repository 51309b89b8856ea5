"""What is computed from weights alone is kept in a study, in one table, and belongs to one model."""

from __future__ import annotations

import pandas as pd
import pytest
from helpers import zoo
from helpers.letters import corpus, tokens_of

import headroles as hr
from headroles.scores import circuits


def test_circuits_are_kept_and_not_computed_again(tmp_path, monkeypatch):
    model, study = zoo.tiny("gpt2"), hr.Study(tmp_path)
    alone = {"circuits": hr.copying(model), "composition": hr.composition(model)}
    found = {"circuits": hr.copying(model, study=study), "composition": hr.composition(model, study=study)}
    monkeypatch.setattr(circuits, "read_circuits", lambda *_: pytest.fail("computed again"))
    again = {"circuits": hr.copying(model, study=tmp_path), "composition": hr.composition(model, study=tmp_path)}
    for name, table in alone.items():
        for kept in (found[name], again[name], study.load(name)):
            pd.testing.assert_frame_equal(kept, table, check_exact=True)


def test_other_weights_are_computed_again(tmp_path):
    hr.copying(zoo.tiny("gpt2"), study=tmp_path)
    other = zoo.tiny("gpt2", seed=1)
    found = hr.copying(other, study=hr.Study(tmp_path, overwrite=True))
    pd.testing.assert_frame_equal(found, hr.copying(other))


@pytest.mark.parametrize("metrics", [["loss"], ["loss", "accuracy"]])
def test_metrics_are_kept(tmp_path, monkeypatch, metrics):
    from headroles.ablation import evaluation

    model, tokens, text = zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(6)
    if "accuracy" in metrics:
        metrics = ["loss", "perplexity"]
    alone = hr.evaluate(model, tokens, text, metrics, n_resamples=20)
    pd.testing.assert_frame_equal(hr.evaluate(model, tokens, text, metrics, n_resamples=20, study=tmp_path), alone)
    monkeypatch.setattr(evaluation, "worth", lambda *_, **__: pytest.fail("computed again"))
    pd.testing.assert_frame_equal(hr.evaluate(model, tokens, text, metrics, n_resamples=20, study=tmp_path), alone)


def test_an_attribution_is_a_column_of_the_scores_of_a_study(tmp_path):
    model, tokens, text = zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(4)
    hr.score(model, tokens, text, ["confidence"], n_resamples=0, max_tokens=1024, study=tmp_path)
    found = hr.attribute(model, tokens, text, method="FeatureAblation", n_resamples=0, study=tmp_path)
    kept = hr.Study(tmp_path).load("heads")
    assert {"confidence", "attribution[FeatureAblation]"} <= set(kept)
    assert kept["attribution[FeatureAblation]"].tolist() == found["attribution[FeatureAblation]"].tolist()
