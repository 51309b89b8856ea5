"""Every checkpoint is pruned, and the last is compared with itself."""

from __future__ import annotations

import pytest
from helpers.messages import whole
from helpers.trainings import films, tokenizer, untrained

import headroles as hr
from headroles.tables.study import Study
from headroles.training.trainer import train


@pytest.mark.slow
def test_every_checkpoint_is_pruned_and_the_last_is_compared_with_itself(tmp_path):
    train(untrained(), tokenizer(), films(60), tmp_path / "trained", epochs=2, rate=1e-3, batch=16)
    study = Study(tmp_path / "study")
    asked = {"metric": "loss", "steps": 2, "n_resamples": 20}
    curves, settled = hr.dynamics(tmp_path / "trained", films(30, 1), films(20, 2), study=study, **asked)
    assert settled["epoch"].tolist() == [1, 2]
    assert curves.groupby("epoch")["closed"].apply(list).tolist() == [[0, 2, 4]] * 2
    assert (curves.loc[curves["closed"] == 0, "kept"] == 1).all()
    last = settled.iloc[-1]
    assert (last["all"], last["within"]) == (pytest.approx(1), pytest.approx(1))
    model, _ = hr.load(tmp_path / "trained" / f"checkpoint-{settled['step'][0]}")
    value = hr.evaluate(model, tokenizer(), films(20, 2), ["loss"], n_resamples=0)["value"].item()
    assert curves["value"][0] == pytest.approx(value)
    with pytest.raises(
        FileNotFoundError, match=whole(f"no checkpoint in {tmp_path}; headroles train keeps one each epoch")
    ):
        hr.dynamics(tmp_path, films(30, 1), films(20, 2), study=study)
