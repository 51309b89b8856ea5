"""Tiny decoders with budgets: what their streaming groups are as gates of heads, and needles for them."""

from __future__ import annotations

from functools import cache

import torch

import headroles as hr
from headroles.budgets.calibration import Calibration
from headroles.models.head_model import HeadModel
from headroles.patterns import Streaming
from headroles.testing.case import Case

SINK, RECENT = 2, 3
PATTERN = Streaming(SINK, RECENT)


@cache
def given(name="llama"):
    """A tiny decoder of two layers with two groups of two heads each, and needles."""
    case = Case(hr.tiny_model(name, num_key_value_heads=2))
    return case.model, case.tokenizer, hr.needles(case.tokenizer, 4, length=30, size=5)


def calibration(name="llama"):
    model, tokenizer, corpus = given(name)
    return Calibration(HeadModel(model, tokenizer), corpus, PATTERN)


@cache
def budget(name="llama", keep=2, by="random", seed=0, **options):
    return hr.cache_budget(*given(name), keep=keep, by=by, sink=SINK, recent=RECENT, seed=seed, **options)


def gates_of(table):
    """Gates of the eight heads: 0 for those of groups that stream."""
    gates = torch.ones(8)
    for _, layer, group in table.index[table["streaming"] == 1]:
        gates[4 * layer + 2 * group : 4 * layer + 2 * group + 2] = 0
    return gates


def loss(model, sentence, gates):
    """The mean loss of the answer in a plain loop, under the imposed pattern."""
    ids = torch.tensor([sentence.ids])
    with hr.mask_heads(model, gates, PATTERN):
        logits = model(input_ids=ids, use_cache=False).logits[0]
    return torch.nn.functional.cross_entropy(logits[sentence.answer - 1 : -1], ids[0, sentence.answer :])
