"""Copying, succession, composition: planted circuits, dense matrices as a slow reference, maps that cannot be read."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.close import MANY, close
from helpers.messages import whole
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import headroles as hr
from headroles.data.probes import CLASSES
from headroles.scores.circuits import is_norm
from headroles.tables import frame

WIDTH, SIZE, HEADS = 32, 8, 4


def double(parameter):
    return parameter.detach().double().numpy()


def dense(name, model, layer, head):
    """W_Q, W_K, W_V of a head with the norm before them, and W_O: [size, width] three times, [width, size]."""
    part = slice(SIZE * head, SIZE * head + SIZE)
    if name == "gpt2":
        block = model.transformer.h[layer]
        rows = [double(block.attn.c_attn.weight).T[WIDTH * i :][part] for i in range(3)]
        before = double(block.ln_1.weight) * np.eye(WIDTH) @ (np.eye(WIDTH) - 1 / WIDTH)
        return [row @ before for row in rows], double(block.attn.c_proj.weight)[part].T
    block = model.model.layers[layer]
    shared = slice(SIZE * (head // 2), SIZE * (head // 2) + SIZE)  # two query heads share a key-value head
    maps = block.self_attn
    rows = [double(maps.q_proj.weight)[part], double(maps.k_proj.weight)[shared], double(maps.v_proj.weight)[shared]]
    return [row * double(block.input_layernorm.weight) for row in rows], double(maps.o_proj.weight)[:, part]


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
    close(hr.copying(model)["copying"], expected, size=1, operations=MANY)


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
        expected = [size(qk.T @ ov) / size(qk), size(qk @ ov) / size(qk), size(to_ov @ ov) / size(to_ov)]
        close([row.query, row.key, row.value], np.array(expected) / size(ov), operations=MANY)


def tokenizer_of(words):
    """A tokenizer of whole words."""
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["<unk>", "to", *words])}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped"])
def test_succession_is_that_of_slow_loops_over_words(name):
    model, classes = copy.deepcopy(zoo.tiny(name)), ("days", "months", "numbers")
    members = [CLASSES[group] for group in classes]
    tokenizer = tokenizer_of([word for group in members for word in group])
    words, logits = model.get_input_embeddings().weight.detach(), double(model.get_output_embeddings().weight)
    last = model.transformer.ln_f if name == "gpt2" else model.model.norm
    final = np.diag(double(last.weight)) @ ((np.eye(WIDTH) - 1 / WIDTH) if name == "gpt2" else np.eye(WIDTH))
    if name == "gpt2":
        block = model.transformer.h[0]
        added = block.mlp(block.ln_2(words + model.transformer.wpe.weight[0]))
    else:
        block = model.model.layers[0]
        added = block.mlp(block.post_attention_layernorm(words))
    table, expected = hr.succession(model, tokenizer, classes=classes), []
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
    copying = hr.copying(model)["copying"]
    close(copying.iloc[:2], [1, -1], operations=MANY)
    assert np.isnan(copying.iloc[2])


def test_a_head_that_writes_the_next_day_is_a_successor_and_one_that_copies_or_writes_nothing_is_not():
    config = GPT2Config(vocab_size=9, n_embd=96, n_layer=1, n_head=3, n_positions=8, n_inner=9)
    model, tokenizer = GPT2LMHeadModel(config).eval(), tokenizer_of(CLASSES["days"])
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
    table = hr.succession(model, tokenizer, classes=["days"])
    assert table["succession"].tolist() == [1, 0, 0]
    assert table["succession.words"].tolist() == [6, 6, 6]
    assert hr.roles(table)["successor"].tolist() == [True, False, False]
    assert hr.roles(table, test=True)["successor.p"].iloc[0] < 0.05


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


# --- tables and refusals ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marian", "t5", "mixtral", "qwen3", "opt", "olmo2", "whisper"])
def test_every_pair_of_one_stack_is_in_the_table(name):
    model = zoo.tiny(name)
    pairs, scores = hr.composition(model), hr.copying(model)["copying"]
    kinds = {"enc-self", "dec-self"} if model.config.is_encoder_decoder else {"dec-self"}
    assert {*pairs["kind"]} == kinds
    assert len(pairs) == HEADS**2 * len(kinds)
    assert (pairs["to_layer"] > pairs["layer"]).all()
    assert pairs[["query", "key", "value"]].stack().between(0, 1 + 1e-9).all()
    assert scores.loc["dec-self"].between(-1, 1).all()
    assert scores.drop("dec-self").isna().all()
    assert "|score:composition|" in frame.provenance(pairs, "value")


def test_maps_that_cannot_be_read():
    cases = {
        ("bert", "copying"): "copying is for dec-self heads: got BertForMaskedLM, which has none; expected a decoder",
        (
            "bert-decoder",
            "copying",
        ): "copying needs an unembedding right after the final norm: got BertLMHeadModel, with a map between",
        ("bloom", "composition"): "circuits need the values and the output projection of every head: "
        "transformer.h.0.self_attention in BloomForCausalLM attends outside transformers' attention interface",
    }
    for (name, function), message in cases.items():
        with pytest.raises(ValueError, match=whole(message)):
            getattr(hr, function)(zoo.tiny(name))
    with pytest.raises(ValueError, match=re.escape("copying needs an unembedding: got GPT2Model without")):
        hr.copying(zoo.tiny("gpt2").transformer)


class TwoNorms(nn.Module):
    """The mean of two norms of the same stream."""

    def __init__(self, norm):
        super().__init__()
        self.one, self.other = norm, copy.deepcopy(norm)

    def forward(self, x):
        return (self.one(x) + self.other(x)) / 2


def test_maps_after_two_norms_are_refused():
    model = zoo.tiny("gpt2")
    model.transformer.ln_f = TwoNorms(model.transformer.ln_f)
    with pytest.raises(
        ValueError, match=whole("maps of the unembedding cannot be read: got 2 norms before it; expected one")
    ):
        hr.copying(model)


def test_norms_are_modules_of_vectors_alone():
    class Scaled(nn.Module):
        def __init__(self, inner=None):
            super().__init__()
            self.weight, self.inner = nn.Parameter(torch.ones(4)), inner

    assert all(map(is_norm, (nn.LayerNorm(4), nn.RMSNorm(4), Scaled())))
    no_norms = nn.Linear(4, 4), nn.Embedding(4, 4), nn.Dropout(), nn.Sequential(nn.LayerNorm(4)), Scaled(nn.Dropout())
    assert not any(map(is_norm, no_norms))


def test_columns_say_which_score_they_are_of():
    model = zoo.tiny("gpt2")
    tables = hr.copying(model), hr.succession(model, tokenizer_of(CLASSES["days"])), hr.composition(model)
    names = [{dict(frame.fields(text))["score"] for text in table.attrs["signatures"].values()} for table in tables]
    assert names == [{"copying"}, {"succession"}, {"composition"}]


def test_models_and_tokenizers_without_succession():
    tokenizer = tokenizer_of(CLASSES["days"])
    cases = {
        "bert": "succession is for dec-self heads: got BertForMaskedLM, which has none; expected a decoder",
        "marian": "succession is for decoders alone: got MarianMTModel, with an encoder; expected a causal model",
    }
    for name, message in cases.items():
        with pytest.raises(ValueError, match=whole(message)):
            hr.succession(zoo.tiny(name), tokenizer)
    message = "the tokenizer has no ordered words: got none of digits with 3 words in a row"
    with pytest.raises(ValueError, match=re.escape(message)):
        hr.succession(zoo.tiny("gpt2"), tokenizer, classes=["digits"])
    message = f"no ordered words: got classes=planets; expected some of {', '.join(CLASSES)}"
    with pytest.raises(ValueError, match=whole(message)):
        hr.succession(zoo.tiny("gpt2"), tokenizer, classes=["planets", "days"])
    after = hr.tiny_model("opt", vocab_size=9, do_layer_norm_before=False)
    message = "succession needs what the first MLP adds: got OPTForCausalLM, with a norm after the sum"
    with pytest.raises(ValueError, match=re.escape(message)):
        hr.succession(after, tokenizer)
