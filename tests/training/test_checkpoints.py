"""The last complete checkpoint is the one to go on from; of an adapter of PEFT it and gates alone are kept."""

from __future__ import annotations

import warnings
from copy import deepcopy

import peft
import pytest
import torch
import transformers
from helpers import zoo
from helpers.close import close
from helpers.letters import tokens_of
from helpers.prunings import training_in
from helpers.trainings import wrapped
from safetensors.torch import load_file

import headroles as hr
from headroles.training.checkpoints import checkpoints


def test_checkpoints_are_those_with_a_state_by_their_steps(tmp_path):
    assert checkpoints(tmp_path / "new") == []
    for step in (2, 10, 9):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    assert [place.name for place in checkpoints(tmp_path)] == ["checkpoint-2", "checkpoint-9", "checkpoint-10"]
    (tmp_path / "checkpoint-10" / "trainer_state.json").unlink()
    assert [place.name for place in checkpoints(tmp_path)] == ["checkpoint-2", "checkpoint-9"]


TEXTS = hr.Corpus.of(["a b c d", "b d a", "c c a b d", "d a c"])
SGD = {"optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "rate": 0.5, "batch": 4}


def weights(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def changed(model, before):
    return {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}


def loaded(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return peft.PeftModel.from_pretrained(deepcopy(zoo.tiny("llama-grouped")), folder).eval()


@torch.no_grad()
def logits(model):
    return model.eval()(input_ids=torch.tensor([[5, 6, 7, 8, 9]])).logits


def one_loss(model, tokenizer):
    """The mean loss of all next tokens, one text at a time, by transformers alone."""
    summed, count = 0.0, 0
    for text in TEXTS:
        ids = tokenizer(text.text, return_tensors="pt")["input_ids"]
        rows = model(input_ids=ids).logits[0, :-1]
        summed = summed + torch.nn.functional.cross_entropy(rows, ids[0, 1:], reduction="sum")
        count += len(rows)
    return summed / count


def test_training_is_that_of_a_plain_loop_and_peft_loads_it(tmp_path):
    tokenizer, expected, model = tokens_of("llama-grouped"), wrapped(), wrapped()
    optimizer = torch.optim.SGD([value for value in expected.parameters() if value.requires_grad], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        one_loss(expected, tokenizer).backward()
        optimizer.step()
    before = weights(model)
    table = hr.train(model, tokenizer, TEXTS, tmp_path, epochs=3, held_out=TEXTS, **SGD)
    assert changed(model, before) == {name for name in before if "lora_" in name}
    moved = max(float((value.detach() - before[name]).abs().max()) for name, value in model.named_parameters())
    assert moved > 1e-3
    for name, value in expected.named_parameters():
        close(model.get_parameter(name).detach(), value.detach(), size=1)
    close(table["held_out loss"].iloc[-1], one_loss(expected.eval(), tokenizer).item())
    assert not (tmp_path / "model.safetensors").exists()
    assert torch.equal(logits(loaded(tmp_path)), logits(model))
    again = wrapped()
    assert hr.train(again, tokenizer, TEXTS, tmp_path, epochs=3, held_out=TEXTS, **SGD).equals(table)
    assert torch.equal(logits(again), logits(model))


class Stop(transformers.TrainerCallback):
    def on_epoch_begin(self, args, state, control, **_):  # noqa: ARG002
        if state.epoch >= 2:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("freeze", ["nothing", "all"])
def test_gates_and_adapters_are_learnt_together_and_go_on_where_they_stopped(freeze, tmp_path):
    tokenizer, strategy = tokens_of("llama-grouped"), hr.L0(freeze=freeze)
    tune = {"epochs": 4, "batch": 2, "rate": 1e-2}
    tables, models = [], []
    for place, stops in (("whole", False), ("stopped", True)):
        model = wrapped()
        before = weights(model)
        options = {"keep": 4, "remove": False, "study": tmp_path / place}
        if stops:
            with pytest.raises(KeyboardInterrupt):
                hr.prune(wrapped(), tokenizer, TEXTS, strategy, tune={**tune, "callbacks": [Stop()]}, **options)
            names = {path.name for path in (training_in(tmp_path / place) / "checkpoint-4").glob("*.safetensors")}
            assert names == {"adapter_model.safetensors", "head_gates.safetensors"}
        tables.append(hr.prune(model, tokenizer, TEXTS, strategy, tune=tune, **options))
        adapters = {name for name in before if "lora_" in name}
        assert changed(model, before) == (adapters if freeze == "nothing" else set())
        models.append(model)
    assert tables[0].iloc[:, 0].sum() == 4
    gates = load_file(training_in(tmp_path / "whole") / "head_gates.safetensors")
    assert not torch.equal(gates["log_alpha"], torch.full((8,), 2.0))
    close(tables[1].to_numpy(), tables[0].to_numpy())
    close(logits(models[1]), logits(models[0]))


def test_a_pruned_model_is_saved_merged(tmp_path):
    tokenizer, model = tokens_of("llama-grouped"), wrapped()
    tune = {"epochs": 1, "batch": 2, "rate": 1e-2}
    table = hr.prune(model, tokenizer, TEXTS, "importance", keep=2, unit="group", train="after", tune=tune)
    pruned = [head for head, kept in table.iloc[:, 0].items() if kept == 0]
    assert len(pruned) == 4
    expected = logits(model)
    hr.save(model.merge_and_unload(), tokenizer, tmp_path / "merged")
    again = hr.load(tmp_path / "merged")[0]
    close(logits(again), expected)
    assert not set(pruned) & set(hr.models.head_index(again))


def test_what_is_measured_of_a_wrapped_model_is_that_of_the_model_in_it():
    tokenizer, model = tokens_of("llama-grouped"), wrapped().eval()
    inner = model.get_base_model()
    for measure in (hr.score, hr.ablate):
        options = {"n_resamples": 0}
        assert measure(model, tokenizer, TEXTS, **options).equals(measure(inner, tokenizer, TEXTS, **options))
    assert [site.key for site in hr.attention_sites(model)] == [site.key for site in hr.attention_sites(inner)]
    mask = hr.head_mask(model, "L0H1")
    with hr.mask_heads(inner, mask):
        expected = logits(inner)
    with hr.mask_heads(model, mask):
        assert torch.equal(logits(model), expected)
    assert not torch.equal(logits(model), expected)


def test_modules_that_peft_saves_beside_the_adapter_are_trained_and_loaded(tmp_path):
    tokenizer, model = tokens_of("llama-grouped"), wrapped(modules_to_save=["lm_head"])
    before = weights(model)
    hr.train(model, tokenizer, TEXTS, tmp_path, epochs=1, **SGD)
    assert any("lm_head.modules_to_save" in name for name in changed(model, before))
    assert torch.equal(logits(loaded(tmp_path)), logits(model))
