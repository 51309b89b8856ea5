"""Scores by weights alone, against plain products of weights."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import zoo
from helpers.close import MANY, close
from helpers.worded import ordered
from reference.circuits import HEADS, SIZE, WIDTH, dense, double
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import headroles as hr
from headroles.data.probes import CLASSES
from headroles.scores import weights as by_weights
from headroles.scores.weights import is_norm
from headroles.tables import frame


def linear(name):
    """A tiny model with weights of norms that are no ones, and without biases, which are no part of circuits."""
    model = copy.deepcopy(zoo.tiny(name)) if name in zoo.DECODERS else hr.tiny_model(name)
    with torch.no_grad():
        for number, (place, weight) in enumerate(model.named_parameters()):
            if "norm" in place or "ln_" in place:
                weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
            if place.endswith("bias"):
                weight.zero_()
    return model


OTHERS = ("gptj", "gemma", "cohere", "opt")


@pytest.mark.parametrize(
    "name", ["gpt2", "llama-grouped", *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)]
)
def test_circuits_give_the_attention_of_the_model_at_every_distance_and_what_its_heads_write(name):
    """The model's own weights and outputs of attention, by states divided by the scale of the norm alone."""
    model, written = linear(name), {}
    model.set_attn_implementation("eager")
    ids = torch.tensor([[5, 9, 2, 7]])
    places = [site.module for site in hr.attention_sites(model)]
    hooks = [module.register_forward_hook(lambda part, _, out: written.update({part: out[0]})) for module in places]
    with torch.no_grad():
        outputs = model(ids, output_attentions=True, output_hidden_states=True)
    for hook in hooks:
        hook.remove()
    centred = isinstance(model.get_submodule(norm_of(model)), nn.LayerNorm) or "cohere" in name
    for layer, module in list(enumerate(places))[1:]:  # the second, before which the first has written
        states = outputs.hidden_states[layer][0].double()
        scale = (states - states.mean(-1, keepdim=True) * centred).square().mean(-1, keepdim=True)
        states = states / (scale + epsilon(model)).sqrt()
        total = torch.zeros_like(states)
        for head, weights in enumerate(outputs.attentions[layer][0].double()):
            logits = torch.full_like(weights, -torch.inf)
            for distance in range(4):
                matrix = hr.scores.circuit_matrix(model, f"L{layer}H{head}", "QK", distance=distance)
                for key in range(4 - distance):
                    logits[key + distance, key] = states[key + distance] @ matrix @ states[key]
            size = model.config.head_dim if hasattr(model.config, "head_dim") else 8
            close((logits / size**0.5).softmax(-1), weights, operations=MANY)
            total += weights @ states @ hr.scores.circuit_matrix(model, f"L{layer}H{head}", "OV")
        close(total, written[module][0], operations=MANY)


def norm_of(model):
    """The name of the first norm before attention."""
    names = ("ln_1", "input_layernorm", "attn_layer_norm")
    return next(name for name, part in model.named_modules() if name.endswith(names))


