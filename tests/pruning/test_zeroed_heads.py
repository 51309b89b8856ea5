"""Heads that were removed, and are kept as zeroed because others need their keys, are heads of the model no more."""

from __future__ import annotations

import re
from contextlib import ExitStack
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import zoo
from helpers.letters import corpus, tokens_of
from helpers.silenced import silenced

import headroles as hr
from headroles.models.head_model import HeadModel
from headroles.patterns import Previous
from headroles.pruning import L0
from headroles.scores import Importance

GONE = [("dec-self", 0, 0), ("dec-self", 1, 0), ("dec-self", 1, 1), ("dec-self", 1, 2)]  # 0:0 shares keys with 0:1
LEFT = [("dec-self", 0, 1), ("dec-self", 0, 2), ("dec-self", 0, 3), ("dec-self", 1, 3)]
TOKENS = tokens_of("llama-grouped")


def pruned(gone=GONE):
    model = hr.remove_heads(zoo.tiny("llama-grouped"), gone)
    assert any(site.zeroed for site in hr.attention_sites(model))
    return model


@cache
def losses():
    """The mean loss of each token, by hooks of our own: of the model without the heads, and without another each."""

    def without(heads):
        model, sums = zoo.tiny("llama-grouped").eval(), []
        with torch.no_grad(), ExitStack() as stack:
            for _, layer, head in heads:
                place = slice(8 * head, 8 * head + 8)
                stack.enter_context(silenced(model.model.layers[layer].self_attn.o_proj, place))
            for sentence in corpus(8):
                ids = torch.tensor([TOKENS(sentence.text)["input_ids"]])
                logits = model(ids).logits[0, :-1]
                sums.append(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none"))
        return float(torch.cat(sums).mean())

    return [without([*GONE, head]) - without(GONE) for head in LEFT]


def test_the_effects_are_those_of_the_heads_that_are_left():
    table = hr.ablate(pruned(), TOKENS, corpus(8), n_resamples=0)
    assert list(table.index) == LEFT
    np.testing.assert_allclose(table["ablation[loss]"], losses(), atol=1e-5)
    tests = hr.ablate(pruned(), TOKENS, corpus(8), n_resamples=100)
    p = tests["ablation[loss].p"]
    assert tests["ablation[loss].holm"].min() == pytest.approx(min(1, 4 * p.min()))


UNITS = ("head", "layer", "all_but_one", "group", "kind")
TABLES = {
    **{unit: lambda given, unit=unit: hr.ablate(*given, unit=unit, n_resamples=0) for unit in UNITS},
    "score": lambda given: hr.score(*given, n_resamples=3),
    "gradients": lambda given: hr.score(*given, ["importance", "relevance"], n_resamples=3),
    "captum": lambda given: hr.attribute(*given, method="InputXGradient", n_resamples=0),
    "patching": lambda given: hr.attribute(*given, method="AtP", n_resamples=0),
    "shapley": lambda given: hr.shapley_values(*given, n_permutations=2, n_resamples=0),
}


@pytest.mark.parametrize("name", TABLES)
def test_no_table_has_a_row_of_them(name):
    table = TABLES[name]((pruned(), TOKENS, corpus(4)))
    assert list(table.index) == LEFT
    if name == "score":  # of each head alone: a table of all heads has the same values
        whole = TABLES[name]((hr.zero_heads(zoo.tiny("llama-grouped"), GONE), TOKENS, corpus(4)))
        shared = [column for column in table if "induction" not in column and "duplicate" not in column]
        np.testing.assert_allclose(table[shared], whole.loc[LEFT, shared], rtol=1e-4, atol=1e-5)


def test_a_score_of_heads_that_are_left_has_their_resamples():
    options = {"scores": ["confidence"], "n_resamples": 20}
    mine = hr.roles(hr.score(pruned(), TOKENS, corpus(8), **options), [hr.Role("sharp", "confidence", 0.4)])
    whole = hr.zero_heads(zoo.tiny("llama-grouped"), GONE)
    theirs = hr.roles(hr.score(whole, TOKENS, corpus(8), **options), [hr.Role("sharp", "confidence", 0.4)])
    pd.testing.assert_frame_equal(mine, theirs.loc[LEFT], rtol=1e-4)


@pytest.mark.parametrize("strategy", ["random", "importance", "top"])
def test_pruning_counts_the_heads_that_are_left(strategy):
    model = pruned()
    table = hr.prune(model, TOKENS, corpus(8), strategy, keep=2)
    assert list(table.index) == LEFT
    survivors = [head for head in LEFT if table.iloc[:, 0][head] == 1]
    assert len(survivors) == 2
    assert list(hr.models.head_index(model)) == survivors


def test_shares_gates_and_groups_of_keys_are_of_the_heads_that_are_left():
    assert hr.prune(pruned(), TOKENS, corpus(8), "random", keep=0.75, remove=False).iloc[:, 0].sum() == 3
    handle = HeadModel(pruned())
    gates = L0().gates(handle.model, handle.heads, 2)
    assert gates.learnt == LEFT
    assert gates.now().shape == (5,)  # the mask of a forward has one of each head in the weights
    assert list(gates.table(handle.index, "survival[l0]", "").index) == LEFT
    assert handle.groups == {LEFT[0]: {LEFT[0]}, LEFT[3]: {LEFT[3]}} | dict.fromkeys(LEFT[1:3], {*LEFT[1:3]})


def test_the_card_lists_all_heads_that_were_removed(tmp_path):
    hr.save(pruned(), TOKENS, tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "without 4 of its 8 attention heads" in card
    assert "- dec-self layer 0: head 0\n- dec-self layer 1: heads 0, 1, 2\n" in card


def without_first_layer(name="gpt2"):
    return hr.remove_heads(zoo.tiny(name), [f"L0H{head}" for head in range(4)])


@pytest.mark.slow
@pytest.mark.parametrize("make", [pruned, without_first_layer, lambda: without_first_layer("bert")])
def test_every_check_holds_of_a_model_with_such_heads(make):
    checks = hr.check_model(make())
    assert len(checks) > 10
    assert set(checks["holds"][checks["why"] != "BertForMaskedLM does not generate"]) == {"yes"}


def test_masks_have_a_place_for_them_and_a_name_has_none():
    message = (
        "gates must have shape [5] or [batch, 5] for LlamaForCausalLM, which has dec-self 2 layers of 1 to 3 heads"
    )
    with pytest.raises(ValueError, match=re.escape(message)), hr.mask_heads(pruned(), torch.ones(4)):
        pass
    with pytest.raises(ValueError, match=re.escape("no head dec-self L0H0 in LlamaForCausalLM")):
        hr.ablate(pruned(), TOKENS, corpus(4), sets={"gone": [GONE[0]]})


@pytest.mark.parametrize("replacement", [Previous(), "uniform", lambda _, z: torch.ones_like(z), None])
def test_they_stay_removed_whatever_replaces_masked_heads(replacement):
    model, ids = pruned().eval(), torch.arange(10, 30).reshape(2, 10)
    (place,) = (number for number, head in enumerate(HeadModel(model).gated) if head == GONE[0])

    def logits(gates):
        with torch.no_grad(), hr.mask_heads(model, gates, replacement):
            return model(ids, use_cache=False).logits

    one, both = hr.head_mask(model, LEFT[1:2]), hr.head_mask(model, [GONE[0], LEFT[1]])
    assert (one[place], both[place]) == (1, 0)
    assert torch.equal(logits(one), logits(both))
    assert torch.equal(logits(hr.head_mask(model, GONE[:1])), logits(torch.ones(5)))


def test_importance_of_groups_is_of_the_heads_that_are_left():
    table = hr.score(pruned(), TOKENS, corpus(4), [Importance(unit="group")], n_resamples=0)
    assert list(table.index) == LEFT
    values = table.iloc[:, 0]
    assert values[LEFT[1]] == pytest.approx(values[LEFT[2]])  # which share a key-value head
    assert values[LEFT[0]] != pytest.approx(values[LEFT[1]])
