"""Pairs of heads: composition by dense matrices, planted readers and induction heads."""

from __future__ import annotations

import copy
import re

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import zoo
from helpers.close import MANY, close
from reference.circuits import HEADS, SIZE, dense

import headroles as hr
from headroles.tables import frame


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped"])
def test_composition_is_that_of_dense_matrices(name):
    model = zoo.tiny(name)
    table = hr.composition(model)
    assert len(table) == HEADS**2
    size = np.linalg.norm
    for row in table.itertuples():
        (_, _, value), out = dense(name, model, row.layer, row.head)
        (query, key, read), written = dense(name, model, row.to_layer, row.to_head)
        ov, qk, to_ov = out @ value, query.T @ key, written @ read
        expected = [size(qk.T @ ov), size(qk @ ov), np.trace(qk @ ov), size(to_ov @ ov)]
        sizes = np.array([size(qk), size(qk), size(qk), size(to_ov)]) * size(ov)
        close([row.query, row.key, row.matching, row.value], expected / sizes, operations=MANY)


def test_a_reader_of_what_one_head_writes_composes_with_that_head_alone():
    model = copy.deepcopy(zoo.tiny("gpt2"))
    with torch.no_grad():
        for block in model.transformer.h:
            block.ln_1.weight.fill_(1.0)
        first, second = (block.attn for block in model.transformer.h)
        first.c_proj.weight.zero_()
        second.c_attn.weight[:, :SIZE] = 0  # the query of head 0
        for head in range(HEADS):  # each head writes two features of its own, of mean 0
            for i in range(2):
                place = 4 * head + 2 * i
                first.c_proj.weight[SIZE * head + i, place : place + 2] = torch.tensor([1.0, -1.0])
        for i in range(2):
            second.c_attn.weight[4 * 2 + 2 * i, i] = 1.0  # what head 2 writes
    pairs = hr.composition(model).query("to_head == 0").set_index("head")
    assert pairs.loc[2, "query"] > 0.3
    close(pairs.loc[[0, 1, 3], "query"], 0, size=1)
    assert (pairs[["key", "value"]] > 0.01).all(axis=None)


def test_a_rotated_query_composes_at_the_distance_as_its_circuit_does():
    model = zoo.tiny("llama-grouped")
    row = hr.composition(model, distance=3).query("head == 1 and to_head == 2").iloc[0]
    looked, made = hr.circuit_matrix(model, "L1H2", "QK", distance=3), hr.circuit_matrix(model, "L0H1", "OV")
    sizes = looked.norm() * made.norm()
    close([row["key"], row["matching"]], [(looked @ made.mT).norm() / sizes, (looked * made).sum() / sizes])
    still = hr.circuit_matrix(model, "L1H2", "QK")
    assert (looked - still).norm() > 0.01 * still.norm()


def previous_of(model, values):
    """A table of scores with the column `previous`."""
    index = frame.index({site.key: site.numbers for site in hr.attention_sites(model)})
    text = frame.provenance(hr.copying(model), "copying")
    return frame.table({"previous": values}, index, text)


def test_induction_strength_is_that_of_the_head_that_wrote_the_token_before():
    """Head 1 looks for what heads 2 and 3 write of a token; head 3 attends to the token before."""
    model = copy.deepcopy(zoo.tiny("gpt2"))
    first, second = (block.attn for block in model.transformer.h)
    with torch.no_grad():
        model.transformer.h[1].ln_1.weight.fill_(1.0)
        value = first.c_attn.weight[:, 2 * 32 + SIZE * 3 : 2 * 32 + SIZE * 4]
        first.c_attn.weight[:, 2 * 32 + SIZE * 2 : 2 * 32 + SIZE * 3] = value
        first.c_proj.weight[SIZE * 2 : SIZE * 3] = first.c_proj.weight[SIZE * 3 : SIZE * 4]
        model.transformer.h[0].ln_1.weight.fill_(1.0)
        second.c_attn.weight[:, SIZE : 2 * SIZE] = value
        second.c_attn.weight[:, 32 + SIZE : 32 + 2 * SIZE] = first.c_proj.weight[SIZE * 3 : SIZE * 4].T
    pairs = hr.composition(model)
    matching = pairs.set_index(["head", "to_head"])["matching"]
    assert matching[3, 1] > 0.9
    close(matching[2, 1], matching[3, 1])
    table = hr.induction_strength(pairs, previous_of(model, [0.1, 0.1, 0.2, 0.9] + [0.0] * 4))
    assert table.loc["dec-self", 0].isna().all(axis=None)
    found = table.loc["dec-self", 1]
    close(found["circuit[induction]"].iloc[1], 0.9 * matching[3, 1])
    assert tuple(found.iloc[1, 1:]) == (0, 3)
    assert found["circuit[induction]"].drop(1).max() < 0.3
    for head in range(HEADS):
        close(found["circuit[induction]"].iloc[head], (matching[:, head] * [0.1, 0.1, 0.2, 0.9]).max())


def test_induction_strength_needs_previous_of_the_same_model():
    pairs, scores = hr.composition(zoo.tiny("gpt2")), previous_of(zoo.tiny("gpt2", seed=1), [0.0] * 8)
    with pytest.raises(ValueError, match=re.escape("no column previous: got rarity; try hr.score(")):
        hr.induction_strength(pairs, pd.DataFrame({"rarity": [1.0]}))
    with pytest.raises(ValueError, match="tables of different models: got weights .* and .*; expected the same"):
        hr.induction_strength(pairs, scores)
