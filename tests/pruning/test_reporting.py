"""What is reported while gates are learnt, as TensorBoard and Weights & Biases see it, and what checkpoints keep."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from helpers.prunings import learnt
from helpers.trainings import films, tokenizer
from transformers import TrainerCallback

import headroles as hr
from headroles.models.identity import weights_digest


class Reported(TrainerCallback):
    """Keeps what integrations such as TensorBoard's are given."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_log(self, args, state, control, **kwargs):  # noqa: ARG002
        self.rows.append(dict(kwargs["logs"]))


def _learn(folder, **options):
    """Learn the gates of a classifier of eight heads, of which four stay."""
    corpus, tune = hr.Corpus("films", tuple(films(24))), {"epochs": 2, "batch": 8, "rate": 1e-3, **options}
    return hr.prune(deepcopy(learnt()), tokenizer(), corpus, hr.L0(), keep=4, folder=folder, tune=tune)


def test_gates_are_reported_with_every_row_of_the_log_and_not_kept_in_it(tmp_path):
    seen = Reported()
    table = _learn(tmp_path, callbacks=[seen], logging_strategy="steps", logging_steps=2)
    rows = [row for row in seen.rows if "loss" in row]
    assert len(rows) >= 3
    for row in rows:
        assert 0 < row["gates/expected_heads"] <= 8
        assert row["gates/expected_heads"] == pytest.approx(row["gates/expected_heads_enc-self"])
    opened = next(table[name] for name in table if name.endswith(".open"))
    assert rows[-1]["gates/expected_heads"] == pytest.approx(opened.sum(), rel=1e-5)
    states = [json.loads(path.read_text()) for path in tmp_path.rglob("trainer_state.json")]
    assert states
    assert not [key for state in states for row in state["log_history"] for key in row if key.startswith("gates/")]


def test_scores_of_the_model_in_training_are_reported(tmp_path):
    model, seen = deepcopy(learnt()), Reported()
    corpus = hr.Corpus("films", tuple(films(16)))
    report = hr.training.ScoreReport(model, tokenizer(), corpus[:6], ["confidence"])
    hr.train(model, tokenizer(), corpus, tmp_path / "with", epochs=2, batch=8, rate=1e-3, callbacks=[report, seen])
    first, last = (row for row in seen.rows if "loss" in row)
    table = hr.score(model, tokenizer(), corpus[:6], ["confidence"], n_resamples=0)
    assert last["scores/confidence_enc-self_mean"] == pytest.approx(table["confidence"].mean(), rel=1e-6)
    assert last["scores/confidence_enc-self_max"] == pytest.approx(table["confidence"].max(), rel=1e-6)
    assert first["scores/confidence_enc-self_mean"] != last["scores/confidence_enc-self_mean"]
    plain = deepcopy(learnt())  # which is trained alike
    hr.train(plain, tokenizer(), corpus, tmp_path / "without", epochs=2, batch=8, rate=1e-3)
    assert weights_digest(plain) == weights_digest(model)


def test_gates_reach_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _learn(tmp_path, report_to="tensorboard")
    events = EventAccumulator(str(next(tmp_path.rglob("events.*")).parent)).Reload()
    assert "train/gates/expected_heads" in events.Tags()["scalars"]
