"""Rarity: slow loops, made-up numbers, and corpora in which nothing is rare."""

from __future__ import annotations

import gc
import math
from collections import Counter
from dataclasses import dataclass, replace
from importlib.metadata import version

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.attentions import own_attentions
from helpers.letters import LETTERS, VOCABULARY, bare, corpus, looking, observation, tokenizer, tokens_of, value

import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.models import batching
from headroles.scores.base import Score
from headroles.scores.patterns.rarity import Rarity
from headroles.scores.registry import list_scores, named
from headroles.tables import frame

RARE = Rarity(frequent=5)
NO_TARGET = "has no target side to count the decoder's tokens in; try a reference= with translations"


def slow_rarity(model, text):
    """Of each decoder self-attention head, from the model's own output and its own attention: sentence by sentence."""
    encoded = batching.encode(text, tokenizer(), model)
    found = list(batching.batches(encoded, model, max_tokens=1))
    written = [[i for i, real in zip(*one, strict=True) if real] for one in map(_written, found)]
    counts = Counter(i for ids in written for i in ids)
    frequent = sorted(counts, key=lambda i: (-counts[i], i))[: RARE.frequent]
    hits, asked = torch.zeros(2, 4), 0
    for batch in found:
        ids, real = _written(batch)
        places = [place for place, is_real in enumerate(real) if is_real]
        rarest = min(places, key=lambda place: (counts[ids[place]], place))
        if ids[rarest] in frequent:
            continue
        found_weights = own_attentions(model, batch.inputs)
        for layer, weights in ((layer, found_weights["dec-self", layer]) for layer in range(2)):
            for query in (place for place in places if place >= rarest):
                masked = weights[0, :, query].clone()
                masked[:, [place for place in range(len(ids)) if place not in places]] = 0
                hits[layer] += masked.argmax(-1) == rarest
        asked += sum(place >= rarest for place in places)
    return hits.numpy() / asked


def _written(batch):
    return batch.target.ids[0].tolist(), batch.target.content[0].tolist()


@pytest.mark.slow
def test_the_tokens_a_decoder_writes_itself_are_counted():
    """Nothing was counted, so that the first token was the rarest and ids below 500 the most frequent."""
    model = _talkative()
    found = hr.score(model, tokenizer(), bare(12), RARE, n_resamples=0, max_tokens=64)["rarity"]["dec-self"]
    expected = slow_rarity(model, bare(12))
    np.testing.assert_allclose(found.to_numpy().reshape(2, 4), expected, rtol=1e-6)
    assert found.between(0.01, 0.99).any()


def _talkative():
    """A model whose greedy output is of several tokens, not the same for all sentences."""
    model = zoo.tiny("marian")
    model.generation_config.no_repeat_ngram_size, model.generation_config.max_new_tokens = 1, 6
    return model


@pytest.mark.parametrize("greedy", [True, False])
def test_a_reference_without_targets_gives_no_number_for_a_decoder(greedy, caplog):
    model, given = zoo.tiny("marian"), bare(6) if greedy else corpus(6, trees=False)
    table = hr.score(model, tokenizer(), given, [RARE, "confidence"], n_resamples=0, reference=bare())
    assert table["rarity"]["dec-self"].isna().all()
    assert table["rarity"][["enc-self", "cross"]].notna().all()
    assert caplog.messages == [f"rarity of dec-self heads is NaN: reference 'bare' {NO_TARGET}"]
    caplog.clear()
    table = hr.score(model, tokenizer(), given, [RARE, "confidence"], n_resamples=0, reference=corpus())
    assert table["rarity"].notna().all()
    assert caplog.messages == []


def test_a_reference_without_words_gives_no_number_for_a_decoder_alone(caplog):
    empty = Corpus("empty", tuple(Sentence("") for _ in range(2)))
    hr.score(zoo.tiny("gpt2"), tokens_of("gpt2"), bare(4), RARE, n_resamples=0, reference=empty)
    reason = "reference 'empty' has no content tokens to count; try reference= with a corpus of whole sentences"
    assert caplog.messages == [f"rarity of dec-self heads is NaN: {reason}"]


def test_rarity_of_counts_of_nothing_is_nothing():
    one = observation(looking([0, 1, 2]), ids=[600, 700, 800])
    assert value(Rarity(), one)["rarity"] == pytest.approx(1 / 3)
    assert np.isnan(value(Rarity(), replace(one, counts=torch.zeros(VOCABULARY, dtype=torch.long)))["rarity"])


