"""Induction: earlier occurrences of a token and what followed them, by a plain loop, measured and imposed."""

from __future__ import annotations

import pytest
import torch
from helpers.imposed import alike, imposed_equals_loop, table, tiny
from helpers.letters import observation

from headroles.data.corpus import Corpus
from headroles.patterns import Duplicate, Induction

IDS = [9, 7, 9, 9, 8, 7, 9, 8]


def places(pattern, query, ids, content):
    """Earlier content tokens with the id of the query, or the tokens after these and before the query."""
    earlier = [key for key in range(query) if ids[key] == ids[query] and content[key]]
    return [key + 1 for key in earlier if key + 1 < query] if pattern == Induction() else earlier


@pytest.mark.parametrize("pattern", [Induction(), Duplicate()])
@pytest.mark.parametrize("special", [(), (3,)])
def test_targets_are_those_of_a_loop(pattern, special):
    seen = observation(torch.ones(8, 8).tril(), kind="dec-self", ids=IDS, special=special)
    ids, content = seen.keys.ids[0].tolist(), seen.keys.content[0].tolist()
    expected = []
    for query in range(8):
        weights = alike(places(pattern, query, ids, content), 8)
        expected.append([0.0] * 8 if weights is None else weights.tolist())
    assert table(pattern, seen) == expected


@pytest.mark.parametrize("pattern", [Induction(), Duplicate()])
def test_imposed_is_a_slow_loop(pattern):
    case = tiny("gpt2")
    case.corpus = Corpus.of([f"{case.corpus[0].text} {case.corpus[0].text}"])

    def row(batch):
        (ids,) = batch.source.ids.tolist()
        return lambda query, _: alike(places(pattern, query, ids, [True] * len(ids)), len(ids))

    imposed_equals_loop(case, pattern, "dec-self", row)
