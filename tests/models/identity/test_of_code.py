"""Code and values of a user are described by their content."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import pandas as pd
import pytest
import torch
from helpers import zoo
from helpers.letters import corpus, tokens_of

import headroles as hr
from headroles.ablation.metrics.base import Of
from headroles.models.identity.of_code import code_of, described
from headroles.pruning.rankings import ByEffect, ByScore, Reverse
from headroles.scores import Importance, outputs
from headroles.scores.objectives import Explained, Objective


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


def own_objective(power):
    """A user's objective, as if its cell of a notebook were run again after an edit."""
    namespace = {
        "dataclass": dataclass,
        "outputs": outputs,
        "Explained": Explained,
        "Objective": Objective,
        "__name__": "__main__",
    }
    exec(  # noqa: S102
        f"""
@dataclass(frozen=True)
class Mine(Objective):
    name = "mine"
    def targets(self, output, batch, /):
        labels = outputs.labels(self.model, batch)
        logits = outputs.picked(outputs.logits(self.model, output), labels.clamp(min=0))
        return Explained(logits ** {power}, labels >= 0)
""",
        namespace,
    )
    return namespace["Mine"]()


def pruned(given, strategy, study):
    return hr.prune(*given, strategy, keep=4, remove=False, study=study)


KEPT = {  # functions whose results are kept, of an object of headroles with an objective of the user's
    "score": lambda given, mine, study: hr.score(*given, [Importance(objective=mine)], study=study),
    "evaluate": lambda given, mine, study: hr.evaluate(*given, [Of(mine)], study=study),
    "ablate": lambda given, mine, study: hr.ablate(*given, metric=Of(mine), study=study),
    "by score": lambda given, mine, study: pruned(given, ByScore(Importance(objective=mine)), study),
    "by effect, reversed": lambda given, mine, study: pruned(given, Reverse(ByEffect(Of(mine))), study),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_part_of_the_user_that_was_edited_is_another_one(name, tmp_path):
    given = zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(12)
    first, again, edited = (KEPT[name](given, own_objective(power), tmp_path / "kept") for power in (1, 1, 2))
    pd.testing.assert_frame_equal(again, first)
    assert not edited.equals(first)
    expected = KEPT[name](given, own_objective(2), tmp_path / "new")
    pd.testing.assert_frame_equal(edited, expected, rtol=1e-4, check_names=False)


def test_a_training_with_an_edited_metric_is_another_one(tmp_path):
    def trained(power):
        options = {"held_out": corpus(12), "metrics": [Of(own_objective(power))], "epochs": 1, "rate": 1e-3}
        return hr.train(deepcopy(zoo.tiny("gpt2")), tokens_of("gpt2"), corpus(12), tmp_path / "kept", **options)

    pd.testing.assert_frame_equal(trained(1), trained(1))
    with pytest.raises(ValueError, match="holds training of another model, corpus or options"):
        trained(2)


def test_code_is_described_by_its_content():
    assert code_of(own_score(1)) == code_of(own_score(1)) != code_of(own_score(2))

    def outer(step):
        return lambda x: x + step

    assert code_of(outer(1)) == code_of(outer(1)) != code_of(outer(2))
    assert code_of(hr.Score) == code_of(hr.Score)
    assert described({"b": {3, 1}, "a": [torch.zeros(2)]}) == described({"a": [torch.zeros(2)], "b": {1, 3}})
    assert described(object()) == described(object())
