"""Syntax: numbers made by hand, and the baseline of the best single offset."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from helpers import zoo
from helpers.letters import corpus, looking, observation, tokenizer, tokens_of, value

import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.models.tokens.alignment import NO_WORD
from headroles.scores.registry import named

COUNTS = (".words",)  # what columns end in that say how many there were, 0 where there were none


# --- exact numbers on attention made by hand ------------------------------------------------------------------------

nan = math.nan


# the words a b c d; b governs a and d, d governs c; c is written in two pieces, between [CLS] and [SEP]
TREE = Sentence("abcd", ((0, 1), (1, 2), (2, 3), (3, 4)), (1, -1, 3, 1), ("nsubj", "root", "amod", "obj"))
WORDS = [NO_WORD, 0, 1, 2, 2, 3, NO_WORD]


@pytest.mark.parametrize(
    ("places", "kind", "expected"),
    [
        # each token looks at the governor of its word
        ([0, 2, 0, 5, 5, 2, 0], "enc-self", {"nsubj dep>head": 1, "amod dep>head": 1, "obj dep>head": 1,
                                             "nsubj head>dep": 0, "advmod dep>head": nan}),
        # b looks at a, d at a piece of c: the governors find their dependents
        ([0, 0, 1, 0, 0, 4, 0], "enc-self", {"nsubj head>dep": 1, "amod head>dep": 1, "obj head>dep": 0}),
        # in a decoder only words before the query count: b sees a, d sees b and c; a does not see b
        ([0, 1, 1, 3, 4, 2, 2], "dec-self", {"nsubj head>dep": 1, "nsubj dep>head": nan, "obj dep>head": 1,
                                             "obj head>dep": nan, "amod head>dep": 0}),
    ],
)  # fmt: skip
def test_numbers_of_syntax(places, kind, expected):
    made = observation(looking(places), kind=kind, special=(0, 6), sentence=TREE, words=WORDS)
    found = value(named(["syntax"])[0], made)
    assert {name: found[f"syntax[{name}]"] for name in expected} == pytest.approx(expected, nan_ok=True)


def test_words_are_sums_of_keys_and_means_of_queries():
    """Two pieces that together weigh most are the largest word; two query pieces are heard equally."""
    score, weights = named(["syntax"])[0], torch.zeros(7, 7)
    weights[5] = torch.tensor([0, 0, 0.4, 0.3, 0.3, 0, 0])  # d: most on b alone, more on the two pieces of c
    weights[3], weights[4] = torch.eye(7)[1] * 0.6, torch.eye(7)[5] * 0.7  # c: a little more on d than on a
    found = value(score, observation(weights, special=(0, 6), sentence=TREE, words=WORDS))
    assert found["syntax[amod head>dep]"] == found["syntax[amod dep>head]"] == 1
    assert found["syntax[obj dep>head]"] == 0


def test_the_baseline_is_the_best_single_offset():
    score = named(["syntax"])[0]
    many = Sentence("abcdef", tuple((i, i + 1) for i in range(6)), (1, -1, 1, 4, 1, 1), ("x", "root", *4 * ["obj"]))
    found = value(score, observation(torch.eye(6), sentence=many, words=list(range(6))))
    # dependents 2, 4, 5 of 1 and 3 of 4: their offsets are -1, -3, -4 and +1
    assert found["syntax[obj dep>head].baseline"] == 1 / 4
    # governors 1 and 4 are right at +1 (2 of 1) and at -1 (3 of 4)
    assert found["syntax[obj head>dep].baseline"] == 1 / 2


@pytest.mark.parametrize(("apart", "found"), [(20, 1), (21, 0)])
def test_offsets_of_at_most_twenty_words_are_tried(apart, found):
    links = (apart, *[-1] * 21)
    far = Sentence("a" * 22, tuple((i, i + 1) for i in range(22)), links, ("obj", *["root"] * 21))
    told = value(named(["syntax"])[0], observation(torch.eye(22), sentence=far, words=list(range(22))))
    assert told["syntax[obj dep>head].baseline"] == told["syntax[obj head>dep].baseline"] == found
    assert told["syntax[obj dep>head].words"] == told["syntax[obj head>dep].words"] == 1


def test_the_first_word_may_govern():
    two = Sentence("ab", ((0, 1), (1, 2)), (-1, 0), ("root", "obj"))
    found = value(named(["syntax"])[0], observation(looking([1, 0]), sentence=two, words=[0, 1]))
    assert found["syntax[obj dep>head]"] == found["syntax[obj head>dep]"] == 1


def test_to_look_at_no_word_is_not_to_look_at_the_first():
    two = Sentence("ab", ((0, 1), (1, 2)), (-1, 0), ("root", "obj"))
    made = observation(looking([0, 0, 0]), special=(0,), sentence=two, words=[NO_WORD, 0, 1])
    assert value(named(["syntax"])[0], made)["syntax[obj dep>head]"] == 0


def test_subtypes_count_when_asked():
    passive = replace(TREE, relations=("nsubj:pass", "root", "amod", "obj"))
    made = observation(looking([0, 2, 0, 5, 5, 2, 0]), special=(0, 6), sentence=passive, words=WORDS)
    score = named(["syntax"])[0]
    assert math.isnan(value(score, made)["syntax[nsubj dep>head]"])
    assert value(replace(score, subtypes=True), made)["syntax[nsubj dep>head]"] == 1


def test_pairs_with_a_word_without_tokens_are_left_out():
    lost = [NO_WORD if word == 0 else word for word in WORDS]
    made = observation(looking([0, 2, 0, 5, 5, 2, 0]), special=(0, 6), sentence=TREE, words=lost)
    found = value(named(["syntax"])[0], made)
    assert found["syntax[nsubj dep>head].words"] == found["syntax[nsubj head>dep].words"] == 0  # of a and b
    assert found["syntax[amod dep>head].words"] == found["syntax[obj dep>head].words"] == 1
    assert found["syntax[amod dep>head]"] == found["syntax[obj dep>head]"] == 1


# --- end to end -----------------------------------------------------------------------------------------------------


def test_a_decoder_finds_only_earlier_words():
    """With trees that point forwards only, the governors of a decoder's words are never seen, the dependents are."""
    rows = tuple(
        replace(sentence, heads=(*range(1, size), -1), relations=(*["obj"] * (size - 1), "root"))
        for sentence in corpus(translated=False)
        if (size := len(sentence.spans))
    )
    for name in ("gpt2", "llama-grouped"):
        table = hr.score(zoo.tiny(name), tokens_of(name), Corpus("chains", rows), "syntax", n_resamples=0)
        assert table["syntax[obj dep>head]"].isna().all()
        assert table["syntax[obj head>dep]"].between(0, 1).all()
        assert (table["syntax[obj head>dep].baseline"] == 1).all()
    heads_found = hr.score(zoo.tiny("bert"), tokens_of("bert"), Corpus("chains", rows), "syntax", n_resamples=0)
    assert heads_found["syntax[obj dep>head]"].between(0, 1).all()


@pytest.mark.parametrize(("parsed", "kind"), [("source", "enc-self"), ("target", "dec-self")])
def test_trees_of_some_sentences_on_one_side_will_do(parsed, kind):
    bare, trees = corpus(8, trees=False).sentences, corpus(8).sentences
    source, target = (trees[:4] + bare[4:] if side == parsed else bare for side in ("source", "target"))
    pairs = (replace(one, target=other.target) for one, other in zip(source, target, strict=True))
    table = hr.score(zoo.tiny("marian"), tokenizer(), Corpus("half", tuple(pairs)), "syntax", n_resamples=0)
    told = table.filter(regex=r"\]$").dropna(how="all")
    assert set(told.index.get_level_values("kind")) == {kind}
