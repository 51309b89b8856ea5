"""Every checkpoint is pruned, and the last is compared with itself."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from helpers.trainings import films, tokenizer, untrained

import headroles as hr
from headroles.ablation.metrics.base import Of
from headroles.scores import outputs
from headroles.scores.objectives import Explained, Objective
from headroles.tables import frame
from headroles.tables.study import Study
from headroles.training import training_dynamics
from headroles.training.trainer import train


def own(power):
    """A metric of the user's, as if its cell of a notebook were run again after an edit."""

    @dataclass(frozen=True)
    class Mine(Objective):
        name = "mine"
        by_token = False

        def targets(self, output, _batch, /):
            first = outputs.logits(self.model, output).softmax(-1)[:, :1] ** power
            return Explained(first, torch.ones_like(first, dtype=torch.bool))

    return Of(Mine())


def test_a_head_with_several_roles_of_a_family_is_one_head():
    values = {"importance": [1.0, 2, 3, 4], "sink[special]": [0.9, 0.9, 0.1, 0.1], "sink[first]": [0.9, 0.1, 0.1, 0.1]}
    for relation, found in (("nsubj dep>head", [0.1, 0.1, 0.9, 0.9]), ("obj head>dep", [0.1, 0.1, 0.1, 0.9])):
        values |= {f"syntax[{relation}]": found, f"syntax[{relation}].baseline": [0.1] * 4}
    table = frame.table(values, frame.index({("enc-self", 0): 4}), "model:made")
    found = training_dynamics._agreement(table, table)
    assert (found["roles[sink]"], found["roles[syntactic]"], found["roles of the last"]) == (2, 2, 1)


@pytest.mark.slow
def test_every_checkpoint_is_pruned_and_the_last_is_compared_with_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    train(untrained(), tokenizer(), films(60), tmp_path / "trained", epochs=2, rate=1e-3, batch=16)
    study = Study(tmp_path / "study")
    (tmp_path / "trained" / "checkpoint-99").mkdir()  # of a training that was killed while it saved
    asked = {"metric": "loss", "steps": 2, "n_resamples": 20}
    curves, settled = hr.dynamics("~/trained", films(30, 1), films(20, 2), study=study, **asked)
    assert settled["epoch"].tolist() == [1, 2]
    assert curves.groupby("epoch")["masked"].apply(list).tolist() == [[0, 2, 4]] * 2
    assert (curves.loc[curves["masked"] == 0, "kept"] == 1).all()
    last = settled.iloc[-1]
    assert (last["all"], last["within"]) == (pytest.approx(1), pytest.approx(1))
    model, _ = hr.load(tmp_path / "trained" / f"checkpoint-{settled['step'][0]}")
    value = hr.evaluate(model, tokenizer(), films(20, 2), ["loss"], n_resamples=0)["value"].item()
    assert curves["value"][0] == pytest.approx(value)
    asked |= {"study": study}
    folders = tmp_path / "trained", films(30, 1), films(20, 2)
    edited = [hr.dynamics(*folders, **asked | {"metric": own(power)}) for power in (1, 2, 2)]
    for kept, again in zip(edited[1], edited[2], strict=True):
        assert kept.equals(again)
    assert not edited[0].curves["value"].equals(edited[1].curves["value"])
