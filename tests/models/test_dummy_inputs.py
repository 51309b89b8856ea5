"""Weights and numbers that are not finite are named by the forward that checks a model."""

from __future__ import annotations

import math
import re

import pytest
import torch
from helpers import zoo
from helpers.letters import corpus, tokens_of

import headroles as hr

QUERY = "bert.encoder.layer.0.attention.self.query.weight"
AFTER = "bert.encoder.layer.1.output.dense.weight"  # no attention comes after it
ASKED = {
    "relevance": lambda model: hr.score(model, tokens_of("bert"), corpus(4), "relevance"),
    "importance": lambda model: hr.score(model, tokens_of("bert"), corpus(4), "importance"),
    "prune": lambda model: hr.prune(model, tokens_of("bert"), corpus(4), "importance", keep=0.5),
    "remove_heads": lambda model: hr.remove_heads(model, [("enc-self", 0, 1)]),
    "weight_change": lambda model: hr.weight_change(model, model),
    "mask_heads": lambda model: hr.mask_heads(model, torch.ones(8)).__enter__(),
}


def spoilt(name, value):
    model = zoo.tiny("bert")
    model.get_parameter(name).data[0, 0] = value
    return model


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "value"), [*((asked, math.nan) for asked in ASKED), ("remove_heads", math.inf)])
def test_weights_that_are_not_finite_are_named(asked, value):
    message = f"the numbers of BertForMaskedLM are not finite: 1 of 1,024 in {QUERY}"
    with pytest.raises(ValueError, match=rf"\A{re.escape(message)}\Z"):
        ASKED[asked](spoilt(QUERY, value))


@pytest.mark.parametrize("asked", ["relevance", "importance", "prune", "remove_heads"])
def test_weights_behind_all_attention_are_named_too(asked):
    with pytest.raises(ValueError, match=rf"not finite.*: 1 of 1,536 in {re.escape(AFTER)}"):
        ASKED[asked](spoilt(AFTER, math.nan))


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED)
def test_numbers_that_half_precision_cannot_hold_are_named(asked):
    model = zoo.tiny("bert")
    model.bert.encoder.layer[0].attention.self.value.weight.data *= 30_000
    message = (
        "the numbers of BertForMaskedLM are not finite: the output of bert.encoder.layer.0.attention.self.value, "
        "in float16"
    )
    with pytest.raises(ValueError, match=rf"\A{re.escape(message)}\Z"):
        ASKED[asked](model.half())


def test_a_repaired_model_works():
    model = spoilt(QUERY, math.nan)
    with pytest.raises(ValueError, match="not finite"):
        ASKED["remove_heads"](model)
    model.load_state_dict(zoo.tiny("bert").state_dict())
    ASKED["remove_heads"](model)
    assert hr.attention_sites(model)[0].numbers == (0, 2, 3)
