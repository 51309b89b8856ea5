"""Attention masks that hold biases: uniform attention is the mean of the values that a mask allows."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from helpers.close import close
from torch import Tensor

import headroles as hr
from headroles.models import replacements
from headroles.testing.case import Case

LENGTH, PADDING = 7, 2


class Example(NamedTuple):
    """A model, its inputs, one of its layers and the keys that each query may attend to, worked out by hand."""

    model: torch.nn.Module
    inputs: dict[str, Tensor]
    layer: int
    value: str  # the names of the modules of values and of outputs
    out: str
    allowed: Tensor  # bool [batch or 1, query, key]


def text(model, padding=PADDING):
    ids = torch.randint(4, 90, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    if padding:
        mask[1, -padding:] = 0
        ids[1, -padding:] = model.config.pad_token_id or 0
    return {"input_ids": ids, "attention_mask": mask}


def causal(inputs):
    return torch.ones(LENGTH, LENGTH).tril().bool() & inputs["attention_mask"].bool()[:, None]


def doge():
    model = hr.tiny_model("doge")
    inputs = text(model)
    place = "model.layers.1.self_attn"
    return Example(model, inputs, 1, f"{place}.v_proj", f"{place}.o_proj", causal(inputs))


def doge_of_few_keys():
    """Each query attends to the three keys with the largest biases, of those before it."""
    model = hr.tiny_model("doge", keep_window_size=3)
    inputs = text(model, padding=0)
    place = "model.layers.0.self_attn"
    found = {}
    hook = model.get_submodule(f"{place}.dt_proj").register_forward_hook(lambda *call: found.update(dt=call[-1]))
    with torch.no_grad():
        model(**inputs)
    hook.remove()
    bias = torch.exp(model.get_submodule(place).A * torch.nn.functional.softplus(found["dt"])).transpose(-1, -2)
    bias = bias[:, :, None].expand(-1, -1, LENGTH, -1).masked_fill(~torch.ones(LENGTH, LENGTH).tril().bool(), -1)
    ranks = bias.argsort(-1, descending=True).argsort(-1)
    return Example(model, inputs, 0, f"{place}.v_proj", f"{place}.o_proj", (ranks < 3) & (bias > 0))


def mistral():
    model = hr.tiny_model("mistral", sliding_window=3)
    inputs = text(model)
    near = torch.ones(LENGTH, LENGTH).triu(-2).bool()
    place = "model.layers.1.self_attn"
    return Example(model, inputs, 1, f"{place}.v_proj", f"{place}.o_proj", causal(inputs) & near)


def markuplm():
    """Padding is -10,000, not the lowest number."""
    model = hr.tiny_model("markuplm")
    inputs = text(model)
    allowed = inputs["attention_mask"].bool()[:, None].expand(-1, LENGTH, -1)
    place = "encoder.layer.0.attention"
    return Example(model, inputs, 0, f"{place}.self.value", f"{place}.output.dense", allowed)


def t5():
    """Biases of positions are beside the mask."""
    model = hr.tiny_model("t5")
    inputs = text(model)
    inputs["decoder_input_ids"] = inputs["input_ids"][:, :3]
    allowed = inputs["attention_mask"].bool()[:, None].expand(-1, LENGTH, -1)
    place = "encoder.block.0.layer.0.SelfAttention"
    return Example(model, inputs, 0, f"{place}.v", f"{place}.o", allowed)


def parakeet(padded):
    """Biases depend on queries and positions; padding is the lowest number."""
    model = hr.tiny_model("parakeet_encoder")
    inputs = {"input_features": torch.randn(2, 56, 16, generator=torch.Generator().manual_seed(0))}
    allowed = torch.ones(2, LENGTH, LENGTH).bool()
    if padded:
        inputs["attention_mask"] = torch.ones(2, 56, dtype=torch.bool)
        inputs["attention_mask"][1, 40:] = False  # five of seven frames, each of eight, are left
        allowed[1, :, 5:] = False
        allowed[1, 5:] = False
    return Example(model, inputs, 1, "layers.1.self_attn.v_proj", "layers.1.self_attn.o_proj", allowed)


def beit():
    model = hr.tiny_model("beit", use_relative_position_bias=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relative_position_bias_table" in name:
                parameter.normal_(std=3, generator=torch.Generator().manual_seed(1))
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    place = "beit.layers.0.attention"
    allowed = torch.ones(1, 17, 17).bool()  # 16 patches and a class token
    return Example(model, {"pixel_values": pixels}, 0, f"{place}.v_proj", f"{place}.o_proj", allowed)


def swin(shifted):
    """Windows of four by four of eight by eight patches; shifted ones hold patches of up to four regions."""
    model = hr.tiny_model("swin", image_size=32, embed_dim=16, depths=[2, 1], num_heads=[2, 4], window_size=4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relative_position_bias_table" in name:
                parameter.normal_(std=3, generator=torch.Generator().manual_seed(1))
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    place = f"swin.encoder.layers.0.blocks.{int(shifted)}.attention"
    allowed = torch.ones(8, 16, 16).bool()
    if shifted:  # a patch that came round from the other side is of another region
        side = torch.arange(8).roll(-2) < 2
        region = (2 * side[:, None] + side).view(2, 4, 2, 4).permute(0, 2, 1, 3).reshape(4, 16)  # [window, patch]
        allowed = (region[:, :, None] == region[:, None]).repeat(2, 1, 1)
    return Example(model, {"pixel_values": pixels}, int(shifted), f"{place}.v_proj", f"{place}.o_proj", allowed)


EXAMPLES = {
    "doge": doge,
    "doge of few keys": doge_of_few_keys,
    "mistral": mistral,
    "markuplm": markuplm,
    "t5": t5,
    "parakeet": lambda: parakeet(padded=False),
    "parakeet, padded": lambda: parakeet(padded=True),
    "beit": beit,
    "swin": lambda: swin(shifted=False),
    "swin, shifted": lambda: swin(shifted=True),
}


def by_hand(example, site, head):
    """The output of the model with one head's slice replaced by the mean of the allowed values."""
    values = {}
    group = head // (site.heads // site.kv_heads)
    weights = example.allowed.float()
    weights = weights[:, head] if weights.ndim == 4 else weights
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1)

    def keep(_, __, output):
        values["of head"] = output[..., group * site.size : (group + 1) * site.size]

    def change(_, args):
        z = args[0].clone()
        z[..., head * site.size : (head + 1) * site.size] = weights @ values["of head"]
        return (z, *args[1:])

    hooks = [
        example.model.get_submodule(example.value).register_forward_hook(keep),
        example.model.get_submodule(example.out).register_forward_pre_hook(change),
    ]
    with torch.no_grad():
        output = example.model(**example.inputs)[0]
    for hook in hooks:
        hook.remove()
    return output


