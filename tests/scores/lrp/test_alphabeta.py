"""Alpha-beta rules are those of loops over contributions."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import zoo
from helpers.relevance import close, relevance
from torch.autograd.functional import jacobian

import headroles as hr
from headroles.models.attention_hooks import eager
from headroles.scores.lrp import alphabeta
from headroles.scores.lrp.alphabeta import Attend, Linear, Sum


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def taken(outputs, contributions):
    """The relevance of each input, by its contributions [output, input] of either sign, rescaled to that of outputs."""
    found = torch.zeros(contributions.shape[1], dtype=torch.float64)
    for relevance_, row in zip(outputs, contributions, strict=True):
        for same_sign in (row.clamp(min=0), row.clamp(max=0)):
            if same_sign.sum() != 0:
                found += relevance_ * same_sign / (2 * same_sign.sum())
    return found * outputs.abs().sum() / found.abs().sum()


@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_map_shares_among_inputs_of_either_sign(bias):
    x, weight, c = numbers(5, 4), numbers(4, 3, seed=1), numbers(5, 3, seed=2)
    y = Linear.apply(x, weight, numbers(3, seed=3) if bias else None)
    (y * c).sum().backward()
    for token in range(5):
        expected = taken((c * y)[token], (x[token, :, None] * weight).T)
        close((x * x.grad)[token], expected, 1e-12)


def test_a_sum_shares_among_its_summands():
    a, b, c = numbers(5, 4), numbers(5, 4, seed=1), numbers(5, 4, seed=2)
    (Sum.apply(a, b) * c).sum().backward()
    for token in range(5):
        contributions = torch.cat([a[token].diag(), b[token].diag()], 1)
        found = torch.cat([a * a.grad, b * b.grad], 1)[token]
        close(found, taken((c * (a + b))[token], contributions), 1e-12)


@pytest.mark.parametrize("cap", [math.inf, 0.5])
@pytest.mark.parametrize("block", [1, alphabeta.BLOCK])
def test_attention_shares_among_queries_keys_and_values(monkeypatch, block, cap):
    monkeypatch.setattr(alphabeta, "BLOCK", block)
    q, k, v, c = (numbers(2, 2, 4, 3, seed=seed) for seed in range(4))  # [batch, head, token, size]
    scaling = 1 / math.sqrt(3)

    def weights(q, k):
        scores = q @ k.transpose(-1, -2)
        return (scores if cap == math.inf else cap * (scores / cap).tanh()).softmax(-1)

    def attended(q, k, v):
        return weights(q, k) @ v

    o, a = attended(q * scaling, k, v).detach(), weights(q * scaling, k).detach()
    (Attend.apply(q, k, v, o, a, scaling, cap) * c).sum().backward()
    found = torch.cat([(x * x.grad).flatten(2) for x in (q, k, v)], -1)
    for batch in range(2):
        for head in range(2):
            inputs = tuple(x[batch, head].detach() for x in (q * scaling, k, v))
            parts = zip(jacobian(attended, inputs), inputs, strict=True)
            contributions = torch.cat([(part * x).reshape(12, 12) for part, x in parts], 1)  # [output, input]
            expected = taken((c * o)[batch, head].flatten(), contributions)
            close(found[batch, head], expected, 1e-10)


class ByJacobian(torch.autograd.Function):
    """A model's attention by the Jacobian of its function, one head at a time; keys and values are of one head each."""

    @staticmethod
    def forward(ctx, q, k, v, call):
        ctx.call = call
        ctx.save_for_backward(q, k, v)
        return call.out.detach().clone()  # [batch, token, head, size]

    @staticmethod
    def backward(ctx, c):
        call, inputs = ctx.call, ctx.saved_tensors
        groups = inputs[0].shape[1] // inputs[1].shape[1]
        back = [torch.zeros_like(x) for x in inputs]
        with torch.enable_grad():
            jacobians = jacobian(
                lambda q, k, v: eager(call.module)(call.module, q, k, v, call.mask, **call.options)[0], inputs
            )
        for head in range(inputs[0].shape[1]):
            outputs = (c * call.out.detach())[0, :, head].flatten()
            heads = head, head // groups, head // groups
            parts = [j[0, :, head, :, 0, h].flatten(2).flatten(0, 1) for j, h in zip(jacobians, heads, strict=True)]
            values = [x[0, h].flatten() for x, h in zip(inputs, heads, strict=True)]
            found = taken(outputs, torch.cat([p * x for p, x in zip(parts, values, strict=True)], 1))
            for g, h, r, x in zip(back, heads, found.split([len(x) for x in values]), values, strict=True):
                g[0, h] += (r / torch.where(x == 0, 1, x)).view_as(g[0, h])
        return *back, None


@pytest.mark.parametrize("name", ["gemma2", "vaultgemma", "llama-grouped"])
def test_attention_of_a_model_is_that_of_its_jacobian(monkeypatch, name):
    """Gemma 2 caps scores softly."""
    model = (zoo.tiny(name) if name in zoo.ZOO else hr.tiny_model(name)).double()
    for module in model.modules():
        if getattr(module, "attn_logit_softcapping", None):
            module.attn_logit_softcapping = 0.3
    inputs = {"input_ids": torch.tensor([[5, 9, 20, 7]])}
    found = relevance(model, inputs, "voita")
    monkeypatch.setattr(alphabeta, "attend", lambda call: ByJacobian.apply(call.query, call.key, call.value, call))
    close(found, relevance(model, inputs, "voita"), 1e-5)
