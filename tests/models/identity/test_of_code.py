"""Code and values of a user are described by their content."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import pytest
import torch
from helpers import zoo
from helpers.letters import corpus, tokens_of

import headroles as hr
from headroles.models.identity.of_code import code_of, described


@pytest.fixture
def model():
    return deepcopy(zoo.tiny("bert"))


def own_score(power):
    """A user's score, as if its cell of a notebook were run again after an edit."""
    namespace = {"hr": hr, "dataclass": dataclass, "__name__": "__main__"}
    exec(  # noqa: S102
        f"""
def height(weights):
    return weights.amax(-1) ** {power}

@dataclass(frozen=True)
class Height(hr.Score):
    kinds = ("enc-self",)
    def update(self, observation):
        return {{"sum": observation.over_queries(height(observation.on_real))}}
    def compute(self, sums):
        return {{"height": sums["sum"] / sums["queries"]}}
""",
        namespace,
    )
    return namespace["Height"]()


def test_a_score_of_the_user_that_was_edited_is_computed_again(model, tmp_path):
    tables = []
    for power in (1, 3):  # the helper that the class calls is edited, not the class
        tables.append(
            hr.score(model, tokens_of("bert"), corpus(8), own_score(power), n_resamples=0, study=tmp_path)["height"]
        )
    expected = hr.score(model, tokens_of("bert"), corpus(8), own_score(3), n_resamples=0)["height"]
    assert tables[1].equals(expected)
    assert not tables[0].equals(expected)


def test_code_is_described_by_its_content():
    assert code_of(own_score(1)) == code_of(own_score(1)) != code_of(own_score(2))

    def outer(step):
        return lambda x: x + step

    assert code_of(outer(1)) == code_of(outer(1)) != code_of(outer(2))
    assert code_of(hr.Score) == code_of(hr.Score)
    assert described({"b": {3, 1}, "a": [torch.zeros(2)]}) == described({"a": [torch.zeros(2)], "b": {1, 3}})
    assert described(object()) == described(object())
