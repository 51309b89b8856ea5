"""Fixtures and helpers first written for cutting, which several tests share."""

from __future__ import annotations

from helpers.gates import outputs

import headroles as hr
from headroles.models import masking
from headroles.models.pruned import resized
from headroles.pruning import removal


def first_layers(model):
    """All heads of the first layer of each kind, and of those that are the same module."""
    return [
        (*one.key, head)
        for one in hr.attention_sites(model)
        if one.layer == 0 or shares(model)
        for head in range(one.heads)
    ]


def shares(model):
    found = hr.attention_sites(model)
    return len({one.module for one in found}) < len(found)


def closing(model, heads, given):
    """What the model puts out with heads closed."""
    with hr.mask_heads(model, masking.head_mask(model, heads)):
        return outputs(model, given)


def apart(one, other):
    """The largest difference, measured by the largest number if that is above 1."""
    return float((one.double() - other.double()).abs().max()) / max(float(other.abs().max()), 1.0)


def reloaded(model, folder):
    model.save_pretrained(folder)
    return resized(type(model)).from_pretrained(folder).eval()


def refuse(monkeypatch, error):
    def check(*_):
        raise error("on purpose")

    monkeypatch.setattr(removal, "_check_same", check)
