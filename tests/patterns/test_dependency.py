"""Dependency: the pieces of the other word in a small tree, by hand; imposed by a plain loop over the links."""

from __future__ import annotations

import pytest
import torch
from helpers.imposed import alike, imposed_equals_loop, lettered, table
from helpers.letters import observation

from headroles.data.corpus import Corpus, Sentence
from headroles.models.tokens.alignment import NO_WORD
from headroles.patterns import Dependency

# the words a b c d; b governs a and d, d governs c; c is written in two pieces, between [CLS] and [SEP]
TREE = Sentence("abcd", ((0, 1), (1, 2), (2, 3), (3, 4)), (1, -1, 3, 1), ("nsubj:pass", "root", "amod", "obj"))
WORDS = [NO_WORD, 0, 1, 2, 2, 3, NO_WORD]


@pytest.mark.parametrize(
    ("pattern", "kind", "expected"),  # query -> keys
    [
        (Dependency("obj"), "enc-self", {5: [2]}),
        (Dependency("obj"), "dec-self", {5: [2]}),
        (Dependency("obj", "head>dep"), "enc-self", {2: [5]}),
        (Dependency("obj", "head>dep"), "dec-self", {}),  # its dependent is later
        (Dependency("amod"), "enc-self", {3: [5], 4: [5]}),  # both pieces are queries
        (Dependency("amod", "head>dep"), "enc-self", {5: [3, 4]}),  # and keys, which share the weight
        (Dependency("amod", "head>dep"), "dec-self", {5: [3, 4]}),
        (Dependency("nsubj"), "enc-self", {}),
        (Dependency("nsubj:pass"), "enc-self", {1: [2]}),
        (Dependency("nsubj", subtypes=True), "enc-self", {1: [2]}),
        (Dependency("root"), "enc-self", {}),
    ],
)
def test_targets_are_the_pieces_of_the_other_word(pattern, kind, expected):
    seen = observation(torch.ones(7, 7), kind=kind, special=(0, 6), sentence=TREE, words=WORDS)
    rows = [alike(expected[query], 7).tolist() if query in expected else [0.0] * 7 for query in range(7)]
    assert table(pattern, seen) == rows


def test_a_sentence_without_a_tree_or_with_a_lost_word_has_no_targets():
    for sentence, words in ((Sentence("abcd", TREE.spans), WORDS), (TREE, [NO_WORD, 0, 1, 2, 2, 2, NO_WORD])):
        seen = observation(torch.ones(7, 7), sentence=sentence, words=words)
        assert not torch.tensor(table(Dependency("obj"), seen)).any()


@pytest.mark.parametrize(("name", "way"), [("bert", "dep>head"), ("bert", "head>dep"), ("gpt2", "dep>head")])
def test_imposed_is_a_slow_loop(name, way):
    case = lettered(name)
    causal = name == "gpt2"

    def objects(one):
        return [(word, one.heads[word]) for word, relation in enumerate(one.relations) if relation == "obj"]

    sentence = next(one for one in case.corpus if any(head < word or not causal for word, head in objects(one)))
    case.corpus = Corpus("one", (sentence,))
    links = [pair if way == "dep>head" else pair[::-1] for pair in objects(sentence)]

    def row(batch):
        (words,) = batch.source.words.tolist()
        seen = [range(query if causal else len(words)) for query in range(len(words))]
        keys = [[key for key in row if (words[query], words[key]) in links] for query, row in enumerate(seen)]
        assert any(keys)
        return lambda query, _: alike(keys[query], len(words))

    imposed_equals_loop(case, Dependency("obj", way), case.sites[0].kind, row)
