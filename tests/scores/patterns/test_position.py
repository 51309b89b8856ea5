"""Position: numbers made by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from helpers.letters import looking, observation, value

from headroles.scores.registry import list_scores, named

BACK = looking([0, 0, 1, 2, 3])  # one back; the first token at itself
UNIFORM = torch.full((4, 4), 1 / 4)
EDGES = torch.full((6, 6), 1 / 6)  # with a special token at either end
nan = math.nan


@pytest.mark.parametrize(
    ("weights", "special", "expected"),
    [
        (BACK, (), {"position[-2]": 0, "position[-1]": 1, "position[0]": 1 / 5, "position[+1]": 0, "position[+2]": 0,
                    "position[best]": 1, "position[offset]": -1, "confidence": 1, "entropy": 0, "distance": 4 / 5,
                    "sink[special]": 0, "sink[first]": 2 / 5}),
        (torch.eye(5), (), {"position[-1]": 0, "position[0]": 1, "position[best]": 1, "position[offset]": 0,
                            "confidence": 1, "entropy": 0, "distance": 0, "sink[first]": 1 / 5}),
        (UNIFORM, (), {"confidence": 1 / 4, "entropy": math.log(4), "distance": 20 / 16, "sink[special]": 0,
                       "sink[first]": 1 / 4}),
        (EDGES, (0, 5), {"confidence": 1 / 6, "entropy": math.log(6), "distance": 20 / 16, "sink[special]": 2 / 6,
                         "sink[first]": 1 / 6}),
        # [CLS] a b [SEP]: one back from b is a; from a it is [CLS], which does not exist for the score
        (looking([0, 0, 1, 2]), (0, 3), {"position[-1]": 1, "position[0]": 0, "confidence": 1 / 2, "sink[special]":
                                         1 / 2, "sink[first]": 1 / 2, "distance": 1}),
        (looking([3, 3, 3, 3]), (0, 3), {"confidence": 0, "sink[special]": 1, "sink[first]": 0, "distance": nan}),
        (looking([0]), (), {"position[-1]": nan, "position[0]": 1, "position[+1]": nan, "position[best]": 1}),
        (looking([0, 1]), (0, 1), {"position[0]": nan, "position[best]": nan, "position[offset]": nan,
                                   "confidence": nan, "entropy": nan, "sink[first]": nan, "distance": nan}),
    ],
)  # fmt: skip
def test_numbers_of_self_attention(weights, special, expected):
    found = {}
    for name in {column.partition("[")[0] for column in expected}:
        found |= value(list_scores()[name](), observation(weights, special=special))
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_later_tokens_do_not_exist_in_a_decoder():
    weights = torch.tril(torch.ones(4, 4)) / torch.arange(1, 5)[:, None]
    found = value(named(["position"])[0], observation(weights, kind="dec-self"))
    expected = {"position[-2]": 1 / 2, "position[-1]": 1 / 3, "position[0]": 1 / 4, "position[+1]": nan}
    expected |= {"position[+2]": nan, "position[best]": 1 / 2, "position[offset]": -2}
    assert found == pytest.approx(expected, nan_ok=True)  # of equal weights the first is the largest


def test_a_head_that_looks_at_no_offset_has_a_best_one_of_nothing():
    found = value(named(["position"])[0], observation(looking([7, 7, 7, 7, 0, 0, 0, 0])))
    assert set(found.values()) == {0, -2}  # equal offsets: the first


def test_offsets_are_an_option():
    found = value(replace(named(["position"])[0], offsets=(-4, 0)), observation(BACK))
    assert found == {"position[-4]": 0, "position[0]": 1 / 5, "position[best]": 1 / 5, "position[offset]": 0}
