"""Streaming by fused attention has the outputs and gradients of the pattern that is imposed on eager attention."""

from __future__ import annotations

import pytest
import torch

import headroles as hr
from headroles._changes import Changes
from headroles.budgets.attention import NAMES, first_tokens, implementation, masked, stream, streams
from headroles.patterns import Streaming

PATTERN = Streaming(2, 3)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_outputs_and_gradients_are_those_of_the_imposed_pattern(name, attention):
    model = hr.tiny_model(name, num_key_value_heads=2)
    model.set_attn_implementation(attention)
    ids = torch.randint(4, 96, (2, 19), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    real, sites = mask.bool(), hr.attention_sites(model)[name != "llama" :]  # the first layer of Gemma 3 has a window
    gates = torch.tensor([0.0, 1, 0.3, 1, 0, 0, 0.7, 1])
    gates[:4] = gates[:4] if name == "llama" else 1
    gates.requires_grad_()
    with hr.mask_heads(model, gates, PATTERN):
        expected = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[real]
    with Changes(model) as changes, hr.mask_heads(model, gates, streams(changes, sites, PATTERN)):
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[real]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5 * float(expected.detach().abs().max()))
    slopes = [torch.autograd.grad(values.square().mean(), gates)[0][-4:] for values in (logits, expected)]
    torch.testing.assert_close(*slopes, rtol=0, atol=1e-4 * float(slopes[1].abs().max()))
    assert model.config._attn_implementation == attention
    assert type(model.config._attn_implementation) is str


def test_a_query_sees_the_first_and_the_latest():
    seen = stream(torch.arange(7), torch.arange(7)[None], torch.tensor([0, 2]), PATTERN)
    for row, first in enumerate((0, 2)):
        for query in range(7):
            expected = [key <= query and (key - first < 2 or query - key < 3) for key in range(7)]
            assert seen[row, 0, query].tolist() == expected


def test_masks_of_both_forms_say_where_a_text_begins():
    allowed = torch.tensor([[[[False, False, True, True]]], [[[True, True, True, True]]]])
    lowest = torch.finfo(torch.float32).min
    additive = torch.zeros(2, 1, 1, 4).masked_fill(~allowed, lowest)
    for mask in (allowed, additive):
        assert first_tokens(mask, 2, mask.device).tolist() == [2, 0]
    assert first_tokens(None, 3, additive.device).tolist() == [0, 0, 0]
    kept = torch.tensor([True, True, True, False])
    assert masked(allowed, kept, print, torch.float32).sum() == 4
    assert torch.equal(masked(additive, kept, print, torch.float32) == 0, allowed & kept)
    assert masked(None, kept, print, torch.float32).tolist() == [0, 0, 0, lowest]


def test_the_implementation_is_fused_where_the_model_has_it():
    model = hr.tiny_model("llama")
    assert implementation(model) == NAMES["sdpa"]
    model.set_attn_implementation("eager")
    assert implementation(model) == NAMES["eager"]
