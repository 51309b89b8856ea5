"""The backward pass through the vocabulary projection reads the logits asked for, and gives what autograd gives."""

from __future__ import annotations

import pytest
import torch
from helpers import zoo
from helpers.letters import corpus, tokens_of
from torch import nn

from headroles.models import batching
from headroles.models.head_model import HeadModel
from headroles.scores.gradients import projection
from headroles.scores.gradients.base import head_gradients
from headroles.scores.objectives import objective


def through(weight, x, back, *, sparse=True):
    """The gradient of a projection's input for a cotangent of its logits."""
    module = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    module.weight.data = weight
    x = x.clone().requires_grad_()
    module.register_forward_hook(projection.Projection(sparse=sparse))
    return torch.autograd.grad(module(x), x, back)[0]


def test_rows_of_logits_without_a_gradient_are_not_read():
    drawn = torch.Generator().manual_seed(0)
    weight, x = torch.randn(50, 8, generator=drawn), torch.randn(2, 3, 8, generator=drawn)
    back = torch.zeros(2, 3, 50)
    for token, column in enumerate([4, 0, 7, 4, 49]):  # the last token has none
        back.flatten(0, 1)[token, column] = token - 1.5
    expected = back @ weight
    weight[[column for column in range(50) if column not in (4, 0, 7, 49)]] = torch.nan
    assert torch.equal(through(weight, x, back), expected)
    assert through(weight, x, back, sparse=False).isnan().any()


def test_many_logits_of_a_token_are_a_product_with_all_weights():
    weight, x, back = torch.randn(50, 8), torch.randn(2, 3, 8), torch.randn(2, 3, 50)
    assert torch.equal(through(weight, x, back), back @ weight)


def test_no_hook_stays():
    model = zoo.tiny("gpt2")
    with projection.observed(HeadModel(model), sparse=True):
        assert model.get_output_embeddings()._forward_hooks
    assert not model.get_output_embeddings()._forward_hooks
    with projection.observed(HeadModel(model.transformer), sparse=True) as observed:  # without an unembedding
        assert observed.inputs == []


@pytest.mark.parametrize(  # every two of them together
    ("name", "steps", "rules"),
    [
        (["marian", "bert", "llama-grouped"][(row + column) % 3], steps, rules)
        for row, steps in enumerate(["sum", "all", 2])
        for column, rules in enumerate(["gradient", "cp", "attn", "voita"])
    ],
)
def test_gradients_are_those_of_autograd_bit_for_bit(name, steps, rules, monkeypatch):
    model = zoo.tiny(name)
    batches = list(batching.batches(batching.encode(corpus(4), tokens_of(name), model), model))
    fitted = objective("top", HeadModel(model)).fit(HeadModel(model), batches)
    ours = head_gradients(HeadModel(model), fitted, batches[0], rules=rules, steps=steps).gradients
    assert ours.any()
    observe = projection.Projection.__call__
    monkeypatch.setattr(projection.Projection, "__call__", lambda self, *call: (observe(self, *call), None)[1])
    assert torch.equal(ours, head_gradients(HeadModel(model), fitted, batches[0], rules=rules, steps=steps).gradients)
