"""Capture: the weights of every attention call are those the model computes, none are kept, no trace is left."""

from __future__ import annotations

import weakref
from collections import Counter
from copy import deepcopy
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import planted, zoo
from helpers.attentions import forward
from helpers.close import bound
from helpers.letters import corpus, tokens_of
from helpers.removals import unpruned as tiny
from helpers.traces import NAMES, _traces
from torch.utils._python_dispatch import TorchDispatchMode

import headroles as hr
from headroles.models import attention_hooks, heads
from headroles.models.head_model import HeadModel
from headroles.models.heads import divisible
from headroles.models.parts import outside
from headroles.tables import frame
from headroles.testing import checks

OTHERS = ["bert", "marian", "gpt2", "bloom", "albert", "fsmt"]  # one for each way of looking into a model
GATED = ["marian", "bert", "llama-grouped", "bloom", "albert"]
THREE = ["bert", "llama-grouped", "marian"]


@cache
def seen(name):
    """(site, weights) of every attention call of one forward on padded input."""
    return looked(tiny(name), zoo.inputs(tiny(name)))


def looked(model, given):
    found = []
    with hr.capture_attention(model, lambda site, weights: found.append((site, weights))):
        forward(model, given)
    return found


def present(given, kind, side):
    """Which queries or keys of a kind of attention are not padding: bool [batch, token], or None where all are there"""
    mask = "attention_mask"
    if "decoder_input_ids" in given and (kind == "dec-self" or (kind == "cross" and side == "queries")):
        mask = "decoder_attention_mask"
    return given[mask].bool() if mask in given else None


@pytest.mark.parametrize("name", zoo.each(NAMES))
def test_every_attention_call_is_a_known_site_once(name):
    calls, known = Counter(), hr.attention_sites(tiny(name))
    modules = filter(outside, tiny(name).modules())
    hooks = [module.register_forward_hook(lambda module, *_: calls.update([module])) for module in modules]
    try:
        with attention_hooks.attending(tiny(name), lambda call: calls.update([call.module])):
            found = looked(tiny(name), zoo.inputs(tiny(name)))
    finally:
        for hook in hooks:
            hook.remove()
    sites = [site for site, _ in found]
    assert calls == Counter(site.module for site in sites)
    assert len(sites) == len(set(sites))
    assert set(sites) == set(known)
    assert all(weights.shape[:2] == (2, site.heads) for site, weights in found)
    assert sorted(site.key for site in sites) == [row[:2] for row in zoo.EXPECTED[name]]


