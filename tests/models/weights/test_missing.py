"""Random weights are those that matter to what is asked, as a forward with other numbers in them says."""

from __future__ import annotations

import copy
from collections import defaultdict

import pytest
import torch
from helpers import zoo

import headroles as hr
from headroles.models.weights import missing


def moved(model, name):
    """Whether what attention does, its weights and what its heads write, and the output change with a weight."""
    found, inputs = [], zoo.inputs(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        dict(other.named_parameters(remove_duplicate=False))[name].normal_(generator=torch.Generator().manual_seed(0))
        for one in (model, other):
            seen = []
            for site in hr.attention_sites(one):
                site.out.register_forward_hook(lambda *given, into=seen: into.append(given[-1].clone()))
            with hr.capture_attention(one, lambda _, weights, into=seen: into.append(weights.clone())):
                found.append((seen, one(**inputs).logits))
    (ours, plain), (theirs, changed) = found
    attends = any(not torch.equal(*pair) for pair in zip(ours, theirs, strict=True))
    return {"attention": attends, "output": not torch.equal(plain, changed)}


@pytest.mark.parametrize("name", ["gpt2", "marian"])
@pytest.mark.parametrize("what", ["attention", "output"])
def test_a_weight_is_needed_where_what_is_asked_changes_with_it(name, what):
    model, tied = zoo.tiny(name), defaultdict(list)
    sites = hr.attention_sites(model)
    for name, value in model.named_parameters(remove_duplicate=False):
        if value.ndim > 1 and value.requires_grad:
            tied[value].append(name)
    for names in tied.values():  # of one weight, all of which a checkpoint lacks
        missing.forget(model)
        missing.note(model, names)
        assert bool(missing.needed(model, sites, what)) == moved(model, names[0])[what], names


def test_a_weight_that_was_trained_is_not_random():
    model = zoo.tiny("gpt2")
    sites, name = hr.attention_sites(model), "transformer.h.0.attn.c_attn.weight"
    missing.note(model, [name])
    assert missing.needed(model.double(), sites, "attention") == [name]
    with torch.no_grad():
        model.transformer.h[0].attn.c_attn.weight.add_(1e-3)
    assert missing.needed(model, sites, "attention") == []


def test_weights_that_all_are_missing():
    model = zoo.tiny("gpt2")
    names = [name for name, _ in model.named_parameters()]
    assert missing.none_matched(model, names)
    assert not missing.none_matched(model, names[1:])
    assert missing.described(list("abcde")) == "a, b, c and 2 more"
    assert missing.described(["a"]) == "a"
