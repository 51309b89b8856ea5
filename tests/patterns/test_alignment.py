"""Alignment: the source token on the diagonal, by fractions, measured and imposed on cross-attention."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
import torch
from helpers.imposed import at, imposed_equals_loop, table, tiny
from helpers.letters import observation

from headroles.patterns import Diagonal


def on_diagonal(step, steps, keys):
    """The nearest of `keys` at the share of the way of one of `steps`, the earlier one of two."""
    share = Fraction(step * (keys - 1), max(1, steps - 1))
    return ceil(share - Fraction(1, 2))


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 8), (8, 3), (1, 4), (4, 1), (2, 2), (6, 7)])
def test_targets_are_on_the_diagonal(queries, keys):
    seen = observation(torch.ones(queries, keys), kind="cross")
    expected = [at(on_diagonal(step, queries, keys), keys).tolist() for step in range(queries)]
    assert table(Diagonal(), seen) == expected


def test_special_tokens_of_the_source_are_no_part_of_it():
    seen = observation(torch.ones(3, 7), kind="cross", special=(0, 6))
    assert table(Diagonal(), seen) == [at(1 + on_diagonal(step, 3, 5), 7).tolist() for step in range(3)]


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_imposed_is_a_slow_loop(name):
    def row(batch):
        (content,) = batch.source.content.tolist()
        (written,) = batch.target.content.tolist()
        keys = [place for place, is_content in enumerate(content) if is_content]
        return lambda query, _: (
            at(keys[on_diagonal(sum(written[:query]), sum(written), len(keys))], len(content))
            if written[query]
            else None
        )

    imposed_equals_loop(tiny(name), Diagonal(), "cross", row)
