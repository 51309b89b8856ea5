"""Heads to remove, and what a model without them is compared with."""

from __future__ import annotations

import copy
from functools import cache

import torch
from helpers import zoo
from helpers.gates import outputs
from helpers.traces import _traces

import headroles as hr
from headroles.models import masking
from headroles.models import sites as site
from headroles.models.pruned import resized


def first_layers(model):
    """All heads of the first layer of each kind, and of those that are the same module."""
    first = [one for one in hr.attention_sites(model) if one.layer == 0 or shares(model)]
    return [(*one.key, head) for one in first for head in range(one.heads)]


def shares(model):
    found = hr.attention_sites(model)
    return len({one.module for one in found}) < len(found)


def closing(model, heads, given):
    """What the model puts out with heads closed."""
    with hr.mask_heads(model, masking.head_mask(model, heads)):
        return outputs(model, given)


def reloaded(model, folder):
    model.save_pretrained(folder)
    return resized(type(model)).from_pretrained(folder).eval()


@cache
def unpruned(name):
    """The model of a family with all its heads: not to be changed."""
    return zoo.tiny(name)


def mixed(model):
    """Head 1 of every layer, and head 0 of the first of each kind unless all layers are one module."""
    found = hr.attention_sites(model)
    first = [one for one in found if one.layer == 0 and not shares(model)]
    return [(*one.key, 1) for one in found] + [(*one.key, 0) for one in first]


def numbered(model, head):
    """The head of this number in every layer."""
    return [(*one.key, head) for one in hr.attention_sites(model)]


def snapshot(model):
    """All that a cut changes."""
    sizes = [{name: value for name, value in vars(each).items() if isinstance(value, int)} for each in model.modules()]
    configs = [id(each.config) for each in model.modules() if hasattr(each, "config")]
    record = copy.deepcopy(site.recorded(model.config))
    return {name: value.clone() for name, value in model.state_dict().items()}, sizes, configs, _traces(model), record


def unchanged(model, before):
    weights, *rest = snapshot(model)
    same = weights.keys() == before[0].keys() and all(torch.equal(weights[name], before[0][name]) for name in weights)
    return same and rest == list(before[1:])
