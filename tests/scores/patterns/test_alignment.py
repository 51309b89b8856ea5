"""Alignment: numbers made by hand, and the borders of the diagonal."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from helpers import zoo
from helpers.letters import corpus, linked, looking, observation, tokenizer, value
from helpers.messages import whole

import headroles as hr
from headroles.scores.patterns.alignment import Alignment, Links
from headroles.scores.registry import named


@pytest.mark.parametrize("target", [2, 4, 7, 12, 50, 59])
def test_the_borders_of_the_diagonal_are_exact(target):
    """A border that falls on a token was decided by how float32 rounds it."""
    for source in (1, 2, 3, 5, 8, 13, 20, 30, 38, 44, 59):
        centres = [Fraction(step * (source - 1), target - 1) for step in range(target)]
        expected = [sum(abs(place - centre) <= 1 for centre in centres) for place in range(source)]
        weights = torch.eye(source)[:, None].expand(source, target, source)  # head i looks at place i
        found = Alignment().update(replace(observation(weights[0], kind="cross"), weights=weights[None]))["near"]
        assert found.tolist() == [expected], source


nan = math.nan


@pytest.mark.parametrize(
    ("places", "keys", "special", "monotone", "diagonal"),
    [
        ([0, 1, 2, 3, 4], 5, (), 1, 1),
        ([4, 3, 2, 1, 0], 5, (), -1, 1 / 5),
        ([1, 2, 3, 4, 4], 5, (), 9 / 10, 1),  # one token ahead is near enough ...
        ([0, 0, 1, 2, 3], 5, (), 9 / 10, 1),  # ... and so is one behind
        ([0, 0, 0, 0, 0], 5, (), 0, 2 / 5),
        ([0, 1], 2, (), 1, 1),  # one pair ...
        ([0, 4], 5, (), 1, 1),  # ... from end to end
        ([0, 2, 1], 3, (), 1 / 3, 1),  # two pairs in order, one not
        ([0, 0, 1], 3, (), 2 / 3, 1),  # a tie counts for nothing
        ([0, 2, 4, 6], 7, (), 1, 1),  # a source twice as long
        ([1, 2, 3], 5, (0, 4), 1, 1),  # special tokens are no part of the diagonal ...
        ([2, 3, 4], 5, (0,), 1, 1),  # ... which starts behind them
        ([2], 4, (), nan, 0),  # one target token has no order; its place is the start
        ([1], 2, (), nan, 1),
    ],
)
def test_numbers_of_cross_attention(places, keys, special, monotone, diagonal):
    found = value(named(["alignment"])[0], observation(looking(places, keys), kind="cross", special=special))
    assert found == pytest.approx({"alignment[monotone]": monotone, "alignment[diagonal]": diagonal}, nan_ok=True)


@pytest.fixture(scope="module")
def scores():
    return hr.score(zoo.tiny("marian"), tokenizer(), linked(), n_resamples=20)


@torch.no_grad()
@pytest.mark.parametrize("weights", ["attention", "nosink"])
def test_links_are_those_of_a_loop_over_the_model_s_own_attention(scores, weights):
    """Word by word from the output of transformers: the decoder reads the target one place later."""
    model, tokens = zoo.tiny("marian"), tokenizer()
    if weights == "nosink":
        scores = hr.score(model, tokens, linked(), [Links(weights="nosink")], n_resamples=20)
        scores = scores.rename(columns=lambda name: name.replace("-nosink", ""))
    sink = int(weights == "nosink")  # the first token is no key
    model.set_attn_implementation("eager")
    hits, near, queries = torch.zeros(2, 4), 0, 0
    for pair in linked():
        source, target = tokens(pair.text), tokens(pair.target.text)
        ids = [model.config.decoder_start_token_id, *target["input_ids"][:-1]]
        attention = model(
            input_ids=torch.tensor([source["input_ids"]]), decoder_input_ids=torch.tensor([ids]), output_attentions=True
        ).cross_attentions  # of each layer [1, head, query, key]
        words, size = source.word_ids()[:-1], len(ids) - 1  # without the end
        for step, word in enumerate(target.word_ids()[:-1]):
            right = [place for place, other in enumerate(words) if place >= sink and (other, word) in pair.links]
            if not right:
                continue
            queries += 1
            share = Fraction(step * (len(words) - 1 - sink), max(1, size - 1))
            near += sink + math.ceil(share - Fraction(1, 2)) in right
            for layer, of_layer in enumerate(attention):
                for head in range(4):
                    hits[layer, head] += sink + int(of_layer[0, head, step + 1, sink : len(words)].argmax()) in right
    cross = scores.xs("cross")
    assert queries >= 50
    assert cross["links"].tolist() == pytest.approx((hits.flatten() / queries).tolist())
    assert cross["links.baseline"].tolist() == pytest.approx([near / queries] * 8)
    assert scores.drop("cross", level="kind")["links"].isna().all()
    assert (cross["links.low"] <= cross["links"]).all()
    assert (cross["links"] <= cross["links.high"]).all()


def test_links_are_a_score_where_there_are_links_and_a_role_over_the_diagonal(scores):
    model = zoo.tiny("marian")
    without = hr.score(model, tokenizer(), corpus(3), n_resamples=0)
    assert {name for name in scores if "links" in name} == {
        f"links{part}{end}" for part in ("", ".baseline") for end in ("", ".low", ".high")
    }
    assert not any("links" in name for name in without)
    cross = scores.xs("cross")
    roles = hr.roles(scores, thresholds={"translation": 0.01})
    assert roles.xs("cross")["translation"].tolist() == (cross["links"] - cross["links.baseline"] >= 0.01).tolist()
    assert 0 < roles["translation"].sum() < 8
    message = (
        "score 'links' needs word links, and corpus 'letters' has none with translations; try "
        "headroles.read(source, target, links=...)"
    )
    with pytest.raises(ValueError, match=whole(message)):
        hr.score(model, tokenizer(), corpus(3), ["links"], n_resamples=0)
