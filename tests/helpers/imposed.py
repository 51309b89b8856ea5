"""The model's own attention with some weights replaced: a slow loop over queries, for tests of imposed patterns."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import torch
from helpers import zoo
from helpers.letters import corpus, tokenizer
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

import headroles as hr
from headroles.models.head_model import HeadModel
from headroles.models.masking import head_mask
from headroles.models.parts import sharing
from headroles.testing.case import Case

NAME = "a slow loop"
REPLACED = {}  # module -> (head, weights of a query: function of query and its own weights; None keeps these)


def attend(module, query, key, value, mask, **options):
    """The model's own attention with some rows replaced, and the product with the values once more."""
    modules = (sys.modules[cls.__module__] for cls in type(module).__mro__)
    eager = next(each.eager_attention_forward for each in modules if hasattr(each, "eager_attention_forward"))
    _, weights = eager(module, query, key, value, mask, **options)
    weights = weights.clone()
    if module in REPLACED:
        head, row = REPLACED[module]
        for place in range(weights.shape[2]):
            new = row(place, weights[0, head, place])
            if new is not None:
                weights[0, head, place] = new
    values = value.repeat_interleave(weights.shape[1] // value.shape[1], 1)
    return (weights @ values).transpose(1, 2).contiguous(), weights


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, eager_mask)


@contextmanager
def by_loop(model, site, head, row):
    model.set_attn_implementation(NAME)
    REPLACED[site.module] = head, row
    try:
        yield
    finally:
        REPLACED.clear()


def at(place, keys):
    """All weight on one key."""
    weights = torch.zeros(keys)
    weights[place] = 1
    return weights


def alike(places, keys):
    """Equal weights on some keys; None without any."""
    return sum(at(place, keys) for place in places) / len(places) if places else None


def imposed_equals_loop(case, pattern, kind, row, head=1, layer=0, sentence=0):
    """A pattern imposed on one head is what the loop gives, and not what the intact model gives."""
    handle = HeadModel(case.model, case.tokenizer)
    site = next(site for site in handle.sites if site.key == (kind, layer))
    (batch,) = handle.batches(handle.encode(case.corpus[sentence : sentence + 1]))
    with torch.no_grad(), handle.mask(head_mask(handle.model, [(*site.key, head)]), pattern.bind(batch)):
        imposed = case.output(case.model, batch.inputs)
    slow = sharing(case.model)
    twin = next(other for other in hr.attention_sites(slow) if other.key == site.key)
    with by_loop(slow, twin, head, row(batch)):
        expected = case.output(slow, batch.inputs)
    size = float(expected.abs().max())
    assert float((case.output(case.model, batch.inputs) - expected).abs().max()) > 1e-3 * size  # it changes something
    assert float((imposed - expected).abs().max()) <= 1e-5 * size


def tiny(name, **options):
    """A tiny model with a corpus for it."""
    return Case(hr.tiny_model(name, **options))


def lettered(name):
    """A small model of the zoo with parsed sentences of letters, whose words have several pieces."""
    case = Case(zoo.tiny(name))
    case.tokenizer, case.corpus = tokenizer(), corpus(6)
    return case


def table(pattern, observed):
    """The targets of a pattern for one sentence: rows of numbers, [query][key]."""
    (weights,) = pattern.targets(observed)
    return weights.tolist()