def test_a_token_that_does_not_occur_is_not_frequent():
    """A reference of few different tokens left all others of low ids among its most frequent."""
    model, few = zoo.tiny("bert"), Corpus("few", (Sentence("a a a"),))
    rarity = hr.score(
        model, tokens_of("bert"), corpus(8), Rarity(frequent=zoo.VOCABULARY), reference=few, n_resamples=0
    )
    assert rarity.notna().all(axis=None)


def test_a_small_corpus_without_a_rare_token_says_so(caplog):
    reason = (
        "in no sentence is the rarest token outside the 500 most frequent of the corpus they are counted in; try a "
        "larger one: reference=, or Rarity(frequent=...) with a smaller number"
    )
    table = hr.score(zoo.tiny("bert"), tokens_of("bert"), corpus(8, trees=False), n_resamples=0)
    assert table["rarity"].isna().all()
    assert table["confidence"].notna().all()
    assert caplog.messages == [f"rarity of enc-self heads is NaN: {reason}"]
    table = hr.score(zoo.tiny("llama"), tokens_of("llama-grouped"), corpus(8, trees=False), "position", n_resamples=0)
    assert table["position[+1]"].isna().all()  # by definition: nothing to be said
    assert len(caplog.messages) == 1


# --- exact numbers on attention made by hand ------------------------------------------------------------------------

nan = math.nan


@pytest.mark.parametrize(
    ("ids", "special", "places", "kind", "rarity"),
    [
        ([10, 900, 11], (), [1, 1, 1], "enc-self", 1),
        ([10, 900, 11], (), [1, 0, 1], "enc-self", 2 / 3),
        ([900, 600, 700], (), [0, 0, 0], "enc-self", 1),  # the rarest of several outside the 500
        ([10, 11, 12], (), [0, 0, 0], "enc-self", nan),  # none is outside the 500
        ([10, 11, 499], (), [2, 2, 2], "enc-self", nan),  # rank 499 is the last of the 500 ...
        ([10, 11, 500], (), [2, 2, 2], "enc-self", 1),  # ... rank 500 is not
        ([899, 900, 901], (), [0, 0, 0], "enc-self", 1),  # equally rare: the first
        ([899, 900, 901], (), [1, 1, 1], "enc-self", 0),
        ([0, 10, 900, 0], (0, 3), [2, 2, 2, 2], "enc-self", 1),  # special tokens neither look nor are looked at
        ([10, 900, 11], (), [0, 1, 1], "dec-self", 1),  # the first query cannot see it ...
        ([10, 900, 11], (), [0, 0, 1], "dec-self", 1 / 2),  # ... but it can see itself
        ([10, 900, 11], (), [1, 1], "cross", 1),
        ([0, 0], (0, 1), [0, 0, 0], "cross", nan),  # a source without a real token has no rarest one
    ],
)
def test_numbers_of_rarity(ids, special, places, kind, rarity):
    made = observation(looking(places, len(ids)), kind=kind, special=special, ids=ids)
    assert value(named(["rarity"])[0], made) == pytest.approx({"rarity": rarity}, nan_ok=True)


# --- end to end -----------------------------------------------------------------------------------------------------


def test_of_equally_frequent_tokens_the_first_id_is_the_more_frequent():
    model, shown = zoo.tiny("bert"), []
    model.resize_token_embeddings(5_000, mean_resizing=False)

    @dataclass(frozen=True)
    class Ranking(Score):
        def update(self, observation):
            shown.append(observation.ranks)
            return {"nothing": observation.over_queries(observation.top[0])}

        def compute(self, sums):
            return {"ranking": sums["nothing"]}

    hr.score(model, tokens_of("bert"), corpus(3), Ranking(), n_resamples=0)
    seen_ones = {token for one in corpus(3) for token in tokens_of("bert")(one.text)["input_ids"]}
    unseen = [token for token in range(5_000) if token not in seen_ones]
    assert shown[0][unseen].diff().gt(0).all()
    del Ranking
    gc.collect()  # a class that is still there is a known score


def test_frequencies_can_be_those_of_another_corpus():
    model = zoo.tiny("bert")
    options = {"n_resamples": 0, "scores": [list_scores()["rarity"](frequent=10), "confidence"]}
    own = hr.score(model, tokens_of("bert"), corpus(), **options)
    other = Corpus("backwards", (Sentence(LETTERS[::-1]), Sentence("x y z")))
    there = hr.score(model, tokens_of("bert"), corpus(), **options, reference=other)
    assert not np.allclose(own["rarity"], there["rarity"])
    assert np.array_equal(own["confidence"], there["confidence"])
    assert f"|frequencies:self|headroles:{version('headroles')}|" in frame.provenance(own, "rarity")
    assert f"|frequencies:backwards-{other.hash}|" in frame.provenance(there, "rarity")
