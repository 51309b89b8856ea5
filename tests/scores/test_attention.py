"""The attention pass: texts in parts, the last layer, counts, and what is not finite."""

from __future__ import annotations

import gc
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import zoo
from helpers.attending import noticing
from helpers.close import bound
from helpers.letters import STEP, corpus, tokenizer, tokens_of
from helpers.traces import _traces

import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.models.head_model import HeadModel
from headroles.scores.patterns.confidence import Confidence
from headroles.scores.registry import list_scores
from headroles.tables import frame

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
    for column, draws in frame.resamples(whole).draws.items():
        np.testing.assert_allclose(frame.resamples(parts).draws[column], draws, atol=STEP)


def test_a_score_that_does_not_say_that_it_adds_up_over_parts_sees_the_whole(monkeypatch):
    monkeypatch.setattr("headroles.models.heads.CELLS", 50)
    found = [observation for each in noticing().values() for observation in each]
    assert {observation.first for observation in found} == {0}
    assert all(observation.weights.shape[-2] == observation.queries.ids.shape[1] for observation in found)
    gc.collect()  # a class that is still there is a known score


@pytest.mark.parametrize("name", ["albert", "marian"])  # of albert one module is the attention of all layers
def test_a_pass_ends_at_the_last_attention_of_the_model(name, monkeypatch):
    model, finished = zoo.tiny(name), []
    assert hr.attention_sites(model)  # are looked for in a forward pass of their own
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


def test_attention_that_is_not_finite_is_an_error():
    model = zoo.tiny("bert")
    model.bert.encoder.layer[1].attention.self.query.weight.data[0, 0] = math.nan
    before = _traces(model)
    longest = max(range(40), key=lambda i: (len(tokens_of("bert")(corpus()[i].text)["input_ids"]), -i)) + 1
    message = (
        f"the attention of enc-self layer 1 is not finite on sentence {longest} of the corpus; look for NaN or "
        f"infinite weights in BertForMaskedLM: 1 of 1,024 in bert.encoder.layer.1.attention.self.query.weight"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        hr.score(model, tokens_of("bert"), corpus(), "confidence")
    assert _traces(model) == before


def test_attention_of_one_token_that_is_not_finite_is_an_error():
    model, letters = zoo.tiny("gpt2"), tokens_of("gpt2")
    model.transformer.wte.weight.data[letters("d")["input_ids"][0]] = math.nan
    given = Corpus("some", tuple(map(Sentence, ("a b c", "c a b", "c a d", "b a c"))))  # what is before it is whole
    with pytest.raises(ValueError, match=r"^the attention of dec-self layer 0 is not finite on sentence 3 of the"):
        hr.score(model, letters, given, "confidence")
