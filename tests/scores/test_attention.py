"""Attention pass: what scores are shown, norms of values, and counts of tokens."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import planted, zoo
from helpers.attending import noticing
from helpers.close import bound, close
from helpers.letters import STEP, corpus, scores_for, tokenizer, tokens_of
from reference import attention as slow

import headroles as hr
from headroles.models.head_model import HeadModel
from headroles.scores.attention_scores import Confidence
from headroles.scores.base import Score
from headroles.scores.registry import list_scores, named
from headroles.tables import columns, frame

IN_PARTS = [name for name, score in list_scores().items() if getattr(score, "in_parts", False)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marian", "llama-grouped", "t5"])
def test_the_table_is_the_same_for_texts_in_parts(name, monkeypatch):
    kinds = {site.kind for site in hr.attention_sites(zoo.tiny(name))}
    asked = [score for score in (list_scores()[each]() for each in IN_PARTS) if kinds & set(score.kinds)]
    asked = [replace(one, frequent=20) if one.name() == "rarity" else one for one in asked]
    whole = hr.score(zoo.tiny(name), tokens_of(name), corpus(), asked, n_resamples=20)
    shown = []
    monkeypatch.setattr("headroles.models.heads.CELLS", 50)
    monkeypatch.setattr(Confidence, "update", noted(Confidence.update, shown))
    parts = hr.score(zoo.tiny(name), tokens_of(name), corpus(), asked, n_resamples=20)
    assert (max(observation.first for observation in shown) > 0) == (name != "t5")
    pd.testing.assert_frame_equal(parts, whole, rtol=0, atol=bound(1))
    for column, draws in frame.resamples(whole).items():
        np.testing.assert_allclose(frame.resamples(parts)[column], draws, atol=STEP)


def test_a_score_that_does_not_say_that_it_adds_up_over_parts_sees_the_whole(monkeypatch):
    monkeypatch.setattr("headroles.models.heads.CELLS", 50)
    found = [observation for each in noticing().values() for observation in each]
    assert {observation.first for observation in found} == {0}
    assert all(observation.weights.shape[-2] == observation.queries.ids.shape[1] for observation in found)
    gc.collect()  # a class that is still there is a known score


@pytest.mark.parametrize("name", ["albert", "marian"])  # of albert one module is the attention of all layers
def test_a_pass_ends_at_the_last_attention_of_the_model(name, monkeypatch):
    model, finished = zoo.tiny(name), []
    HeadModel(model, tokens_of(name)).encode(corpus(), max_tokens=64)  # looks for sites and tries batches by forwards
    hook = model.base_model.register_forward_hook(lambda *_: finished.append(1))
    early = hr.score(model, tokens_of(name), corpus(), ["confidence", "entropy"], n_resamples=0, max_tokens=64)
    assert not finished
    monkeypatch.setattr(HeadModel, "offloaded", True)
    whole = hr.score(model, tokens_of(name), corpus(), ["confidence", "entropy"], n_resamples=0, max_tokens=64)
    hook.remove()
    assert len(finished) > 1
    pd.testing.assert_frame_equal(early, whole, rtol=0, atol=0)


def noted(update, shown):
    def noting(self, observation):
        shown.append(observation)
        return update(self, observation)

    return noting


def test_tokens_are_counted_on_the_side_that_is_looked_at(noticed):
    for kind in noticed:
        texts = [(one.target if kind == "dec-self" else one).text for one in corpus()]
        ids = [i for text in texts for i in tokenizer()(text)["input_ids"] if i >= zoo.FIRST_WORD]
        counts = torch.bincount(torch.tensor(ids), minlength=zoo.VOCABULARY)
        for observed in noticed[kind]:
            assert torch.equal(observed.counts, counts)
            assert observed.counts[observed.ranks.argsort()].diff().le(0).all()
            assert sorted(observed.ranks[counts > 0].tolist()) == list(range(len(set(ids))))
            assert (observed.ranks[counts == 0] >= 2**32).all()  # what never occurs is none of the most frequent


SCORES = ["confidence", "position", "syntax", "rarity", "sink"]


def test_a_head_that_moves_nothing_has_its_largest_weight_nowhere():
    given = planted.model(), planted.tokenizer(), planted.corpus()[:40], SCORES
    table = hr.score(*given, weights="norm", n_resamples=0, reference=planted.corpus())
    shares = table.filter(regex=r"^(confidence|sink|rarity|position)-norm(\[(special|first|[-+]?\d)\])?$")
    assert shares.shape[1] == 9
    assert (shares == 0).all(axis=None)
    assert not table.filter(regex=r"syntax-norm\[[^\]]*\]$").any(axis=None)


# --- slow loops ------------------------------------------------------------------------------------------------------


def norms_of_bert(model, encoded):
    """For each sentence, layer and head the shares of ||alpha (x W_V + b_V) W_O||, from the model's own weights."""
    for sentence, layers in zip(encoded, slow.attentions(model, encoded), strict=True):
        with torch.no_grad():
            states = model(input_ids=torch.tensor([sentence.ids]), output_hidden_states=True).hidden_states
        found = []
        for layer, (x, heads) in enumerate(zip(states, layers, strict=False)):
            attention = model.encoder.layer[layer].attention
            values = attention.self.value(x[0]).detach()  # [key, heads x size]
            size = values.shape[1] // len(heads)
            found.append([])
            for head, weights in enumerate(heads):
                part = slice(head * size, (head + 1) * size)
                moved = [float((attention.output.dense.weight[:, part] @ v[part]).norm().detach()) for v in values]
                rows = [[w * length for w, length in zip(row, moved, strict=True)] for row in weights]
                found[-1].append([[value / (sum(row) or 1) for value in row] for row in rows])
        yield found


