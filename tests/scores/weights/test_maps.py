"""The maps of heads: norms that are found, distances and norms that cannot be."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers import zoo
from helpers.messages import whole
from torch import nn

import headroles as hr
from headroles.scores.weights.maps import is_norm


class TwoNorms(nn.Module):
    """The mean of two norms of the same stream."""

    def __init__(self, norm):
        super().__init__()
        self.one, self.other = norm, copy.deepcopy(norm)

    def forward(self, x):
        return (self.one(x) + self.other(x)) / 2


def test_maps_after_two_norms_are_refused():
    model = zoo.tiny("gpt2")
    model.transformer.ln_f = TwoNorms(model.transformer.ln_f)
    with pytest.raises(
        ValueError, match=whole("maps of the unembedding cannot be read: got 2 norms before it; expected one")
    ):
        hr.copying(model)


def test_norms_are_modules_of_vectors_alone():
    class Scaled(nn.Module):
        def __init__(self, inner=None):
            super().__init__()
            self.weight, self.inner = nn.Parameter(torch.ones(4)), inner

    assert all(map(is_norm, (nn.LayerNorm(4), nn.RMSNorm(4), Scaled())))
    no_norms = nn.Linear(4, 4), nn.Embedding(4, 4), nn.Dropout(), nn.Sequential(nn.LayerNorm(4)), Scaled(nn.Dropout())
    assert not any(map(is_norm, no_norms))


@pytest.mark.parametrize(
    ("name", "distance", "message"),
    [
        ("llama-grouped", -1, "distance out of range: got distance=-1; expected 0 or more, and below {limit}"),
        ("gpt2", 40, "distance out of range: got distance=40; expected 0 or more, and below {limit}"),
        ("marian", 2, "no distance in MarianMTModel: got distance=2, and no position_ids; expected 0"),
    ],
)
def test_distances_that_are_not(name, distance, message):
    model = zoo.tiny(name)
    with pytest.raises(ValueError, match=whole(message.format(limit=model.config.max_position_embeddings))):
        hr.composition(model, distance=distance)
