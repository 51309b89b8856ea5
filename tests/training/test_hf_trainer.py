"""The Trainer's order of steps, and scores and gates in its log."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
import torch
from helpers import zoo
from helpers.letters import tokens_of
from helpers.prunings import learnt
from helpers.trainings import films, tokenizer, translator
from transformers import TrainerCallback

import headroles as hr
from headroles.cli.options import SAMPLING
from headroles.models.identity import weights_digest
from headroles.training.hf_trainer import ORDER, Trainer


class Reported(TrainerCallback):
    """Keeps what integrations such as TensorBoard's are given."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_log(self, args, state, control, **kwargs):  # noqa: ARG002
        self.rows.append(dict(kwargs["logs"]))


def _learn(folder, **options):
    """Learn the gates of a classifier of eight heads, of which four stay."""
    tune = {"epochs": 2, "batch": 8, "rate": 1e-3, **options}
    return hr.prune(deepcopy(learnt()), tokenizer(), films(24), hr.L0(), keep=4, study=folder, tune=tune)


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


def test_numbers_of_a_reporter_are_those_of_the_model_in_training_and_leave_it_as_it_is(tmp_path):
    model, seen, corpus = deepcopy(learnt()), Reported(), films(16)
    options = {"epochs": 2, "batch": 8, "rate": 1e-3}

    class Confidence(hr.training.Reporter):
        def scalars(self):
            return {"confidence": hr.score(model, tokenizer(), corpus[:6], ["confidence"])["confidence"].mean()}

    hr.train(model, tokenizer(), corpus, tmp_path / "with", callbacks=[seen, Confidence()], **options)
    first, last = (row for row in seen.rows if "loss" in row)
    table = hr.score(model, tokenizer(), corpus[:6], ["confidence"])
    assert last["confidence"] == pytest.approx(table["confidence"].mean(), rel=1e-6)
    assert first["confidence"] != last["confidence"]
    plain = deepcopy(learnt())  # which is trained alike
    hr.train(plain, tokenizer(), corpus, tmp_path / "without", **options)
    assert weights_digest(plain) == weights_digest(model)


def test_training_says_every_minute_how_far_it_is(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("headroles.training.hf_trainer.MINUTE", 0.0)
    with caplog.at_level("INFO", "headroles._distributed"):
        hr.train(deepcopy(learnt()), tokenizer(), films(16), tmp_path, epochs=1, batch=8)
    assert caplog.messages == ["training: step 1 of 2", "training: step 2 of 2"]


RANDOM = {"train_sampling_strategy": "random"}


@pytest.mark.parametrize(
    ("options", "alike", "falls"),
    [({}, True, 0.5), ({"train_sampling_strategy": "group_by_length"}, True, 1), (RANDOM, False, 0.5)],
)
def test_steps_have_similar_lengths_in_a_random_order_by_default(options, alike, falls, tmp_path):
    torch.manual_seed(0)
    sizes = torch.randint(1, 60, (803,)).tolist()
    rows = [{"input_ids": [zoo.FIRST_WORD] * n, "labels": [zoo.FIRST_WORD]} for n in sizes]
    sampler = Trainer(translator(), tokens_of("marian"), rows, tmp_path, batch=4, **options)._get_train_sampler()
    order = list(sampler)
    assert sorted(order) == list(range(len(sampler))) == list(range(len(rows)))
    lengths = torch.tensor([len(rows[place]["input_ids"]) for place in order[:800]]).unflatten(0, (-1, 4))
    assert ((lengths.amax(1) - lengths.amin(1)).float().mean() < 3) == alike  # of 59
    assert (lengths.sum(1).diff() <= 0).float().mean() == pytest.approx(falls, abs=0.15)
    assert ORDER == SAMPLING


@pytest.mark.parametrize("options", [{}, {"train_sampling_strategy": "group_by_length"}])
def test_the_order_depends_on_the_seed_and_the_epoch_alone(options, tmp_path):
    """So all processes have the same, whatever dropout has drawn in each."""
    rows = [{"input_ids": [zoo.FIRST_WORD] * (1 + n % 9), "labels": [zoo.FIRST_WORD]} for n in range(100)]
    parts = translator(), tokens_of("marian"), rows, tmp_path
    orders = []
    for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0)):
        sampler = Trainer(*parts, batch=4, seed=seed, **options)._get_train_sampler()
        sampler.set_epoch(epoch)
        torch.rand(len(orders))
        orders.append(list(sampler))
    assert orders[0] == orders[1]
    assert len({*map(tuple, orders)}) == 3


@pytest.mark.parametrize("name", ["classifier", "llama", "takes no number"])
def test_a_step_in_parts_is_the_step_of_the_whole(name, tmp_path):
    """The loss of many models ignores how many labels all parts have, and was summed over the parts."""
    tables, weights = [], []
    for parts in (1, 2):
        model, tokens, corpus = deepcopy(learnt()), tokenizer(), films(4)
        if name == "llama":
            model, tokens = hr.tiny_model("llama"), tokens_of("llama-grouped")
            corpus = hr.Corpus.of(["abc def", "ghi jkl", "mno pqr", "stu vwx"])
        if name == "takes no number":
            model.accepts_loss_kwargs = False  # as of models whose forward takes no further arguments
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        options = {"batch": 4 // parts, "gradient_accumulation_steps": parts, "optim": "sgd", "rate": 0.1, "epochs": 1}
        tables.append(hr.train(model, tokens, corpus, tmp_path / str(parts), lr_scheduler_type="constant", **options))
        weights.append(torch.cat([value.flatten() for value in model.state_dict().values()]))
    torch.testing.assert_close(*weights)
    assert tables[0]["loss"].tolist() == pytest.approx(tables[1]["loss"].tolist(), rel=1e-5)
