"""Alignment: linked source words and the token on the diagonal, measured and imposed on cross-attention."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.imposed import alike, at, imposed_equals_loop, lettered, table, tiny
from helpers.letters import linked, observation, tokenizer

import headroles as hr
from headroles.data.corpus import Corpus
from headroles.patterns import Alignment, Diagonal


def on_diagonal(step, steps, keys):
    """The nearest of `keys` at the share of the way of one of `steps`, the earlier one of two."""
    share = Fraction(step * (keys - 1), max(1, steps - 1))
    return ceil(share - Fraction(1, 2))


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 8), (8, 3), (1, 4), (4, 1), (2, 2), (6, 7)])
def test_targets_are_on_the_diagonal(queries, keys):
    """Special tokens at both ends of the source are not part of it."""
    steps = [on_diagonal(step, queries, keys) for step in range(queries)]
    for special in (0, 1):
        size = keys + 2 * special
        seen = observation(torch.ones(queries, size), kind="cross", special=(0, size - 1) if special else ())
        assert table(Diagonal(), seen) == [at(special + step, size).tolist() for step in steps]


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_imposed_is_a_slow_loop(name):
    def row(batch):
        (content,) = batch.source.content.tolist()
        (written,) = batch.target.content.tolist()
        keys = [place for place, is_content in enumerate(content) if is_content]
        place = lambda query: keys[on_diagonal(sum(written[:query]), sum(written), len(keys))]  # noqa: E731
        return lambda query, _: at(place(query), len(content)) if written[query] else None

    imposed_equals_loop(tiny(name), Diagonal(), "cross", row)


@pytest.mark.parametrize("step", ["read", "next"])
@pytest.mark.parametrize("sentence", [1, 5])
def test_imposed_links_are_a_slow_loop(sentence, step):
    """Equal weights on the tokens of the linked words, its own where a word has no link; the start token has none."""
    case = lettered("marian")
    case.corpus = linked()

    def row(batch):
        pair, (source,), (target,) = case.corpus[sentence], batch.source.words.tolist(), batch.target.words.tolist()
        target = target if step == "read" else [*target[1:], -1]
        keys = [[place for place, word in enumerate(source) if (word, read) in pair.links] for read in target]
        assert any(keys)
        assert not all(keys)
        return lambda query, _: alike(keys[query], len(source))

    imposed_equals_loop(case, Alignment(step), "cross", row, sentence=sentence)


def test_links_in_a_batch_are_those_of_each_pair():
    """Padding, and pairs with more or fewer words, change nothing; role tests know how many tokens have a link."""
    model, pairs, head = zoo.tiny("marian"), linked(), ("cross", 1, 2)
    table = hr.test_roles(model, tokenizer(), pairs, {head: Alignment()}, n_resamples=2)
    options = {"sets": {"head": [head]}, "replacement": Alignment(), "n_resamples": 0}
    alone = [hr.ablate(model, tokenizer(), Corpus("one", (pair,)), **options).iloc[0, 0] for pair in pairs]
    words = [tokenizer()(pair.target.text).word_ids() for pair in pairs]
    assert table["role_pattern"].iloc[0] == pytest.approx(np.average(alone, weights=[*map(len, words)]), abs=1e-6)
    assert abs(table["role_pattern"].iloc[0]) > 1e-4
    targets = [{target for _, target in pair.links} for pair in pairs]
    count = sum(word in linked_words for row, linked_words in zip(words, targets, strict=True) for word in row)
    assert table[["tokens", "texts"]].iloc[0].tolist() == [count, len(pairs) - 1]
