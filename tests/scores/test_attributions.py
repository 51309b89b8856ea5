"""An attribution is a score, also in a study."""

from __future__ import annotations

import numpy as np
import pandas as pd
from helpers import zoo
from helpers.explaining import FEW, measured
from helpers.letters import corpus, tokens_of

import headroles as hr
from headroles.tables import frame


def test_an_attribution_is_a_column_of_the_scores_of_a_study(tmp_path):
    model, tokens, text = zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(4)
    hr.score(model, tokens, text, ["confidence"], n_resamples=0, max_tokens=1024, study=tmp_path)
    found = hr.attribute(model, tokens, text, method="FeatureAblation", n_resamples=0, study=tmp_path)
    kept = hr.Study(tmp_path).load("heads")
    assert {"confidence", "attribution[FeatureAblation]"} <= set(kept)
    assert kept["attribution[FeatureAblation]"].tolist() == found["attribution[FeatureAblation]"].tolist()


def test_deep_lift_says_how_far_it_applies():
    given, deltas = (zoo.tiny("marian"), tokens_of("marian"), corpus(3)), []
    for options in ({"method": "DeepLift"}, {"n_steps": 64}):
        table = hr.attribute(*given, **options, n_resamples=0)
        assert np.isfinite(table).all(axis=None)
        deltas.append(float(dict(frame.fields(frame.provenance(table, table.columns[0])))["delta"]))
    assert deltas[0] > 0
    assert deltas[1] < 0.01


def test_attribute_is_score_with_an_attribution():
    asked = hr.Attribution(method="FeatureAblation", replacement="uniform", options=(("perturbations_per_eval", 3),))
    table = measured("bert", asked, corpus(FEW), n_resamples=20, max_tokens=1024)
    options = {"method": "FeatureAblation", "replacement": "uniform", "perturbations_per_eval": 3, "n_resamples": 20}
    other = hr.attribute(zoo.tiny("bert"), tokens_of("bert"), corpus(FEW), **options)
    pd.testing.assert_frame_equal(table, other, rtol=0, atol=0)
    name = "attribution[FeatureAblation]"
    assert list(table) == [f"{column}{end}" for column in (name, f"{name}.size") for end in ("", ".low", ".high")]
    assert frame.provenance(table, name) == frame.provenance(other, name)