def epsilon(model):
    """What norms add to the mean square before its root."""
    names = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps")
    return next((getattr(model.config, name) for name in names if hasattr(model.config, name)), 1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped"])
def test_circuits_and_composition_are_those_of_transformerlens(name, tmp_path):
    """With norms folded into the weights, and what is written left as it is."""
    bridge = pytest.importorskip("transformer_lens.model_bridge", reason="a peer: needs the extra [bench]")
    model = linear(name)
    model.save_pretrained(tmp_path)
    words = ordered(CLASSES["days"])
    words.save_pretrained(tmp_path)
    theirs = bridge.TransformerBridge.boot_transformers(
        str(tmp_path), hf_model=copy.deepcopy(model), tokenizer=words, device="cpu"
    )
    theirs.enable_compatibility_mode(center_writing_weights=False, center_unembed=False, fold_value_biases=False)
    for layer in range(2):
        for head in range(HEADS):
            for circuit in ("QK", "OV"):
                matrix = getattr(theirs, circuit)[layer, head].AB.detach()
                close(hr.scores.circuit_matrix(model, f"L{layer}H{head}", circuit), matrix)
    for row in hr.scores.composition(model).itertuples():
        for mode, score in zip("QKV", (row.query, row.key, row.value), strict=True):
            expected = theirs.all_composition_scores(mode).scores[row.layer, row.head, row.to_layer, row.to_head]
            close(score, expected.item(), operations=MANY)


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped"])
def test_copying_is_that_of_the_whole_circuit(name):
    model = zoo.tiny(name)
    words, logits = double(model.get_input_embeddings().weight), double(model.get_output_embeddings().weight)
    last = model.transformer.ln_f if name == "gpt2" else model.model.norm
    final = np.diag(double(last.weight)) @ ((np.eye(WIDTH) - 1 / WIDTH) if name == "gpt2" else np.eye(WIDTH))
    expected = []
    for layer in range(2):
        for head in range(HEADS):
            (_, _, value), out = dense(name, model, layer, head)
            values = np.linalg.eigvals(logits @ final @ out @ value @ words.T)  # vocabulary by vocabulary
            largest = values[np.argsort(-np.abs(values))[:SIZE]]  # the others are 0 but for rounding
            expected.append(largest.sum().real / np.abs(largest).sum())
    close(hr.scores.copying(model)["copying"], expected, size=1, operations=MANY)


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped"])
def test_succession_is_that_of_slow_loops_over_words(name):
    model, classes = copy.deepcopy(zoo.tiny(name)), ("days", "months", "numbers")
    members = [CLASSES[group] for group in classes]
    tokenizer = ordered([word for group in members for word in group])
    words, logits = model.get_input_embeddings().weight.detach(), double(model.get_output_embeddings().weight)
    last = model.transformer.ln_f if name == "gpt2" else model.model.norm
    final = np.diag(double(last.weight)) @ ((np.eye(WIDTH) - 1 / WIDTH) if name == "gpt2" else np.eye(WIDTH))
    if name == "gpt2":
        block = model.transformer.h[0]
        added = block.mlp(block.ln_2(words + model.transformer.wpe.weight[0]))
    else:
        block = model.model.layers[0]
        added = block.mlp(block.post_attention_layernorm(words))
    table, expected = hr.scores.succession(model, tokenizer), []
    for layer in range(2):
        for head in range(HEADS):
            (_, _, value), out = dense(name, model, layer, head)
            hits = 0
            for group in members:
                ids = tokenizer.convert_tokens_to_ids(group)
                for place, token in enumerate(ids[:-1]):
                    moved = logits @ final @ out @ value @ double(added[token])
                    hits += max(ids, key=lambda other: moved[other]) == ids[place + 1]  # noqa: B023
            expected.append(hits / (6 + 11 + 11))
    close(table["succession"], expected)
    assert np.ptp(expected) > 0
    assert (table["succession.words"] == 6 + 11 + 11).all()
    assert (table["succession.low"] < table["succession"]).any()
    assert (table["succession.high"] > table["succession"]).all()


# --- planted circuits ------------------------------------------------------------------------------------------------


def test_heads_that_write_their_token_its_opposite_or_nothing():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=96, n_layer=1, n_head=3, n_positions=8, n_inner=8)).eval()
    with torch.no_grad():
        attention = model.transformer.h[0].attn
        attention.c_attn.weight.zero_()
        attention.c_proj.weight.zero_()
        model.transformer.wte.weight.zero_()
        for token in range(8):
            feature = torch.tensor([1.0, -1.0])  # of mean 0
            model.transformer.wte.weight[token, 2 * token : 2 * token + 2] = feature
            for head, sign in ((0, 1.0), (1, -1.0)):
                attention.c_attn.weight[2 * token, 2 * 96 + 32 * head + token] = 1.0
                attention.c_proj.weight[32 * head + token, 2 * token : 2 * token + 2] = sign * feature
    copying = hr.scores.copying(model)["copying"]
    close(copying.iloc[:2], [1, -1], operations=MANY)
    assert np.isnan(copying.iloc[2])


