"""Which rows belong to which heads is a matter of paths: no weight, no dead unit, no saturated attention changes it."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch
from helpers import zoo
from helpers.gates import outputs
from helpers.removals import apart, closing, rows, snapshot, unchanged

import headroles as hr
from headroles.models.dummy_inputs import examples
from headroles.models.head_model import HeadModel
from headroles.pruning.removal import layouts
from headroles.testing.tiny_models import tiny_model

FAMILIES = ["bert", "marian", "t5", "gpt2", "deberta-v2", "bloom", "qwen3", "phi3"]


def rows_of(model):
    """The rows of each map in each attention module, by the order of the modules."""
    return list(layouts(HeadModel(model)).values())


@cache
def usual(name):
    return rows_of(zoo.tiny(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_weights_drawn_with_any_seed_have_the_same_rows(name):
    assert all(runs for maps in usual(name) for runs in maps.values())
    assert all(rows_of(zoo.tiny(name, seed=seed)) == usual(name) for seed in (1, 2))


def dead_heads(_, weight):
    """The first half of the rows that a map puts out is 0, whatever comes in."""
    weight[: len(weight) // 2] = 0


def dead_inputs(_, weight):
    if weight.ndim > 1:
        weight[:, ::2] = 0


def dead(_, weight):
    weight.zero_()


def no_biases(name, weight):
    if name.endswith("bias"):
        weight.zero_()


def saturated(_, weight):
    """Attention of exactly 0 and 1: no gradient reaches queries and keys."""
    weight *= 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_rows_belong_to_the_same_heads_whatever_their_weights(name):
    for spoil in (dead_heads, dead_inputs, dead, no_biases, saturated):
        model = zoo.tiny(name)
        with torch.no_grad():
            for site in hr.attention_sites(model):
                for parameter, weight in site.module.named_parameters():
                    spoil(parameter, weight)
        assert rows_of(model) == usual(name), spoil.__name__


@pytest.mark.parametrize("name", ["bert", "t5", "gpt2", "qwen3"])
def test_heads_of_dead_units_are_removed(name):
    model, like = zoo.tiny(name), zoo.tiny(name)
    with torch.no_grad():
        for site in hr.attention_sites(model) + hr.attention_sites(like):
            for parameter, weight in site.module.named_parameters():
                dead_heads(parameter, weight)
    gone, given = [(*site.key, 1) for site in hr.attention_sites(model)], zoo.inputs(model)
    hr.remove_heads(model, gone)
    assert apart(outputs(model, given), closing(like, gone, given)) <= 1e-5


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # its position embeddings
def test_a_model_with_saturated_attention_is_pruned():
    """Wide weights: which of its attention is exactly one-hot is a matter of the processor."""
    model, like = tiny_model("mobilebert"), tiny_model("mobilebert")
    for each in (model, like):
        for site in hr.attention_sites(each):
            site.module.query.weight.data *= 100
    gone, given = [("enc-self", 0, 1), ("enc-self", 1, 2)], examples(model)
    hr.remove_heads(model, gone)
    assert [site.numbers for site in hr.attention_sites(model)] == [(0, 2, 3), (0, 1, 3)]
    assert apart(outputs(model, given), closing(like, gone, given)) <= 1e-5


def test_a_map_of_one_number_for_each_head_is_pruned_row_by_row():
    model, like = tiny_model("laguna"), tiny_model("laguna")  # heads of 16 numbers, each times a gate of its own
    site = hr.attention_sites(model)[0]
    gate = site.module.g_proj.weight.detach().clone()
    assert len(gate) == site.heads
    gone, given = [(*site.key, 1)], examples(model)
    hr.remove_heads(model, gone, groups="expand")
    assert torch.equal(site.module.g_proj.weight, gate[[head for head in range(site.heads) if head != 1]])
    assert apart(outputs(model, given), closing(like, gone, given)) <= 1e-5


def test_a_model_that_draws_at_random_is_pruned():
    model = tiny_model("vit_mae")  # which patches it hides
    hr.remove_heads(model, [("enc-self", 0, 1)])
    assert hr.attention_sites(model)[0].numbers == (0, 2, 3)


def test_rows_are_found_while_anomalies_are_looked_for():
    with torch.autograd.set_detect_anomaly(True):
        found = rows_of(zoo.tiny("bert"))
        assert torch.is_anomaly_enabled()
    assert found == rows_of(zoo.tiny("bert"))


ONE_EACH = [{0}, {1}, {2}, {3}]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt2", {"c_attn": rows(*ONE_EACH, *ONE_EACH, *ONE_EACH)}),  # queries, keys, values
        ("gpt-neox", {"query_key_value": rows(*ONE_EACH, size=24)}),  # those of a head, then those of the next
        ("bloom", {"query_key_value": rows(*ONE_EACH, size=24)}),
        ("bert", {"query": rows(*ONE_EACH), "key": rows(*ONE_EACH), "value": rows(*ONE_EACH)}),
        ("llama-grouped", {"q_proj": rows(*ONE_EACH), "k_proj": rows({0, 1}, {2, 3}), "v_proj": rows({0, 1}, {2, 3})}),
        ("phi3", {"qkv_proj": rows(*ONE_EACH, {0, 1}, {2, 3}, {0, 1}, {2, 3})}),
        ("falcon-grouped", {"query_key_value": [  # two queries with their key and value, twice
            (frozenset({0}), 0, 8), (frozenset({1}), 8, 16), (frozenset({0, 1}), 16, 32),
            (frozenset({2}), 32, 40), (frozenset({3}), 40, 48), (frozenset({2, 3}), 48, 64)]}),
        ("falcon", {"query_key_value": [*rows(*ONE_EACH), (frozenset({0, 1, 2, 3}), 32, 48)]}),
    ],
)  # fmt: skip
def test_rows_belong_to_heads(name, expected):
    model = zoo.tiny(name)
    before = snapshot(model)
    found = layouts(HeadModel(model))
    assert list(found) == [one.module for one in hr.attention_sites(model)]
    assert all(each == expected for each in found.values())
    assert unchanged(model, before)


def test_a_norm_over_several_heads_has_no_rows_of_one():
    message = (
        "heads cannot be removed from model.layers.0.self_attn: row 0 of its q_proj belongs to 4 heads (a norm over "
        "several heads, for one)"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        layouts(HeadModel(zoo.tiny("olmo2")))
