"""Calibration: losses, effects and gradients along the path are those of plain loops over masks."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from helpers.budgets import PATTERN, calibration, given, loss

from headroles.budgets.calibration import Calibration, question
from headroles.data.corpus import Chat, Sentence
from headroles.models.head_model import HeadModel


def heads(gates):
    """Gates of all heads, of those of the groups."""
    return torch.cat([torch.ones(8 - 2 * len(gates)), gates.repeat_interleave(2)])


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_losses_of_answers_are_those_of_a_plain_loop(name):
    model, _, corpus = given(name)
    found = calibration(name)
    groups = len(found.index)
    assert groups == (4 if name == "llama" else 2)  # layers with a window have none
    gates = torch.tensor([0.0, 1, 1, 0][:groups])
    with torch.no_grad():
        expected = [float(loss(model, sentence, heads(gates))) for sentence in corpus]
    assert found.measure(gates).tolist() == pytest.approx(expected, rel=1e-5)


def test_effects_one_by_one_are_those_of_a_plain_loop():
    model, _, corpus = given()
    expected = []
    with torch.no_grad():
        for sentence in corpus:
            intact = loss(model, sentence, torch.ones(8))
            expected.append([float(loss(model, sentence, heads(1 - row)) - intact) for row in torch.eye(4)])
    np.testing.assert_allclose(calibration().one_by_one(), expected, atol=1e-5)


def test_effects_along_the_path_are_integrated_gradients():
    model, _, corpus = given()
    expected = np.zeros((len(corpus), 4))
    for row, sentence in enumerate(corpus):
        for at in (1 / 6, 1 / 2, 5 / 6):
            gates = torch.full((4,), at, requires_grad=True)
            (slope,) = torch.autograd.grad(loss(model, sentence, heads(gates)), gates)
            expected[row] -= slope.double().numpy() / 3
    np.testing.assert_allclose(calibration().along_path(3), expected, rtol=1e-4, atol=1e-5)


def test_many_points_of_the_path_sum_to_the_whole_effect():
    found = calibration()
    whole_effect = found.measure(torch.zeros(4)) - found.measure(torch.ones(4))
    np.testing.assert_allclose(found.along_path(50).sum(1), whole_effect, atol=1e-2 * np.abs(whole_effect).max())


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_long_texts_have_the_same_gradients_in_less_memory(name, monkeypatch):
    found, layers = calibration(name), given(name)[0].model.layers
    saved = []

    def slopes():
        gates = torch.full((len(found.index),), 0.3, requires_grad=True)
        sizes = {}

        def pack(tensor):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with found.losses() as of, torch.enable_grad():
            with hooks:
                total = sum(of(text)(gates) for text in found.questions)
            saved.append(sum(sizes.values()))
            return torch.autograd.grad(total, gates)[0]

    expected, learnt = slopes(), found.learned(1, steps=5, seed=0)
    monkeypatch.setattr("headroles.budgets.calibration.LONG", 1)
    assert torch.equal(slopes(), expected)
    assert found.learned(1, steps=5, seed=0).tolist() == learnt.tolist()
    assert saved[1] < saved[0] / 2
    assert not any("forward" in vars(layer) for layer in layers)


def test_layers_of_long_texts_get_back_the_forward_they_had(monkeypatch):
    model, tokenizer, corpus = given()
    layer = model.model.layers[0]
    monkeypatch.setitem(vars(layer), "forward", layer.forward)
    before = vars(layer)["forward"]
    monkeypatch.setattr("headroles.budgets.calibration.LONG", 1)
    Calibration(HeadModel(model, tokenizer), corpus, PATTERN).along_path(2)
    assert vars(layer)["forward"] is before


def test_learnt_gates_keep_the_groups_that_cost_most_when_they_stream():
    found = calibration()
    chances = found.learned(2, steps=60, seed=0)
    assert chances.shape == (4,)
    assert ((chances >= 0) & (chances <= 1)).all()
    kept = torch.tensor(chances >= np.sort(chances)[-2]).float()
    assert float(kept.sum()) == 2
    assert found.measure(kept).mean() <= found.measure(1 - kept).mean()
    np.testing.assert_array_equal(chances, found.learned(2, steps=60, seed=0))


def test_an_answer_is_a_target_or_stands_in_the_tokens():
    model, tokenizer, corpus = given()
    handle = HeadModel(model, tokenizer)
    read = question(Sentence("5 6 7", target=Sentence("8 9")), 1, handle)
    assert (read.ids.tolist(), read.answer) == ([[5, 6, 7, 8, 9]], 3)
    assert question(corpus[0], 1, handle).answer == corpus[0].answer


def test_the_answer_of_a_chat_is_the_turn_of_the_assistant():
    model, tokenizer, _ = given()
    tokenizer = deepcopy(tokenizer)
    tokenizer.chat_template = (
        "{% for one in messages %}{{ '11 ' if one.role == 'user' else '12 ' }}{{ one.content }}{{ ' 13 ' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '12 ' }}{% endif %}"
    )
    handle = HeadModel(model, tokenizer)
    for answered in (Chat("5 6 7", target=Sentence("8 9")), Chat("5 6 7", second="8 9")):
        read = question(answered, 1, handle)
        assert (read.ids.tolist(), read.answer) == ([[11, 5, 6, 7, 13, 12, 8, 9]], 6)
    for without in (Chat("5 6 7"), Chat("5 6 7", second="")):
        with pytest.raises(ValueError, match="text 2 must have its answer as target, got '5 6 7'"):
            question(without, 2, handle)
    tokenizer.chat_template = "{% for one in messages %}{{ one.content }}{{ ' ' }}{% endfor %}"  # nothing between
    read = question(Chat("5 6 7", second="8 9"), 1, handle)
    assert (read.ids.tolist(), read.answer) == ([[5, 6, 7, 8, 9]], 3)