def test_a_head_that_writes_the_next_day_is_a_successor_and_one_that_copies_or_writes_nothing_is_not():
    config = GPT2Config(vocab_size=9, n_embd=96, n_layer=1, n_head=3, n_positions=8, n_inner=9)
    model, tokenizer = GPT2LMHeadModel(config).eval(), ordered(CLASSES["days"])
    block, feature = model.transformer.h[0], torch.tensor([1.0, -1.0])  # of mean 0
    with torch.no_grad():
        for module in (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj, model.transformer.wpe):
            module.weight.zero_()
        model.transformer.wte.weight.zero_()
        block.attn.c_proj.bias.fill_(100.0)  # attention is no part of it
        for token in range(9):
            place = slice(2 * token, 2 * token + 2)
            model.transformer.wte.weight[token, place] = feature
            block.mlp.c_fc.weight[2 * token, token] = 1.0
            block.mlp.c_proj.weight[token, place] = feature
            for head, written in ((0, token + 1), (1, token)):
                block.attn.c_attn.weight[2 * token, 2 * 96 + 32 * head + token] = 1.0
                block.attn.c_proj.weight[32 * head + token, 2 * written : 2 * written + 2] = feature
    table = hr.scores.succession(model, tokenizer)
    assert table["succession"].tolist() == [1, 0, 0]
    assert table["succession.words"].tolist() == [6, 6, 6]
    assert hr.roles(table)["successor"].tolist() == [True, False, False]
    assert hr.roles(table, test=True)["successor.p"].iloc[0] < 0.05


# --- tables and refusals ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marian", "t5", "qwen3", "olmo2"])
def test_every_pair_of_one_stack_is_in_the_table(name):
    model = zoo.tiny(name)
    pairs, scores = hr.scores.composition(model), hr.scores.copying(model)["copying"]
    kinds = {"enc-self", "dec-self"} if model.config.is_encoder_decoder else {"dec-self"}
    assert {*pairs["kind"]} == kinds
    assert len(pairs) == HEADS**2 * len(kinds)
    assert (pairs["to_layer"] > pairs["layer"]).all()
    assert pairs[["query", "key", "value"]].stack().between(0, 1 + 1e-9).all()
    assert scores.loc["dec-self"].between(-1, 1).all()
    assert scores.drop("dec-self").isna().all()
    assert "|score:composition|" in frame.provenance(pairs, "value")


def test_circuits_are_kept_and_not_computed_again(tmp_path, monkeypatch):
    model = zoo.tiny("gpt2")
    measures = hr.scores.copying, hr.scores.composition
    tables = [measure(model, study=tmp_path) for measure in measures]
    monkeypatch.setattr(by_weights, "read_circuits", lambda *_, **__: pytest.fail("computed again"))
    for measure, table in zip(measures, tables, strict=True):
        pd.testing.assert_frame_equal(measure(model, study=tmp_path), table, check_exact=True)


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped"])
def test_composition_is_that_of_dense_matrices(name):
    model = zoo.tiny(name)
    table = hr.scores.composition(model)
    assert len(table) == HEADS**2
    size = np.linalg.norm
    for row in table.itertuples():
        (_, _, value), out = dense(name, model, row.layer, row.head)
        (query, key, read), written = dense(name, model, row.to_layer, row.to_head)
        ov, qk, to_ov = out @ value, query.T @ key, written @ read
        expected = [size(qk.T @ ov), size(qk @ ov), np.trace(qk @ ov), size(to_ov @ ov)]
        sizes = np.array([size(qk), size(qk), size(qk), size(to_ov)]) * size(ov)
        close([row.query, row.key, row.matching, row.value], expected / sizes, operations=MANY)


def test_a_rotated_query_composes_at_the_distance_as_its_circuit_does():
    model = zoo.tiny("llama-grouped")
    row = hr.scores.composition(model, distance=3).query("head == 1 and to_head == 2").iloc[0]
    looked = hr.scores.circuit_matrix(model, "L1H2", "QK", distance=3)
    made = hr.scores.circuit_matrix(model, "L0H1", "OV")
    sizes = looked.norm() * made.norm()
    close([row["key"], row["matching"]], [(looked @ made.mT).norm() / sizes, (looked * made).sum() / sizes])
    still = hr.scores.circuit_matrix(model, "L1H2", "QK")
    assert (looked - still).norm() > 0.01 * still.norm()


def test_norms_are_modules_of_vectors_alone():
    class Scaled(nn.Module):
        def __init__(self, inner=None):
            super().__init__()
            self.weight, self.inner = nn.Parameter(torch.ones(4)), inner

    assert all(map(is_norm, (nn.LayerNorm(4), nn.RMSNorm(4), Scaled())))
    no_norms = nn.Linear(4, 4), nn.Embedding(4, 4), nn.Dropout(), nn.Sequential(nn.LayerNorm(4)), Scaled(nn.Dropout())
    assert not any(map(is_norm, no_norms))
