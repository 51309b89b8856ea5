"""The comparison of scores by figures/questions/relevance: its tables are those of the public functions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers import zoo
from helpers.close import bound
from helpers.letters import corpus, tokens_of
from helpers.scripts import script

import headroles as hr
from headroles.ablation.curves import ablation_curve, areas
from headroles.tables import frame

PLACE = "questions/relevance"
COMPARED = {f"relevance[{rules}{by}].size" for rules in ("cp", "voita") for by in ("", " logit")}
COMPARED |= {"confidence", "importance"}


def compared(model, name, folder, rules):
    study = hr.Study(folder)
    given = (model, tokens_of(name), corpus(6), corpus(20)[6:])
    script(PLACE).compare(*given, study, rules=rules, seeds=2, n_resamples=20)
    return study


@pytest.mark.slow
def test_the_least_relevant_heads_are_masked_first(tmp_path):
    study = compared(zoo.tiny("marian"), "marian", tmp_path, ("cp", "voita"))
    scores, curves, area = (study.load(name) for name in ("heads", "curves", "areas"))
    assert set(study.load("agreement").index) == COMPARED
    assert set(area.index) == COMPARED | {script(PLACE).ABLATION, "random 0", "random 1"}
    for name in ("confidence", "relevance[cp].size"):
        order = {name: scores[name].sort_values(kind="stable").index.tolist()}
        alone = ablation_curve(zoo.tiny("marian"), tokens_of("marian"), corpus(20)[6:], order, n_resamples=20)
        kept = curves[curves["order"] == name].reset_index(drop=True)
        pd.testing.assert_frame_equal(frame.bare(kept), frame.bare(alone), rtol=0, atol=bound(1))
        np.testing.assert_allclose(area.loc[name], areas(alone).loc[name], rtol=0, atol=bound(1))


@pytest.mark.slow
def test_an_encoder_without_a_head_is_compared_by_its_states(tmp_path):
    study = compared(zoo.tiny("bert").base_model, "bert", tmp_path, ("cp",))
    for column in ("importance", "relevance[cp]", script(PLACE).ABLATION):
        assert "objective:Similarity()" in frame.provenance(study.load("heads"), column).split("|")
    assert study.load("areas")["area"].between(-1, 1).all()