@pytest.mark.parametrize("name", zoo.each(NAMES))
def test_captured_weights_equal_the_returned_ones_and_outputs_are_unchanged(name):
    assert checks.rows(zoo.case(name)) <= bound(1)
    plain = forward(tiny(name), zoo.inputs(tiny(name)))[0]
    with hr.capture_attention(tiny(name), lambda *_: None):
        torch.testing.assert_close(forward(tiny(name), zoo.inputs(tiny(name)))[0], plain, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", THREE)
def test_rows_sum_to_at_most_one_and_padding_and_later_tokens_get_zero(name):
    assert checks.sums(zoo.case(name)) <= 1e-5
    given = zoo.inputs(tiny(name))
    for site, weights in seen(name):
        queries, keys = (present(given, site.kind, side) for side in ("queries", "keys"))
        rows = weights.transpose(1, 2)  # [batch, query, heads, key]
        assert (rows >= 0).all()
        if site.kind == "dec-self":
            assert weights.triu(1).abs().sum() == 0
        if keys is not None:
            hidden = ~keys[:, None, None].expand_as(rows)
            there = torch.ones_like(rows[..., 0], dtype=torch.bool) if queries is None else queries[..., None]
            assert rows[hidden & there[..., None]].abs().sum() == 0


@pytest.mark.parametrize("name", THREE)
def test_padding_does_not_reach_the_weights(name):
    """The id of a padded token does not change any weight of the other tokens."""
    model, given = tiny(name), zoo.inputs(tiny(name))
    ids = given["input_ids"].where(given["attention_mask"].bool(), zoo.FIRST_WORD + 5)
    other = dict(looked(model, given | {"input_ids": ids}))
    for site, weights in seen(name):
        if site.kind != "cross" and (queries := present(given, site.kind, "queries")) is not None:
            rows = queries[:, None, :, None].expand_as(weights)
            torch.testing.assert_close(other[site][rows], weights[rows], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", OTHERS)
def test_a_block_sees_every_forward_also_after_an_exception_and_leaves_no_trace(name):
    model, given, found = zoo.tiny(name).train(), zoo.inputs(tiny(name)), []
    before, other = _traces(model), zoo.tiny(name, seed=1)
    plain = forward(other, given)[0]

    def fail(*_):
        raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"), hr.capture_attention(model, fail):
        forward(model, given)
    assert _traces(model) == before
    assert not attention_hooks._open_blocks
    with hr.capture_attention(model, lambda site, _: found.append(site.key)):
        assert _traces(model) != before
        assert torch.equal(forward(other, given)[0], plain)
        forward(model, given)
        forward(model, given)
    assert found == 2 * [site.key for site, _ in seen(name)]
    assert _traces(model) == before


@pytest.mark.parametrize("name", [*OTHERS, "t5", "llama-grouped"])
def test_weights_of_one_layer_at_most_are_in_memory(name):
    alive = []

    def look(_, weights):
        assert not any(one() is not None for one in alive)
        alive.append(weakref.ref(weights))

    with hr.capture_attention(tiny(name), look):
        made = forward(tiny(name), zoo.inputs(tiny(name)))
    assert len(alive) == len(zoo.EXPECTED[name])
    assert not any(one() is not None for one in alive)
    assert not any("attentions" in field for field in made)


@pytest.mark.parametrize("name", OTHERS)
def test_blocks_nest(name):
    model, given = tiny(name), zoo.inputs(tiny(name))
    outer, inner = [], []
    with hr.capture_attention(model, lambda *both: outer.append(both)):
        with hr.capture_attention(model, lambda *both: inner.append(both)):
            forward(model, given)
        forward(model, given)
    sites = [site for site, _ in seen(name)]
    assert [site for site, _ in inner] == sites
    assert [site for site, _ in outer] == 2 * sites
    assert all(torch.equal(one, other) for (_, one), (_, other) in zip(inner, outer, strict=False))


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("capture_first", [True, False])
def test_masking_and_capture_in_one_block(name, capture_first):
    model, given = tiny(name), zoo.inputs(tiny(name))
    shut = torch.zeros(len(heads.head_index(model)))
    found = []
    blocks = [lambda: hr.capture_attention(model, lambda *both: found.append(both)), lambda: hr.mask_heads(model, shut)]
    outside, inside = blocks if capture_first else blocks[::-1]
    with hr.mask_heads(model, shut):
        gated = forward(model, given)[0]
    with outside(), inside():
        torch.testing.assert_close(forward(model, given)[0], gated, atol=1e-5, rtol=1e-4)
    for (site, weights), (same, plain) in zip(found, seen(name), strict=True):
        assert site is same
        assert torch.allclose(weights, plain, atol=1e-6) == (site.layer == 0 and site.kind != "cross"), site.name


def test_output_attentions_work_outside_the_block():
    model, given = zoo.tiny("bert"), zoo.inputs(tiny("bert"))
    model.set_attn_implementation("eager")
    looked(model, given)
    made = forward(model, given, output_attentions=True)
    assert all(torch.equal(one, weights) for one, (_, weights) in zip(made.attentions, seen("bert"), strict=True))


WHOLE = {"t5", "bloom"}
LONG = 300  # tokens


def in_parts(model, given, cells):
    """(site, first, weights) of every part of one forward."""
    found = []
    with HeadModel(model).capture(lambda *seen: found.append(seen), cells=cells):
        forward(model, given)
    return found


@pytest.mark.parametrize("cells", [1, 60, 10**6])
@pytest.mark.parametrize("name", [*THREE, *sorted(WHOLE)])
def test_parts_concatenate_to_the_attention(name, cells):
    assert divisible(tiny(name)) == (name not in WHOLE)
    given = zoo.inputs(tiny(name))
    parts, whole = in_parts(tiny(name), given, cells), dict(seen(name))
    assert list(dict.fromkeys(site for site, *_ in parts)) == list(whole)
    for site, weights in whole.items():
        mine = [(first, part) for one, part, first, _ in parts if one == site]
        assert [first for first, _ in mine] == [0, *torch.tensor([p.shape[2] for _, p in mine]).cumsum(0).tolist()[:-1]]
        torch.testing.assert_close(torch.cat([part for _, part in mine], 2), weights, rtol=0, atol=bound(1))
        if name not in WHOLE:
            assert all(part.numel() <= cells or part.shape[2] == 1 for _, part in mine)


def test_keys_that_no_query_of_a_part_sees_are_not_read(monkeypatch):
    model, eager, read = tiny("llama-grouped"), attention_hooks.eager, []
    assert divisible(model)
    monkeypatch.setattr(heads, "_same_in_parts", None)  # the answer is kept with the sites
    assert divisible(model)

    def noting(module):
        function = eager(module)

        def attend(*args, **options):
            read.append((args[1].shape[2], args[2].shape[2]))
            return function(*args, **options)

        return attend

    monkeypatch.setattr(attention_hooks, "eager", noting)
    ids = torch.arange(7)[None] + 4
    in_parts(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, 2 * 4 * 7)  # heads, queries, keys
    layers = len(hr.attention_sites(model))
    assert read == [(2, 2), (2, 4), (2, 6), (1, 7)] * layers


class Largest(TorchDispatchMode):
    """Number of elements of the largest tensor that is created in the block."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        tensors = [
            each for each in (made if isinstance(made, tuple | list) else [made]) if isinstance(each, torch.Tensor)
        ]
        self.numbers = max([self.numbers, *(each.untyped_storage().nbytes() // each.itemsize for each in tensors)])
        return made


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-grouped", "bert"])
def test_memory_in_parts_is_not_quadratic(name):
    model = zoo.tiny(name, max_position_embeddings=LONG)
    ids = torch.arange(LONG)[None] % 40 + 4
    with Largest() as most, HeadModel(model).capture(lambda *_: None, cells=4000):
        forward(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    assert most.numbers <= LONG * zoo.VOCABULARY < LONG**2
    with Largest() as most, hr.capture_attention(model, lambda *_: None):
        forward(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    assert most.numbers >= LONG**2


def test_heads_in_writing_are_understood_wherever_a_head_is_asked_for():
    model, tokenizer, corpus = planted.model(), planted.tokenizer(), planted.corpus()[:4]
    heads = [("enc-self", 0, 2), ("enc-self", 1, 3)]
    expected = hr.head_mask(model, heads)
    for written in (["L0H2", "enc-self:1:3"], "L0H2,L1H3", [heads[0], "L1H3"]):
        assert torch.equal(hr.head_mask(model, written), expected)
    matrix = hr.attention_matrix(model, tokenizer, corpus[0], "L0H2")
    pd.testing.assert_frame_equal(matrix, hr.attention_matrix(model, tokenizer, corpus[0], heads[0]))
    sets = [
        hr.ablate(model, tokenizer, corpus, sets={"both": both}, metric="agreement") for both in (heads, "L0H2,L1H3")
    ]
    pd.testing.assert_frame_equal(*map(frame.bare, sets))
    curves = [
        hr.ablation_curve(model, tokenizer, corpus, {"a": order}, steps=1, n_resamples=0)
        for order in (heads, "L0H2,L1H3")
    ]
    pd.testing.assert_frame_equal(*map(frame.bare, curves))
    smaller = hr.remove_heads(zoo.tiny("bert"), "L0H1")
    assert ("enc-self", 0, 1) not in hr.models.head_index(smaller)


# sites go by the modules, their order and their options


def layers(model):
    return next(part for part in model.modules() if isinstance(part, torch.nn.ModuleList) and len(part) > 1)


def swapped(model):
    both = layers(model)
    both[0], both[1] = both[1], both[0]


def another_list(model):
    both = layers(model)
    parent, name = next(
        (part, key) for part in model.modules() for key, child in part.named_children() if child is both
    )
    setattr(parent, name, torch.nn.ModuleList(reversed(both)))


def moved_twice(model):  # first, second, second, first: the modules in order of their first place stay as they were
    first, second = layers(model)
    layers(model)[1] = first
    layers(model).append(second)
    model.config.num_hidden_layers = 3


def exchanged_attention(model):
    first, second = hr.attention_sites(model)[:2]
    for site, other in ((first, second), (second, first)):
        place, _, name = site.name.rpartition(".")
        setattr(model.get_submodule(place), name, other.module)


def another_projection(model):
    site = hr.attention_sites(model)[0]
    place, _, name = site.out_name.rpartition(".")
    setattr(model.get_submodule(place), name, deepcopy(site.out))


REBUILT = {
    "fewer": lambda model: setattr(model.config, "num_hidden_layers", 1),  # Llama's forward goes through the first ones
    "copied": lambda model: layers(model).__setitem__(0, deepcopy(layers(model)[0])),
    "swapped": swapped,
    "another list": another_list,
    "twice": lambda model: layers(model).__setitem__(1, layers(model)[0]),
    "moved twice": moved_twice,
    "deleted": lambda model: layers(model).__delitem__(0),
    "exchanged attention": exchanged_attention,
    "another projection": another_projection,
    "skipped": lambda model: setattr(layers(model)[0], "forward", lambda hidden, *_, **__: hidden),
}


def measured(model, name):
    given = model, tokens_of(name), corpus(3)
    scores = hr.score(*given, ["confidence"], n_resamples=0)
    return scores.join(hr.ablate(*given, n_resamples=0)[["ablation[loss]"]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"),
    [("bert", "fewer"), *((("llama-grouped", "bert")[row % 2], change) for row, change in enumerate(REBUILT))],
)
def test_a_model_that_was_rebuilt_is_measured_as_a_copy_that_was_never_seen(name, change):
    model = deepcopy(zoo.tiny(name))
    before = measured(model, name)
    REBUILT[change](model)
    expected = measured(deepcopy(model), name)
    assert not np.isnan(expected).any(axis=None)
    found = measured(model, name)
    assert found.equals(expected)
    assert found.equals(before) == (change in ("copied", "another projection") or (change, name) == ("fewer", "bert"))