@pytest.mark.parametrize("name", EXAMPLES)
def test_uniform_attention_is_the_mean_of_the_allowed_values(name):
    example = EXAMPLES[name]()
    site = next(site for site in hr.attention_sites(example.model) if site.out_name == example.out)
    with torch.no_grad():
        intact = example.model(**example.inputs)[0]
    kept = torch.ones(intact.shape[:2], dtype=torch.bool)
    if "attention_mask" in example.inputs and intact.shape[1] == LENGTH:  # padded queries have no keys of their own
        kept = torch.ones(2, LENGTH, dtype=torch.bool)
        kept[1, -PADDING:] = False
    for head in (0, site.heads - 1):
        gates = hr.head_mask(example.model, [(*site.key, head)])
        with torch.no_grad(), hr.mask_heads(example.model, gates, "uniform"):
            found = example.model(**example.inputs)[0]
        expected = by_hand(example, site, head)
        assert (expected - intact)[kept].abs().max() > 1e-3
        close(found[kept], expected[kept])


def test_effects_by_uniform_attention_are_no_longer_those_by_zero():
    case = Case(hr.tiny_model("doge"))
    uniform, zero = (
        hr.ablate(case.model, case.tokenizer, case.corpus, replacement=filling, n_resamples=0).iloc[:, 0]
        for filling in ("uniform", "zero")
    )
    assert (uniform - zero).abs().max() > 0.1


LOWEST = torch.finfo(torch.float32).min


@pytest.mark.parametrize(
    ("mask", "allowed"),
    [
        ([[[0, LOWEST, -torch.inf, 0]]], [[[1, 0, 0, 1]]]),
        ([[[2.5, LOWEST, -3, LOWEST + 5]]], [[[1, 0, 1, 0]]]),
        ([[[0, -10000, 0, -1e9]]], [[[1, 0, 1, 0]]]),
        ([[[3, -97, -2, -104]]], [[[1, 0, 1, 0]]]),
        ([[[-150, -100, -50, 0]], [[-0.6, -0.4, -0.2, 0]]], [[[1, 1, 1, 1]], [[1, 1, 1, 1]]]),  # by distance
        ([[[LOWEST, 1, 2, 3]], [[1, LOWEST, 2, 3]]], [[[0, 1, 1, 1]], [[1, 0, 1, 1]]]),  # each head has a mask
        ([[[LOWEST, LOWEST, LOWEST, LOWEST]]], [[[0, 0, 0, 0]]]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_which_keys_an_additive_mask_allows(mask, allowed, dtype):
    given = torch.tensor([mask], dtype=dtype)
    if dtype == torch.float64:
        given = torch.where(given <= LOWEST / 2, torch.finfo(dtype).min, given)
    assert replacements.allowed(given).int().tolist() == [allowed]


def test_which_keys_a_mask_in_half_precision_allows():
    lowest = torch.finfo(torch.float16).min
    given = torch.tensor([[[[0, lowest, 1.5, lowest / 1.1]]]], dtype=torch.float16)
    assert replacements.allowed(given).tolist() == [[[[True, False, True, False]]]]
