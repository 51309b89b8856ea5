"""Heads that find what a long text says: where the question looks, and what a head writes into the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers import zoo
from helpers.close import close
from helpers.letters import tokens_of

import headroles as hr
from headroles.data.probes import Needle
from headroles.models import heads as families


def asked(tokenizer, count=3):
    """Texts of 24 tokens with a fact in tokens 5 to 10, its code in 7 and 8, a question in 18 to 21, and the code."""
    generator, texts = torch.Generator().manual_seed(0), []
    plain = [token for token in sorted(tokenizer.get_vocab().values()) if token not in tokenizer.all_special_ids]
    for _ in range(count):
        ids = [plain[int(place)] for place in torch.randint(len(plain), (24,), generator=generator)]
        ids[22:] = ids[7:9]
        texts.append(Needle("", ids=tuple(ids), needle=7, answer=22, size=2, passage=(5, 11), question=18))
    return hr.Corpus("asked", tuple(texts))


def moved(model, ids):
    """The attention and the vectors f(x) of all heads by a plain forward: [head, query, key], [head, key, width]."""
    values = []
    config, name = model.config, model.config.model_type
    size = config.hidden_size // config.num_attention_heads
    layers = model.transformer.h if name == "gpt2" else model.model.layers
    maps = [layer.attn.c_attn if name == "gpt2" else layer.self_attn.v_proj for layer in layers]
    handles = [one.register_forward_hook(lambda _m, _i, out: values.append(out[0].double())) for one in maps]
    with torch.no_grad():
        attention = model(torch.tensor([ids]), output_attentions=True).attentions
    for handle in handles:
        handle.remove()
    found = []
    for layer, value in zip(layers, values, strict=True):
        value = value[:, 2 * config.hidden_size :] if name == "gpt2" else value
        out = layer.attn.c_proj.weight if name == "gpt2" else layer.self_attn.o_proj.weight.T  # [heads x size, width]
        shared = config.num_attention_heads // (value.shape[1] // size)
        for head, rows in enumerate(out.detach().double().split(size)):
            found.append(value.split(size, dim=1)[head // shared] @ rows)
    return torch.cat([layer[0] for layer in attention]).double(), torch.stack(found)


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped"])
def test_where_the_question_looks_and_what_is_written_are_those_of_slow_loops(name, monkeypatch):
    model, tokenizer = zoo.tiny(name), tokens_of(name)
    texts = asked(tokenizer)
    found = hr.score(model, tokenizer, texts, ["passage", "contribution"], n_resamples=0)
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    unembedding = model.get_output_embeddings().weight.detach().double()
    looks, writes = 0, 0
    for text in texts:
        attention, vectors = moved(model, text.ids)
        looks = looks + attention[:, 18:22, 5:11].sum((1, 2)) / (4 * len(texts))
        for query in (21, 22):  # they predict the code
            into = attention[:, query] * (vectors @ unembedding[text.ids[query + 1]])  # [head, key]
            elsewhere = into.sum(1) - into[:, 5:11].sum(1)
            writes = writes + (into[:, 5:11].sum(1) - elsewhere * 6 / (query + 1 - 6)) / (2 * len(texts))
    model.set_attn_implementation(own)
    close(found["passage"], looks.numpy())
    close(found["contribution"], writes.numpy())
    monkeypatch.setattr(families, "CELLS", 60)  # in blocks of queries
    parts = hr.score(model, tokenizer, texts, ["passage", "contribution"], n_resamples=0)
    close(parts["passage"], found["passage"])
    close(parts["contribution"], found["contribution"])


def test_where_the_passage_is_unknown_nothing_is_measured():
    model, tokenizer = zoo.tiny("gpt2"), tokens_of("gpt2")
    texts = hr.Corpus("no passage", tuple(replace(text, passage=(0, 0), question=0) for text in asked(tokenizer)))
    found = hr.score(model, tokenizer, texts, ["passage", "contribution"], n_resamples=0)
    assert found.isna().all(axis=None)


def test_a_head_writes_by_its_attention_alone():
    with pytest.raises(ValueError, match="^weights must be one of attention, got 'norm'"):
        hr.scores.retrieval.Contribution(weights="norm")
