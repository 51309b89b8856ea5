"""A choice and a number are checked in one place; the message has subject, range, value and the likely choice."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headroles.tables.arguments import number, one_of, several

KNOWN = ("confidence", "syntax")


@pytest.mark.parametrize(
    ("given", "hint"),
    [("sintax", "; try 'syntax'"), ("Confidence", "; try 'confidence'"), ("nonsense", ""), (3, "")],
)
def test_one_of_unknown_choice_is_refused_with_the_similar_one(given, hint):
    with pytest.raises(ValueError, match="must be") as error:
        one_of("score", given, iter(KNOWN), ", or your own")
    assert str(error.value) == f"score must be one of confidence, syntax, or your own, got {given!r}{hint}"


def test_one_of_known_choice_is_returned():
    assert one_of("score", "syntax", iter(KNOWN)) == "syntax"
    assert one_of("train", None, ("before", None)) is None


@pytest.mark.parametrize(
    ("given", "limits", "message"),
    [(-1, {}, "n must be a number >= 0, got -1"), (math.nan, {}, "n must be a number >= 0, got nan"),
     ("1", {}, "n must be a number >= 0, got '1'"), (True, {}, "n must be a number >= 0, got True"),
     (1.1, {"most": 1}, "n must be a number >= 0 and <= 1, got 1.1"),
     (0, {"above": 0, "below": 1}, "n must be a number > 0 and < 1, got 0"),
     (1, {"above": 0, "below": 1}, "n must be a number > 0 and < 1, got 1"),
     (1.0, {"whole": True, "least": 1}, "n must be an integer >= 1, got 1.0"),
     (0, {"whole": True, "least": 1}, "n must be an integer >= 1, got 0"),
     (math.inf, {"below": math.inf}, "n must be a number >= 0, got inf"),
     (1.5, {"whole": True, "least": -math.inf}, "n must be an integer, got 1.5")],
)  # fmt: skip
def test_number_out_of_range_is_refused(given, limits, message):
    with pytest.raises(ValueError, match="must be") as error:
        number("n", given, **limits)
    assert str(error.value) == message


def test_number_in_range_is_returned():
    assert [number("n", given, most=2) for given in (0, 1.5, 2, np.float32(0.5))] == [0, 1.5, 2, 0.5]
    assert number("n", np.int64(3), whole=True) == 3
    assert number("n", -7, least=-math.inf, whole=True) == -7


def test_several_name_by_itself_is_one():
    assert several("loss") == several(["loss"]) == several(name for name in ["loss"]) == ["loss"]
    assert several(3) == [3]
