"""Attention hooks: models that share a config, and forwards that fail half way."""

from __future__ import annotations

import pytest
import torch
from helpers import zoo
from helpers.attentions import own_attentions
from torch.overrides import _get_current_function_mode_stack

import headroles as hr
from headroles.models.attention_hooks import attending
from headroles.models.dummy_inputs import examples
from headroles.models.head_model import HeadModel
from headroles.models.heads import capture_attention
from headroles.pruning.learned_gates import L0, train_gates


def test_models_that_share_a_config_keep_their_attention():
    """The block that is entered first is left first: the second model still attends by hooks."""
    one = zoo.tiny("bert")
    other, before, seen = type(one)(one.config).eval(), one.config._attn_implementation, []
    first, second = attending(one, lambda _: None), attending(other, seen.append)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    other(**examples(one))
    second.__exit__(None, None, None)
    assert len(seen) == 2
    assert one.config._attn_implementation is before


# --- forwards that fail half way ------------------------------------------------------------------------------------


class Broken(BaseException):
    """What no `except Exception` catches, as Ctrl-C."""


@pytest.fixture(params=[RuntimeError, Broken], ids=["error", "interrupt"])
def failing(request):
    """ALBERT calls one layer twice; a forward that fails after the first call."""
    model = zoo.tiny("albert")
    layer, kind = model.albert.encoder.albert_layer_groups[0].albert_layers[0].ffn, request.param

    def fail():
        def stop(*_):
            raise kind("half way")

        hook = layer.register_forward_pre_hook(stop)
        try:
            with pytest.raises(kind, match="half way"):
                model(**examples(model))
        finally:
            hook.remove()

    return model, fail


def test_masking_assigns_layers_after_a_failed_forward(failing):
    model, fail = failing
    shut, inputs = torch.tensor([0.0, 1, 1, 1, 1, 1, 1, 1]), examples(model)
    with torch.no_grad(), hr.mask_heads(model, shut):
        expected = model(**inputs).logits
        fail()
        assert torch.equal(model(**inputs).logits, expected)
    with torch.no_grad(), hr.mask_heads(model, shut.flip(0)):
        assert not torch.allclose(model(**inputs).logits, expected, atol=1e-4)


@pytest.mark.parametrize("cells", [None, 1])
def test_capture_assigns_layers_after_a_failed_forward(failing, cells):
    model, fail = failing
    inputs, seen = examples(model), []

    def look(site, weights, first=0, _=None):
        if first == 0:
            seen.append((site.layer, weights[:, :, :1]))

    block = capture_attention(model, look) if cells is None else HeadModel(model).capture(look, cells=cells)
    expected = own_attentions(model, inputs)
    with torch.no_grad(), block:
        fail()
        seen.clear()
        model(**inputs)
    assert [layer for layer, _ in seen] == [0, 1]
    for layer, weights in seen:
        torch.testing.assert_close(weights, expected["enc-self", layer][:, :, :1], rtol=1e-5, atol=1e-6)


def test_lrp_rules_end_after_a_failed_forward(failing):
    model, fail = failing
    inputs = examples(model)

    def relevance():
        ones = torch.ones(8, requires_grad=True)
        with hr.mask_heads(model, ones):
            return torch.autograd.grad(model(**inputs).logits.sum(), ones)[0]

    with hr.lrp_rules(model, "cp"):
        expected = relevance()
        fail()
        assert torch.equal(relevance(), expected)
        fail()
    assert _get_current_function_mode_stack() == []


def test_a_failed_forward_is_no_training_step(failing):
    model, fail = failing
    given, inputs = L0(strength=0.1).gates(model, list(hr.models.head_index(model)), None), examples(model)
    given.horizon = 4
    with train_gates(model, given):
        model.train()
        model(**inputs, labels=inputs["input_ids"])
        fail()
        model(**inputs, labels=inputs["input_ids"])
    assert int(given.step) == 2
