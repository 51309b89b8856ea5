"""Patterns: what all of them promise, imposed alone and beside others; what cannot be imposed, and labels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers import zoo
from helpers.imposed import tiny
from helpers.letters import corpus, observation, tokenizer

import headroles as hr
from headroles.models.head_model import HeadModel
from headroles.patterns import Dependency, Diagonal, Pattern, Shift, Shuffle
from headroles.patterns.simple import Duplicate, First, Induction, Offset, Previous, Rarest, Special, Streaming, Uniform

PATTERNS = [Offset(-1), Induction(), Duplicate(), First(), Rarest(0), Special(), Diagonal(), Uniform()]


def observed(kind):
    return observation(torch.rand(8, 8), kind=kind, special=(0, 7), ids=[9, 700, 9, 8, 700, 9, 30, 9])


@pytest.mark.parametrize(
    ("pattern", "kind"), [(pattern, kind) for pattern in PATTERNS for kind in pattern.kinds], ids=str
)
def test_targets_sum_to_one_or_do_not_apply(pattern, kind):
    for made in (pattern, Shift(pattern, 1), Shift(pattern, -1), Shuffle(pattern)):
        targets = made.targets(observed(kind))
        sums = targets.sum(-1)
        torch.testing.assert_close(sums, sums.round(), rtol=0, atol=1e-6)
        assert set(sums.round().unique().tolist()) <= {0.0, 1.0}
        assert torch.equal(made.applies(observed(kind))[:, 0], (sums > 0.5) & observed(kind).queries.content)
        if kind == "dec-self":
            assert not targets.triu(1).any()


def test_targets_of_a_block_of_queries_are_rows_of_the_whole():
    handle = HeadModel(zoo.tiny("bert"), tokenizer())
    (batch,) = handle.batches(handle.encode(corpus(3)))
    view = batch.source
    size = view.ids.shape[1]
    counts = torch.arange(1000, 0, -1)
    patterns = [*PATTERNS, Dependency("obj"), Dependency("obj", "head>dep"), Streaming(1, 2)]
    for pattern in [made for one in patterns for made in (one, Shift(one, 1), Shuffle(one))]:
        kind = pattern.kinds[-1]
        seen = replace(
            observation(torch.ones(size, size), kind=kind), weights=torch.rand(3, 1, size, size), keys=view,
            queries=view, counts=counts, ranks=torch.arange(1000), kind=kind,
        )  # fmt: skip
        if kind == "cross":  # whose queries are never read in blocks by themselves
            continue
        targets = pattern.targets(seen)
        for first in range(0, size, 4):
            last = min(first + 4, size)
            part = replace(seen, weights=seen.weights[:, :, first:last], queries=view.span(first, last), first=first)
            assert torch.equal(pattern.targets(part), targets[..., first:last, :]), pattern


def test_the_gradient_of_gates_is_a_finite_difference():
    case = tiny("gpt2")
    model, ids, step = case.precise, case.inputs["input_ids"], 1e-6

    def value(gates):
        with hr.mask_heads(model, gates, Previous()):
            return model(input_ids=ids).logits.logsumexp(-1).mean()

    gates = torch.linspace(0.1, 1, case.heads, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(value(gates), gates)
    steps = step * torch.eye(case.heads, dtype=torch.float64)
    with torch.no_grad():
        expected = torch.stack([(value(gates + row) - value(gates - row)) / (2 * step) for row in steps])
    assert expected.abs().min() > 1e-4
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)


def test_left_padding_leaves_the_text_as_it_is():
    case = tiny("llama")
    ids = case.inputs["input_ids"][:1]
    left = {
        "input_ids": torch.cat([torch.ones(1, 3, dtype=torch.long), ids], 1),
        "attention_mask": torch.cat([torch.zeros(1, 3, dtype=torch.long), torch.ones_like(ids)], 1),
        "position_ids": torch.cat([torch.zeros(1, 3, dtype=torch.long), torch.arange(ids.shape[1])[None]], 1),
    }
    gates = hr.head_mask(case.model, [("dec-self", 0, 1), ("dec-self", 1, 2)])
    for pattern in (Previous(), First(), Uniform(), Streaming(1, 2)):
        with torch.no_grad(), hr.mask_heads(case.model, gates, pattern):
            plain, padded = case.model(input_ids=ids).logits, case.model(**left).logits[:, 3:]
        assert float((plain - padded).abs().max()) <= 1e-5 * float(plain.abs().max())


def test_labels_are_words_for_columns_and_files():
    labels = {
        "offset=-1": Offset(-1), "previous": Previous(), "shift=first,2": Shift(First(), 2),
        "streaming=2": Streaming(2), "rarest": Rarest(), "dependency=obj,head-to-dep": Dependency("obj", "head>dep"),
    }  # fmt: skip
    assert {pattern.label: pattern for pattern in labels.values()} == labels
    assert all(isinstance(pattern, Pattern) for pattern in labels.values())


@pytest.mark.parametrize("replacement", [Offset(-1), "uniform", Streaming(1, 2), Streaming(4, 64)], ids=str)
def test_a_learned_sink_keeps_its_share(replacement):
    """gpt-oss: by a plain hook that replaces the slice of a head; a window over the whole text costs nothing."""
    model, ids = hr.tiny_model("gpt_oss"), torch.arange(4, 13)[None]
    site, captured, values = hr.attention_sites(model)[0], {}, []
    torch.nn.init.constant_(site.module.sinks, 8.0)
    with torch.no_grad(), hr.capture_attention(model, lambda site, weights: captured.update({site.key: weights[0, 1]})):
        hook = site.module.v_proj.register_forward_hook(lambda _, __, output: values.append(output[0]))
        expected = model(input_ids=ids, use_cache=False).logits
        hook.remove()
    own, value = captured[site.key].double(), values[0][:, : site.size].double()  # [query, key], [key, size]
    share, apart = own.sum(-1, keepdim=True), torch.arange(9)[:, None] - torch.arange(9)
    assert share.min() < 0.5 < share.max()
    if replacement == Offset(-1):
        weights = torch.where(apart.gt(0).any(1, keepdim=True), share * (apart == 1), own)
    elif replacement == "uniform":  # the layer has a window of four tokens
        seen = ((apart >= 0) & (apart < 4)).double()
        weights = share * seen / seen.sum(-1, keepdim=True)
    else:
        kept = own * ((torch.arange(9) < replacement.sink) | (apart < replacement.recent))
        weights = kept / (kept.sum(-1, keepdim=True) + 1 - share)

    def put(_, args):
        z = args[0].clone()
        z[0, :, site.size : 2 * site.size] = (weights @ value).float()
        return (z,)

    with torch.no_grad():
        hook = site.out.register_forward_pre_hook(put)
        if replacement != Streaming(4, 64):
            expected = model(input_ids=ids, use_cache=False).logits
        hook.remove()
        with hr.mask_heads(model, hr.head_mask(model, [(*site.key, 1)]), replacement):
            found = model(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))  # 1 - share rounds
