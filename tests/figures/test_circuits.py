"""The strength of induction circuits by figures/questions/circuits."""

from __future__ import annotations

import copy

import torch
from helpers import zoo
from helpers.close import close
from helpers.scripts import script
from reference.circuits import HEADS, SIZE

import headroles as hr
from headroles.tables import frame


def previous_of(model, values):
    """A table of scores with the column `previous`."""
    index = frame.index({site.key: site.numbers for site in hr.attention_sites(model)})
    text = frame.provenance(hr.scores.copying(model), "copying")
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
    pairs = hr.scores.composition(model)
    matching = pairs.set_index(["head", "to_head"])["matching"]
    assert matching[3, 1] > 0.9
    close(matching[2, 1], matching[3, 1])
    table = script("questions/circuits").induction_strength(pairs, previous_of(model, [0.1, 0.1, 0.2, 0.9] + [0.0] * 4))
    assert table.loc["dec-self", 0].isna().all(axis=None)
    found = table.loc["dec-self", 1]
    close(found["circuit[induction]"].iloc[1], 0.9 * matching[3, 1])
    assert tuple(found.iloc[1, 1:]) == (0, 3)
    assert found["circuit[induction]"].drop(1).max() < 0.3
    for head in range(HEADS):
        close(found["circuit[induction]"].iloc[head], (matching[:, head] * [0.1, 0.1, 0.2, 0.9]).max())