def test_every_number_by_norm_is_that_of_the_slow_loops(monkeypatch):
    model, tokenizer, sentences = zoo.tiny("bert").bert, tokens_of("bert"), corpus(12)
    found = hr.score(model, tokenizer, sentences, SCORES, weights="norm", n_resamples=0)
    shares = list(norms_of_bert(model, [slow.encode(sentence, tokenizer) for sentence in sentences]))
    monkeypatch.setattr(slow, "attentions", lambda *_: shares)  # the loops are the same, the weights are not
    expected = slow.scores(model, tokenizer, sentences)
    expected.columns = [columns.of_variant(name, "norm") for name in expected]
    assert set(expected) <= set(found)
    numbers = pd.DataFrame(found[list(expected)].astype(float)).sort_index()
    pd.testing.assert_frame_equal(numbers, expected, rtol=0, atol=bound(1), check_index_type=False)


PARTS = {  # of some families: the values' map, the output projection, how many query heads share a value, Conv1D
    "llama-grouped": ("model.layers.1.self_attn.v_proj", "model.layers.1.self_attn.o_proj", 2),
    "mistral": ("model.layers.1.self_attn.v_proj", "model.layers.1.self_attn.o_proj", 2),
    "marian": ("model.decoder.layers.1.encoder_attn.v_proj", "model.decoder.layers.1.encoder_attn.out_proj", 1),
    "gpt2": ("transformer.h.1.attn.c_attn", "transformer.h.1.attn.c_proj", 1),
    "t5": ("decoder.block.1.layer.1.EncDecAttention.v", "decoder.block.1.layer.1.EncDecAttention.o", 1),
}


@pytest.mark.parametrize("name", PARTS)
def test_norms_are_those_of_the_maps_of_each_family(name):
    model, (value_map, out, sharing) = zoo.tiny(name), PARTS[name]
    key = ("cross" if name in ("marian", "t5") else "dec-self", 1)
    seen, values = [], []

    @dataclass(frozen=True)
    class Norming(Score):
        kinds = (key[0],)

        def update(self, observation):
            seen.append((observation.weights, observation.norms))
            return {"nothing": observation.over_queries(observation.top[0])}

        def compute(self, sums):
            return {"norming": sums["nothing"]}

    with torch.no_grad():
        hook = model.get_submodule(value_map).register_forward_hook(lambda *args: values.append(args[-1]))
        hr.score(model, tokens_of(name), corpus(3), Norming(), n_resamples=0)
        hook.remove()
    weights, norms = seen[1]  # of layer 1
    weight = model.get_submodule(out).weight.detach().double()
    weight = weight.mT if name == "gpt2" else weight  # [width, heads x size]
    size = weight.shape[1] // weights.shape[1]
    for head in range(weights.shape[1]):
        matrix = weight[:, head * size : (head + 1) * size]
        start = head // sharing * size + (2 * weight.shape[1] if name == "gpt2" else 0)
        for sentence, keys in enumerate(values[-1].double()):
            for place, x in enumerate(keys):
                length = (matrix @ x[start : start + size]).norm()
                close(norms[sentence, head, :, place], weights[sentence, head, :, place].double() * length)
    del Norming


# --- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_both_ways_in_one_pass_are_those_of_two():
    model, tokenizer = zoo.tiny("marian"), tokens_of("marian")
    scores = scores_for("marian")
    options = {"n_resamples": 20, "max_tokens": 64}
    both = hr.score(
        model, tokenizer, corpus(8), [*scores, *(replace(one, weights="norm") for one in scores)], **options
    )
    plain = hr.score(model, tokenizer, corpus(8), scores, **options)
    by_norm = hr.score(model, tokenizer, corpus(8), scores, weights="norm", **options)
    pd.testing.assert_frame_equal(both, hr.join(plain, by_norm))
    assert list(by_norm) == [columns.of_variant(name, "norm") for name in plain]
    assert not np.allclose(plain["confidence"], by_norm["confidence-norm"], atol=0.01)
    assert frame.provenance(both, "confidence").endswith("|score:Confidence()")
    assert frame.provenance(both, "confidence-norm.low").endswith("|score:Confidence(weights='norm')")
    assert "frequent=20, weights='norm')" in frame.provenance(both, "rarity-norm")


# --- what is refused -------------------------------------------------------------------------------------------------


def test_weights_are_for_the_scores_that_have_them():
    assert list_scores()["position"](weights="norm").label == "position-norm"
    labels = [score.label for score in named(["importance", "confidence"], weights="norm")]
    assert labels == ["importance", "confidence-norm"]


def test_denominators_of_each_head_need_by_head(monkeypatch):
    """Those of layer 0 divided the sums of all layers."""
    monkeypatch.setattr(Confidence, "denominators", lambda self, seen: {"queries": self.update(seen)["confidence"]})
    given = zoo.tiny("bert"), tokens_of("bert"), corpus(), ["confidence"]
    with pytest.raises(
        ValueError, match="queries of score 'confidence' must be one number for all heads, got 4; try by"
    ):
        hr.score(*given, n_resamples=0)
    monkeypatch.setattr(Confidence, "by_head", True)
    assert np.allclose(hr.score(*given, n_resamples=0)["confidence"], 1)
