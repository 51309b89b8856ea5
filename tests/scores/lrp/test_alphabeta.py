"""Alpha-beta rules are those of loops over contributions."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.relevance import close, exact, relevance
from torch.autograd.functional import jacobian

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


@pytest.mark.parametrize("block", [1, alphabeta.BLOCK])
def test_attention_shares_among_queries_keys_and_values(monkeypatch, block):
    monkeypatch.setattr(alphabeta, "BLOCK", block)
    q, k, v, c = (numbers(2, 2, 4, 3, seed=seed) for seed in range(4))  # [batch, head, token, size]
    scaling = 1 / math.sqrt(3)

    def attended(q, k, v):
        return (q @ k.transpose(-1, -2)).softmax(-1) @ v

    o, weights = attended(q * scaling, k, v).detach(), (scaling * q @ k.transpose(-1, -2)).softmax(-1).detach()
    (Attend.apply(q, k, v, o, weights, scaling) * c).sum().backward()
    found = torch.cat([(x * x.grad).flatten(2) for x in (q, k, v)], -1)
    for batch in range(2):
        for head in range(2):
            inputs = tuple(x[batch, head].detach() for x in (q * scaling, k, v))
            parts = zip(jacobian(attended, inputs), inputs, strict=True)
            contributions = torch.cat([(part * x).reshape(12, 12) for part, x in parts], 1)  # [output, input]
            expected = taken((c * o)[batch, head].flatten(), contributions)
            close(found[batch, head], expected, 1e-10)


@pytest.mark.parametrize("name", ["t5", "llama", "mistral"])
def test_voita_factored_is_exact_without_biases(name):
    """A norm without a mean passes R either way."""
    model, inputs = exact(name)
    close(relevance(model, inputs, "voita"), relevance(model, inputs, "voita-exact"), 1e-10)
