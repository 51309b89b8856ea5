"""Resting: numbers made by hand."""

from __future__ import annotations

import pytest
from helpers.letters import observation, value

from headroles.scores.patterns.resting import Resting


@pytest.mark.parametrize(
    ("kind", "special", "least", "resting"),
    [
        ("dec-self", (), 0.01, 1 / 3),  # of the last three: the first token can do nothing else
        ("dec-self", (), 0.15, 2 / 3),
        ("dec-self", (0,), 0.15, 2 / 3),  # a special first token is no query anyway
        ("enc-self", (), 0.01, 2 / 4),  # in an encoder the first token could look ahead
        ("enc-self", (2,), 0.15, 2 / 3),  # .08 is left of the third row, which is of a special token, and asks nothing
    ],
)
def test_numbers(kind, special, least, resting):
    rows = [[1, 0, 0, 0], [0.995, 0.005, 0, 0], [0.9, 0.08, 0.02, 0], [0.2, 0.4, 0, 0.4]]
    assert value(Resting(least=least), observation(rows, kind=kind, special=special)) == {
        "resting": pytest.approx(resting)
    }


def test_the_bound_itself_is_enough():
    assert value(Resting(least=0.25), observation([[1, 0], [0.75, 0.25]], kind="dec-self")) == {"resting": 0}
