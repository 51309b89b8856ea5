"""Relevance of all heads for one logit, in double precision."""

from __future__ import annotations

import torch
from helpers import zoo

import headroles as hr
from headroles.models import heads as families
from headroles.models.attention_hooks import without_cache
from headroles.scores.lrp import RULES, lrp_rules

TOKEN = 17  # the one whose logit is explained
ONLY_FLOAT32 = {"fsmt", "mixtral"}  # ... and these run in no other: a mask overflows, a kernel is missing


def allowed(name):
    """The rule sets that a family can have."""
    return [rules for rules in RULES if not (rules.startswith("voita") and name in zoo.OUTSIDE)]


def exact(name):
    """A model and its inputs in float64, or in what it runs in."""
    dtype = torch.float32 if name in ONLY_FLOAT32 else torch.float64
    model = zoo.tiny(name).to(dtype)
    return model, cast(zoo.inputs(model), dtype)


def cast(inputs, dtype):
    return {key: value.to(dtype) if value.is_floating_point() else value for key, value in inputs.items()}


def explained(output, step=2):
    """A logit of each example: [batch]."""
    return output.logits[:, step, TOKEN] if output.logits.ndim == 3 else output.logits[:, 1]


def begun(values, rules):
    """What goes back: relevance starts at the values, by the voita rules at 1."""
    return (values / values.detach() if rules.startswith("voita") else values).sum()


def relevance(model, inputs, rules="cp", *, step=2, number=explained):
    """The relevance of every head: [batch, heads]."""
    size = len(next(iter(inputs.values()))), len(families.head_index(model))
    ones = torch.ones(size, dtype=torch.promote_types(model.dtype, torch.float32), requires_grad=True)
    with lrp_rules(model, rules), hr.mask_heads(model, ones):
        values = number(model(**inputs, **without_cache(model)), step)
    return torch.autograd.grad(begun(values, rules), ones)[0]


def close(found, expected, tolerance):
    """Within a tolerance relative to the largest."""
    assert expected.abs().max() > 1e-6
    assert (found - expected).abs().max() <= tolerance * expected.abs().max()
