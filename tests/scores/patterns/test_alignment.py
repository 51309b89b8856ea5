"""Alignment: numbers made by hand, and the borders of the diagonal."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from helpers.letters import looking, observation, value

from headroles.scores.patterns.alignment import Alignment
from headroles.scores.registry import named


@pytest.mark.parametrize("target", [2, 4, 7, 12, 50, 59])
def test_the_borders_of_the_diagonal_are_exact(target):
    """A border that falls on a token was decided by how float32 rounds it."""
    for source in (1, 2, 3, 5, 8, 13, 20, 30, 38, 44, 59):
        centres = [Fraction(step * (source - 1), target - 1) for step in range(target)]
        expected = [sum(abs(place - centre) <= 1 for centre in centres) for place in range(source)]
        weights = torch.eye(source)[:, None].expand(source, target, source)  # head i looks at place i
        found = Alignment().update(replace(observation(weights[0], kind="cross"), weights=weights[None]))["near"]
        assert found.tolist() == [expected], source


nan = math.nan


@pytest.mark.parametrize(
    ("places", "keys", "special", "monotone", "diagonal"),
    [
        ([0, 1, 2, 3, 4], 5, (), 1, 1),
        ([4, 3, 2, 1, 0], 5, (), -1, 1 / 5),
        ([1, 2, 3, 4, 4], 5, (), 9 / 10, 1),  # one token ahead is near enough ...
        ([0, 0, 1, 2, 3], 5, (), 9 / 10, 1),  # ... and so is one behind
        ([0, 0, 0, 0, 0], 5, (), 0, 2 / 5),
        ([0, 1], 2, (), 1, 1),  # one pair ...
        ([0, 4], 5, (), 1, 1),  # ... from end to end
        ([0, 2, 1], 3, (), 1 / 3, 1),  # two pairs in order, one not
        ([0, 0, 1], 3, (), 2 / 3, 1),  # a tie counts for nothing
        ([0, 2, 4, 6], 7, (), 1, 1),  # a source twice as long
        ([1, 2, 3], 5, (0, 4), 1, 1),  # special tokens are no part of the diagonal ...
        ([2, 3, 4], 5, (0,), 1, 1),  # ... which starts behind them
        ([2], 4, (), nan, 0),  # one target token has no order; its place is the start
        ([1], 2, (), nan, 1),
    ],
)
def test_numbers_of_cross_attention(places, keys, special, monotone, diagonal):
    found = value(named(["alignment"])[0], observation(looking(places, keys), kind="cross", special=special))
    assert found == pytest.approx({"alignment[monotone]": monotone, "alignment[diagonal]": diagonal}, nan_ok=True)
