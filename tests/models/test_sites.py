"""One forward discovers the attention sites of every architecture."""

from __future__ import annotations

import re

import pytest
import torch
from helpers import zoo

import headroles as hr
from headroles.models import attention_hooks, heads


def test_check_head_out_of_range_raises():
    message = (
        "no head ('enc-self', 0, 8) in MarianMTModel, which has enc-self 3 layers of 8 heads, dec-self 1 layers of 4"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        heads.check_head(zoo.tiny("marian-asymmetric"), ("enc-self", 0, 8))


def test_sites_are_discovered_again_after_heads_are_removed():
    model = zoo.tiny("bert")
    assert hr.attention_sites(model)[0].heads == 4
    attention = model.bert.encoder.layer[0].attention
    for part in (attention.self.query, attention.self.key, attention.self.value):
        part.weight, part.bias = torch.nn.Parameter(part.weight[:24]), torch.nn.Parameter(part.bias[:24])
    attention.output.dense.weight = torch.nn.Parameter(attention.output.dense.weight[:, :24])
    assert [site.heads for site in hr.attention_sites(model)] == [3, 4]


def test_a_mask_function_is_registered_for_our_interface_name():
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    assert attention_hooks.NAME in ALL_MASK_ATTENTION_FUNCTIONS.valid_keys()


@pytest.mark.parametrize("name", ["bert", "marian", "t5", "llama", "gpt2"])
def test_transformers_still_ignores_head_masks(name):
    """The reason why we refuse them: when this fails, transformers has changed its mind."""
    model, given = zoo.tiny(name), None
    given = zoo.inputs(model)
    with torch.no_grad():
        plain = model(**given).logits
        masked = model(**given, head_mask=torch.zeros(2, 4)).logits
    assert torch.equal(plain, masked)
