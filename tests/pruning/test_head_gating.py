"""Causal head gating: a head that helps, one that harms and one that does nothing, by construction; plain fits."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from helpers import zoo
from helpers.letters import corpus, tokenizer, tokens_of
from helpers.traces import _traces
from transformers import GPT2Config, GPT2LMHeadModel

import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.models import batching
from headroles.models.head_model import HeadModel
from headroles.models.heads import head_index
from headroles.scores.objectives import objective

HELPS, HARMS, IDLE, UNREAD = range(4)
LETTERS, SIZE, WIDTH = "abcde", 8, 32
REPEATED = Corpus("repeated", tuple(Sentence(" ".join(letter * 6)) for letter in LETTERS * 2))
SCORES = ["facilitating", "irrelevant", "interfering"]


def planted():
    """A GPT-2 of one layer that says a letter again: one head copies it, one takes as much away, two write nothing."""
    sizes = {"n_layer": 1, "n_head": 4, "n_embd": WIDTH, "n_positions": 16, "vocab_size": 64}
    special = {"pad_token_id": zoo.PAD, "bos_token_id": zoo.BOS, "eos_token_id": zoo.EOS}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **special, tie_word_embeddings=False)).eval()
    block = model.transformer.h[0]
    with torch.no_grad():
        for parameter in (*block.attn.parameters(), *block.mlp.parameters(), model.lm_head.weight):
            parameter.zero_()
        for embedding in (model.transformer.wte, model.transformer.wpe):
            embedding.weight.zero_()
        read = torch.eye(SIZE, len(LETTERS))
        for number, token in enumerate(tokenizer().convert_tokens_to_ids(list(LETTERS))):
            model.transformer.wte.weight[token, number] = 1
            model.lm_head.weight[token, SIZE + number] = 1
        for head in range(4):  # values are the letter; queries and keys are zero, which attends to all alike
            start = 2 * WIDTH + head * SIZE
            block.attn.c_attn.weight[: len(LETTERS), start : start + SIZE] = read.T
        for head, sign in ((HELPS, 1.0), (HARMS, -1.0)):
            block.attn.c_proj.weight[head * SIZE : (head + 1) * SIZE, SIZE : SIZE + len(LETTERS)] = sign * read
    return model


def gated(**options):
    table = hr.causal_gating(
        planted(), tokens_of("gpt2"), REPEATED, **{"n_updates": 40, "seeds": 4, "strength": 0.02} | options
    )
    return table.set_axis([name.removeprefix("gating[").replace("]", "") for name in table], axis=1)


@pytest.mark.slow
def test_planted_heads_are_found():
    table = gated().reset_index(drop=True)
    assert list(table[SCORES].idxmax(axis=1)) == ["facilitating", "interfering", "irrelevant", "irrelevant"]
    assert table.loc[HELPS, "facilitating"] > 0.7
    assert table.loc[HARMS, "interfering"] > 0.7
    assert (table.loc[[IDLE, UNREAD], "irrelevant"] > 0.9).all()
    effects = hr.ablate(planted(), tokens_of("gpt2"), REPEATED, n_resamples=0)["ablation[loss]"].to_numpy()
    assert effects[HELPS] > 0 > effects[HARMS]
    np.testing.assert_allclose(effects[[IDLE, UNREAD]], 0, atol=1e-6)


def plain_fit(model, batch, logits, strength, n_updates, rate):
    """One seed: Adam written out (Kingma and Ba 2015) on the mean loss minus the reward."""
    fitted = objective("loss", HeadModel(model)).fit(HeadModel(model), [batch])
    mean, square = torch.zeros_like(logits), torch.zeros_like(logits)
    for step in range(1, n_updates + 1):
        logits = logits.detach().requires_grad_()
        with hr.mask_heads(model, torch.sigmoid(logits)):
            target = fitted.targets(model(**batch.inputs), batch)
        loss = (torch.where(target.counted, target.values, 0).sum(-1) / target.counted.sum(-1)).mean()
        (gradient,) = torch.autograd.grad(loss - strength * logits.mean(), logits)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        update = mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
        logits = torch.minimum(torch.maximum(logits.detach() - rate * update, torch.tensor(-4.0)), torch.tensor(4.0))
    return logits


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_fits_are_those_of_plain_loops(name):
    model, text = zoo.tiny(name), corpus(6)
    encoded = batching.encode(text, tokens_of(name), model, words=False)
    (batch,) = batching.batches(encoded, model, max_tokens=10**6)
    options = {"strength": 0.3, "n_updates": 4, "rate": 0.4}
    found = hr.causal_gating(model, tokens_of(name), text, seeds=2, seed=5, max_tokens=10**6, **options)
    rows = np.random.default_rng(5).uniform(size=(2, len(head_index(model))))
    gates = []
    for row in torch.tensor(rows, dtype=torch.float32):
        free = plain_fit(model, batch, torch.log(row / (1 - row)).clip(-4, 4), 0.0, 4, 0.4)
        gates.append([plain_fit(model, batch, free, sign * 0.3, 4, 0.4).sigmoid().numpy() for sign in (1, -1)])
    up, down = np.array(gates, dtype=float).transpose(1, 0, 2)  # [seed, heads] each
    columns = {"gate+": up, "gate-": down, "facilitating": down, "interfering": 1 - up, "irrelevant": up * (1 - down)}
    for column, values in columns.items():
        # Adam divides by the size of a gradient, however small, so that rounding grows
        np.testing.assert_allclose(found[f"gating[{column}]"], values.mean(0), atol=2e-3)
        half = scipy.stats.t.isf(0.025, 1) * scipy.stats.sem(values)
        np.testing.assert_allclose(found[f"gating[{column}].low"], (values.mean(0) - half).clip(0, 1), atol=1e-2)
        np.testing.assert_allclose(found[f"gating[{column}].high"], (values.mean(0) + half).clip(0, 1), atol=1e-2)


def test_pressure_moves_gates_its_way_and_batches_are_read_in_turn():
    whole, small = (
        hr.causal_gating(
            zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(6), n_updates=4, seeds=2, rate=0.3, max_tokens=max_tokens
        )
        for max_tokens in (1000, 1)  # all examples in a batch, and one
    )
    for table in (whole, small):
        assert table["gating[gate+]"].mean() > table["gating[gate-]"].mean()
        assert (table["gating[facilitating]"] == table["gating[gate-]"]).all()
        np.testing.assert_allclose(table["gating[interfering]"], 1 - table["gating[gate+]"])
    assert not np.allclose(whole, small)


def test_weights_and_modes_are_left_and_a_study_keeps_the_table(tmp_path):
    model = zoo.tiny("marian").train()
    before, weights = _traces(model), hr.models.identity.weights_digest(model)
    options = {"n_updates": 2, "seeds": 2, "study": tmp_path}
    table = hr.causal_gating(model, tokens_of("marian"), corpus(4), **options)
    assert _traces(model) == before
    assert hr.models.identity.weights_digest(model) == weights
    assert all(parameter.grad is None for parameter in model.parameters())
    assert "updates:2" in hr.provenance(table, "gating[gate+]")
    written = (tmp_path / "gating.parquet").stat().st_mtime_ns
    again = hr.causal_gating(model, tokens_of("marian"), corpus(4), **options)
    pd.testing.assert_frame_equal(again, table)
    assert (tmp_path / "gating.parquet").stat().st_mtime_ns == written


def test_one_seed_has_no_interval():
    assert gated(seeds=1, n_updates=2).filter(regex="low|high").isna().all(axis=None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "got n_updates=2, seeds=0"),
        ({"n_updates": 0}, "at least one update"),
        ({"strength": 0.0}, "a strength and a rate above 0"),
        ({"rate": float("nan")}, "rate=nan"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        gated(**{"n_updates": 2} | options)


def test_a_model_without_a_loss_or_with_an_infinite_one_is_refused():
    with pytest.raises(ValueError, match="loss"):
        hr.causal_gating(zoo.tiny("bert").base_model, tokens_of("bert"), corpus(3))
    model = planted()
    model.lm_head.weight.data.fill_(torch.inf)
    with pytest.raises(ValueError, match="the loss is not finite on the sentences 1 to 10"):
        hr.causal_gating(model, tokens_of("gpt2"), REPEATED, n_updates=1)


def test_logits_of_all_seeds_together_fit(monkeypatch):
    model, shapes = planted(), []
    most = 4 * 12 * 64  # numbers of two sentences of six tokens with the gates of four seeds
    model.lm_head.register_forward_hook(lambda _, __, output: shapes.append(output.shape))
    for bound in (2**28, most):
        shapes.clear()
        monkeypatch.setattr(batching, "LOGITS", bound)
        hr.causal_gating(model, tokens_of("gpt2"), REPEATED, n_updates=2, seeds=4, strength=0.02)
        assert (max(shape.numel() for shape in shapes) <= most) == (bound == most)
