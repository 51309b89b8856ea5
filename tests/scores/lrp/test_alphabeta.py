"""Alpha-beta rules are those of loops over contributions."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import zoo
from helpers.relevance import close, exact, relevance
from torch.autograd.functional import jacobian

import headroles as hr
from headroles.models.attention_hooks import eager
from headroles.scores.lrp import alphabeta
from headroles.scores.lrp.alphabeta import Attend, ExactLinear, Linear, Sum


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


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_units_that_are_0_take_their_part_of_biases_alone(bias, gated, dtype):
    x, weight, c, shift = numbers(5, 4), numbers(4, 3, seed=1), numbers(5, 3, seed=2), numbers(3, seed=3)
    x, gate = (y.detach().to(dtype).requires_grad_() for y in (x, numbers(5, 4, seed=4)))
    weight, c, shift = (y.detach().to(dtype) for y in (weight, c, shift))
    hidden = alphabeta.kept(torch.relu, x) * (gate if gated else 1)
    y = ExactLinear.apply(hidden, weight, shift if bias else None)
    (y * c).sum().backward()
    value = (x.relu() * (gate if gated else 1)).detach()
    expected = [
        taken((c * y)[token].detach(), (value[token, :, None] * weight + (shift / 4 if bias else 0)).T)
        for token in range(5)
    ]
    assert any(((v != 0) & (v * w >= 0)).sum() == (v != 0).sum() for v in value for w in weight.T)  # of a single sign
    close((x * x.grad).detach(), torch.stack(expected).to(dtype), 1e-5)


def test_voita_factored_is_exact_where_units_are_0():
    model = hr.tiny_model("t5", d_model=16, num_heads=2, d_kv=6, d_ff=20).double()
    inputs = {
        "input_ids": torch.tensor([[6, 7, 8, 14, 2], [17, 55, 8, 13, 2]]),
        "decoder_input_ids": torch.tensor([[0, 85, 8, 9], [0, 15, 16, 17]]),
    }
    close(relevance(model, inputs, "voita"), relevance(model, inputs, "voita-exact"), 1e-6)


@pytest.mark.parametrize("name", ["t5", "llama", "mistral"])
def test_voita_factored_is_exact_without_biases(name):
    """A norm without a mean passes R either way."""
    model, inputs = exact(name)
    close(relevance(model, inputs, "voita"), relevance(model, inputs, "voita-exact"), 1e-10)
