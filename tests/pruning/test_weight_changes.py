"""Weights that moved are those of the same heads, and uniform movement is known by its p."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.prunings import learnt

import headroles as hr
from headroles.models import heads as families
from headroles.pruning.weight_changes import uniformity, weight_change
from headroles.tables import frame
from headroles.tables.io import load_table, save_table


def test_what_did_not_move_did_not_move():
    table = weight_change(learnt(), deepcopy(learnt()))
    assert (table.filter(like="distance[") == 0).all(axis=None)
    assert np.allclose(table.filter(like="cosine["), 1)
    assert {name for name in table if name.startswith("moved")} == {f"moved[{part}]" for part in (*"qkvo", "all")}
    before = zoo.tiny("bert")  # what is left is compared with the heads of the same numbers
    table = weight_change(before, hr.remove_heads(deepcopy(before), [("enc-self", 0, 0), ("enc-self", 1, 2)]))
    assert len(table) == 6
    assert (table.filter(like="distance[") == 0).all(axis=None)


@pytest.mark.parametrize(
    ("name", "where", "rows", "part"),
    [
        ("bert", "bert.encoder.layer.1.attention.self.query", slice(16, 24), "q"),
        ("marian", "model.encoder.layers.1.self_attn.v_proj", slice(16, 24), "v"),
        ("gpt-neox", "gpt_neox.layers.1.attention.query_key_value", slice(2 * 24 + 8, 2 * 24 + 16), "k"),
        ("codegen", "transformer.h.1.attn.qkv_proj", slice(2 * 48 + 32, 3 * 48), "k"),
    ],
)
def test_movement_is_that_of_the_head_and_part(name, where, rows, part):
    before, after = (zoo.tiny(name) if name in zoo.ZOO else hr.tiny_model(name) for _ in range(2))
    kind = families.attention_sites(before)[0].kind
    weight = after.get_submodule(where).weight
    with torch.no_grad():
        weight[rows] *= 1.5
    table = weight_change(before, after)
    moved = table.filter(regex=r"^moved\[[^a]\]$")
    assert moved.loc[(kind, 1, 2), f"moved[{part}]"] == pytest.approx(0.5)
    assert moved.sum().sum() == pytest.approx(0.5)
    assert table.loc[(kind, 1, 2), f"cosine[{part}]"] == pytest.approx(1)


def test_heads_that_share_keys_move_together():
    before, after = zoo.tiny("llama-grouped"), zoo.tiny("llama-grouped")
    with torch.no_grad():
        after.model.layers[0].self_attn.k_proj.weight[:8] *= 2
    moved = weight_change(before, after)["moved[k]"]
    assert moved.loc["dec-self", 0].tolist() == pytest.approx([1, 1, 0, 0])


def moved(values):
    index = frame.index({("enc-self", layer): len(values) // 2 for layer in (0, 1)})
    return frame.table({"moved[all]": values}, index, "made up")


def test_uniform_movement_differs_from_heads_that_always_move_most():
    rng = np.random.default_rng(0)
    base = np.linspace(1, 2, 20)
    same = uniformity([moved(base + rng.normal(0, 0.001, 20)) for _ in range(4)])
    chance = uniformity([moved(1 + rng.normal(0, 0.1, 20)) for _ in range(4)])
    assert same.loc["heads", "w"] > 0.99
    assert same.loc["heads", "p"] < 1e-6
    assert same.loc["heads", "cv"] == pytest.approx(base.std() / base.mean(), abs=1e-3)
    assert chance.loc["heads", "p"] > 0.01
    assert uniformity([moved(np.zeros(20))] * 3)[["w", "p"]].isna().all(axis=None)  # nothing moved: without a warning


def test_fine_tunings_of_the_whole_model_are_no_seeds_of_the_pruned_ones(tmp_path):
    before = zoo.tiny("bert")
    save_table(weight_change(before, zoo.tiny("bert")), tmp_path / "weight-change-whole-0.parquet")
    for seed in range(3):
        after = hr.remove_heads(zoo.tiny("bert", seed=1 + seed), "enc-self:0:1")
        weight_change(before, after, seed=seed, study=tmp_path)
    tables = [load_table(tmp_path / f"weight-change-{seed}.parquet") for seed in range(3)]
    assert [len(table) for table in tables] == [7, 7, 7]
    assert all((table["moved[all]"] > 0).all() for table in tables)
    found = load_table(tmp_path / "uniformity.parquet")
    assert found.loc["moved[all] of heads"].equals(uniformity(tables).loc["heads"].rename("moved[all] of heads"))


@pytest.mark.parametrize(
    ("kind", "part", "name"),
    [("doge", "dt_proj", "dt_proj"), ("doge", "q", "q_proj"), ("deepseek_v3", "q", "q_b_proj")],
)
def test_rows_of_a_head_are_as_many_as_its_map_has(kind, part, name):
    """Of one row per head, and of queries with other sizes than values."""
    before = hr.tiny_model(kind)
    after = deepcopy(before)
    torch.manual_seed(1)
    with torch.no_grad():
        for value in after.parameters():
            value.add_(0.05 * torch.randn_like(value))
    place = hr.attention_sites(before)[0]
    change = after.get_parameter(f"{place.name}.{name}.weight") - before.get_parameter(f"{place.name}.{name}.weight")
    expected = change.detach().double().unflatten(0, (place.heads, -1)).flatten(1).norm(dim=1)
    table = weight_change(before, after)
    np.testing.assert_allclose(table.loc[(place.kind, place.layer), f"distance[{part}]"], expected)


def test_heads_without_a_part_have_no_number_for_it():
    before = zoo.tiny("bert2gpt2")
    after = deepcopy(before)
    with torch.no_grad():
        for value in after.parameters():
            value.add_(0.1)
    table = weight_change(before, after)
    lacks = table["distance[k]"].isna()
    assert lacks.any()
    assert not lacks.all()
    assert table.loc[lacks, "moved[k]"].isna().all()
    assert table["distance[all]"].gt(0).all()
