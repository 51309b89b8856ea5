"""The weights of a model are hashed once in a block in which they do not change, and at every call outside one."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from helpers import zoo
from helpers.letters import corpus, tokens_of

import headroles as hr
from headroles.models import provenance
from headroles.models.provenance import fixed_weights, revision


@pytest.fixture
def model():
    return deepcopy(zoo.tiny("bert"))


@pytest.fixture
def hashed(monkeypatch):
    """The models whose weights were hashed, in order."""
    models, weights = [], provenance.weights
    monkeypatch.setattr(provenance, "weights", lambda model: models.append(model) or weights(model))
    return models


def test_weights_are_hashed_once_in_a_block(model, hashed):
    other = deepcopy(model)
    other.get_input_embeddings().weight.data.zero_()
    with fixed_weights():
        first = revision(model)
        with fixed_weights():
            assert revision(model) == first != revision(other)
        assert revision(model) == first
    assert hashed == [model, other]
    assert revision(model) == first
    assert len(hashed) == 3


@pytest.mark.parametrize("change", ["fused", "data", "copy"])
def test_a_change_between_blocks_is_noticed(model, change):
    """Also one that leaves the version counters of tensors as they are, by which a longer memory would go."""
    weight = model.get_input_embeddings().weight
    with fixed_weights():
        before, version = revision(model), weight._version
    if change == "fused":
        weight.grad = torch.ones_like(weight)
        torch.optim.AdamW([weight], fused=True).step()
    elif change == "data":
        weight.data.add_(1)
    else:
        with torch.no_grad():
            weight.copy_(weight + 1)
    assert (weight._version == version) == (change != "copy")
    with fixed_weights():
        assert revision(model) != before


def test_a_block_ends_by_an_exception(model, hashed):
    @fixed_weights()
    def fail():
        raise KeyError(revision(model))

    with pytest.raises(KeyError):
        fail()
    revision(model)
    assert len(hashed) == 2


def test_a_study_of_scores_hashes_once(model, hashed, tmp_path):
    hr.score(model, tokens_of("bert"), corpus(3), ["confidence"], n_resamples=0, study=tmp_path)
    assert hashed == [model]


def rows_exchanged(weight):
    weight[[0, 1]] = weight[[1, 0]]


def columns_exchanged(weight):
    weight[:, [0, 1]] = weight[:, [1, 0]]


def distant_pair_exchanged(weight):
    flat = weight.flatten()
    flat[[3, -5]] = flat[[-5, 3]]


def one_bit(weight):
    weight.view(torch.int32)[-1, -1] ^= 1


@pytest.mark.slow
@pytest.mark.parametrize("change", [rows_exchanged, columns_exchanged, distant_pair_exchanged, one_bit])
@pytest.mark.parametrize("shape", [(3, 7), (700, 64), (64, 1024)])
def test_a_digest_is_computed_again_where_weights_changed_place_or_bit(change, shape):
    """By a slow reference: the SHA-256 of a copy, which no checksum of the model's was asked about."""
    model = deepcopy(zoo.tiny("bert"))
    model.register_parameter(
        "extra", torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    )
    before = revision(model)
    assert revision(model) == before == revision(deepcopy(model))
    with torch.no_grad():
        change(model.extra.data)
    assert revision(model) != before
    assert revision(model) == revision(deepcopy(model))


def test_weights_that_begin_anywhere_in_memory_are_hashed(model):
    values = torch.randn(4097, generator=torch.Generator().manual_seed(0)).half()
    model.register_buffer("tied", values[1:])
    before = revision(model)
    values[5] += 1
    assert revision(model) != before
