"""Scores by name, and why one is left out."""

from __future__ import annotations

import pytest
from helpers import zoo
from helpers.letters import corpus, plain, scored, tokenizer, tokens_of

import headroles as hr
from headroles.models import heads as families
from headroles.scores.registry import DEFAULT, left_out, list_scores

FAMILIES = ["bert", "albert", "llama-grouped", "marian"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_scores_stand_where_they_are_for(name):
    """A column has values for all heads of the kinds of its score, and for no others."""
    table = scored(name)
    assert table.index.equals(families.head_index(zoo.tiny(name)))
    kinds = set(table.index.unique("kind"))
    scores = {column.partition("[")[0] for column in plain(table)}
    assert scores == {score for score in DEFAULT if kinds & set(list_scores()[score].kinds)}
    for column in plain(table):
        there = set(table.index[table[column].notna()].unique("kind"))
        mine = kinds & set(list_scores()[column.partition("[")[0]].kinds)
        later = column.startswith(("position[+", "syntax"))  # a decoder may have nothing to look for
        assert there == mine or (later and there == mine - {"dec-self"}), column
        assert all(table[column].isna().groupby("kind").nunique().eq(1))


def test_a_corpus_without_trees_has_every_score_but_syntax():
    table = hr.score(zoo.tiny("marian"), tokenizer(), corpus(trees=False), n_resamples=0)
    assert {name.partition("[")[0] for name in table} == set(DEFAULT) - {"syntax"}


def test_the_reason_for_a_score_that_is_left_out_is_what_its_corpus_lacked():
    model, tokenizer = zoo.tiny("bert"), tokens_of("bert")
    table = hr.score(model, tokenizer, corpus(3), ["confidence"], n_resamples=0)
    reasons = left_out(table, ["confidence", "syntax", "rarity"])
    assert reasons == {
        "syntax": "the corpus has no dependency trees; read CoNLL-U, or make trees with headroles.parse",
        "rarity": "it was not measured",
    }
