"""Pruning in rounds: layers without a head are cut, compared, saved, loaded and quantised as any other."""

from __future__ import annotations

import copy
import warnings
from random import Random

import pytest
import torch
from helpers import zoo
from helpers.gates import outputs
from helpers.removals import apart, closing, first_layers, reloaded

import headroles as hr
from headroles.models import heads

NAMES = ["marian", "t5", "bert"]
SILENT = ["marian", "t5", "gpt2", "llama-grouped"]  # their decoders keep a silenced head in every layer


def open_heads(model):
    silenced = {(*site.key, number) for site in hr.attention_sites(model) for number in site.silenced}
    return [head for head in heads.head_index(model).tolist() if head not in silenced]


def rounds(model, like, folder, left_over=2):
    """Each time some of the heads that are left go, first whole layers, at last all; saved and loaded in between."""
    generator, gone = Random(0), []
    while left := open_heads(model):
        first = [head for head in left if head[1] == 0]
        now = first if not gone else generator.sample(left, len(left) - len(left) // left_over)
        gone += now
        model = reloaded(hr.remove_heads(model, now), folder)
        yield model, closing(like, gone, given(like))


def given(model):
    if model.config.vocab_size == zoo.VOCABULARY:
        return zoo.inputs(model)
    ids = torch.arange(20, 34).reshape(2, 7)
    return {"input_ids": ids, "decoder_input_ids": ids[:, :5]}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_pruned_in_rounds_until_no_head_is_left(name, tmp_path):
    like, counts = zoo.tiny(name), []
    for model, expected in rounds(zoo.tiny(name), like, tmp_path):
        assert apart(outputs(model, given(like)), expected) <= 1e-5
        moved = hr.weight_change(like, model)
        assert moved.index.equals(heads.head_index(model))
        assert (moved.filter(like="distance[")[[head in open_heads(model) for head in moved.index]] == 0).all(axis=None)
        counts.append(len(open_heads(model)))
    assert counts[-1] == 0
    assert len(counts) >= 4


@pytest.mark.slow
def test_a_real_model_is_pruned_in_rounds(shared, tmp_path):
    like, _ = hr.load(shared / "models/multi30k-en-de")
    model, _ = hr.load(shared / "models/multi30k-en-de")
    for cut, expected in rounds(model, like, tmp_path, left_over=8):
        assert apart(outputs(cut, given(like)), expected) <= 1e-5
    assert open_heads(cut) == []


def quantised(model, which):
    with warnings.catch_warnings():  # it goes to torchao, in torch's own words; it is what people have
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), which, dtype=torch.qint8)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_model_with_a_layer_without_heads_is_quantised_right(name, tmp_path):
    model = hr.remove_heads(zoo.tiny(name), first_layers(zoo.tiny(name)))
    linear = {key: one for key, one in model.named_modules() if isinstance(one, torch.nn.Linear)}
    filled = {key for key, one in linear.items() if one.weight.numel()}
    assert 0 < len(filled) < len(linear)
    for one in (model, reloaded(model, tmp_path)):
        small = quantised(one, {torch.nn.Linear})
        assert torch.equal(outputs(small, given(one)), outputs(quantised(one, filled), given(one)))
        assert 0 < apart(outputs(small, given(one)), outputs(model, given(one))) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", SILENT)
def test_a_model_with_silenced_heads_is_quantised_right(name):
    model = hr.remove_heads(zoo.tiny(name), first_layers(zoo.tiny(name)))
    site = next(site for site in hr.attention_sites(model) if site.silenced)
    small, seen = quantised(model, {torch.nn.Linear}), []
    out = small.get_submodule(site.out_name)
    out.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    outputs(small, zoo.inputs(model))
    assert site.heads == len(site.silenced) == 1
    assert seen[0].shape[-1] == site.size
    assert not seen[0].any()


def test_what_is_undone_is_quantised_as_before(monkeypatch):
    from helpers.removals import refuse

    model = zoo.tiny("bert")
    kinds = [type(one) for one in model.modules()]
    refuse(monkeypatch, ValueError)
    with pytest.raises(ValueError, match="on purpose"):
        hr.remove_heads(model, first_layers(model))
    assert [type(one) for one in model.modules()] == kinds
