"""Where there is nothing to measure on there is no number, and NaN is never without a word."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.attentions import own_attentions
from helpers.letters import VOCABULARY, corpus, looking, observation, tokenizer, tokens_of, value

import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.models import batching
from headroles.models.tokens import vocabulary
from headroles.scores.patterns.alignment import Alignment
from headroles.scores.patterns.rarity import Rarity

RARE = Rarity(frequent=5)
NO_TARGET = "has no target side to count the decoder's tokens in; try a reference= with translations"


def bare(size=40):
    """Without trees and without targets."""
    return Corpus("bare", tuple(replace(one, target=None) for one in corpus(size, trees=False)))


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


@pytest.mark.parametrize("texts", [("", ""), ("</s>", "")])
def test_a_corpus_of_empty_sentences_is_an_error(texts):
    message = (
        "corpus 'texts' has nothing to measure: every score of every head would be NaN; got 0 content tokens (neither "
        "padding nor special) in its source; expected some; try a corpus of whole sentences"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        hr.score(zoo.tiny("bert"), tokens_of("bert"), Corpus.of(texts), n_resamples=2)


def test_single_words_have_no_neighbours_and_that_is_said(caplog):
    hr.score(zoo.tiny("bert"), tokens_of("bert"), Corpus.of(["a", "b"]), ["position", "confidence"], n_resamples=0)
    names = ", ".join(f"position[{d}]" for d in ("-2", "-1", "+1", "+2"))
    reason = "no sentence of the corpus has anything to measure it on"
    assert caplog.messages == [f"{names} of enc-self heads are NaN: {reason}"]


def test_unknown_words_are_words_where_their_token_pads_too():
    model, own = zoo.tiny("bert"), tokens_of("bert")
    text = Corpus.of(["a ! b", "c"])  # "!" is no piece
    padded = type(own)(tokenizer_object=own.backend_tokenizer, **own.special_tokens_map | {"pad_token": "<unk>"})
    assert padded.pad_token_id == padded.unk_token_id
    assert padded.unk_token_id not in vocabulary.special(padded, model)
    assert {padded.bos_token_id, padded.eos_token_id} <= vocabulary.special(padded, model)
    (batch,) = batching.batches(batching.encode(text, padded, model), model)
    assert batch.source.content.tolist() == [[False, True, True, True, False], [False, True, False, False, False]]
    expected = hr.score(model, own, text, "confidence", n_resamples=0)
    found = hr.score(model, padded, text, "confidence", n_resamples=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_decoders_start_is_no_word_whatever_its_id_stands_for():
    model = zoo.tiny("marian")
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = tokenizer().unk_token_id
    assert tokenizer().unk_token_id not in vocabulary.special(tokenizer(), model)
    for given in (corpus(3), bare(3)):
        for batch in batching.batches(batching.encode(given, tokenizer(), model), model):
            assert (batch.target.ids[:, 0] == tokenizer().unk_token_id).all()
            assert not batch.target.content[:, 0].any()


@pytest.mark.parametrize("target", [2, 4, 7, 12, 50, 59])
def test_the_borders_of_the_diagonal_are_exact(target):
    """A border that falls on a token was decided by how float32 rounds it."""
    for source in (1, 2, 3, 5, 8, 13, 20, 30, 38, 44, 59):
        centres = [Fraction(step * (source - 1), target - 1) for step in range(target)]
        expected = [sum(abs(place - centre) <= 1 for centre in centres) for place in range(source)]
        weights = torch.eye(source)[:, None].expand(source, target, source)  # head i looks at place i
        found = Alignment().update(replace(observation(weights[0], kind="cross"), weights=weights[None]))["near"]
        assert found.tolist() == [expected], source
