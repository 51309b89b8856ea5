"""Learned offsets: mean attention by relative position, learnt in a plain loop on another corpus, and imposed by it."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from helpers.imposed import imposed_equals_loop, lettered
from helpers.letters import corpus

from headroles.data.corpus import Corpus
from headroles.patterns import LearnedOffset

OTHER = Corpus("others", corpus(14).sentences[6:])


@cache
def learnt(name, span=64):
    case = lettered(name)
    return LearnedOffset.learn(case.model, case.tokenizer, OTHER, span=span)


def by_hand(case, layer, head, span):
    """The mean attention of content queries to tokens at each distance: {distance: weight}."""
    sums, counts = {}, {}
    causal = case.sites[0].kind == "dec-self"
    for sentence in OTHER:
        ids = case.tokenizer(sentence.text)["input_ids"]
        with torch.no_grad():
            weights = case.eager(torch.tensor([ids]), output_attentions=True).attentions[layer][0, head].tolist()
        for query, row in enumerate(weights):
            for key, weight in enumerate(row):
                is_seen = abs(key - query) <= span and (key <= query or not causal)
                if is_seen and ids[query] not in case.tokenizer.all_special_ids:
                    sums[key - query] = sums.get(key - query, 0) + weight
                    counts[key - query] = counts.get(key - query, 0) + 1
    return {apart: sums[apart] / counts[apart] for apart in sums}


@pytest.mark.parametrize(("name", "span"), [("bert", 64), ("gpt2", 64), ("gpt2", 2)])
def test_learnt_is_a_plain_mean(name, span):
    case, pattern = lettered(name), learnt(name, span)
    expected = by_hand(case, 1, 2, span)
    table = pattern.mean[case.sites[1].key][2].tolist()
    assert table == pytest.approx([expected.get(apart, 0) for apart in range(-span, span + 1)], rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(("name", "span"), [("bert", 64), ("gpt2", 2)])
def test_imposed_is_a_slow_loop(name, span):
    case, pattern = lettered(name), learnt(name, span)
    expected = by_hand(case, 1, 2, span)
    kind = case.sites[0].kind

    def row(batch):
        (content,) = batch.source.content.tolist()

        def weights(query, own):
            reach = range(len(own)) if kind == "enc-self" else range(query + 1)
            raw = [expected.get(key - query, 0) if key in reach else 0 for key in range(len(own))]
            return torch.tensor(raw) / sum(raw) if content[query] else None

        return weights

    imposed_equals_loop(case, pattern, kind, row, head=2, layer=1)


def test_other_means_are_other_patterns():
    case, patterns = lettered("gpt2"), [learnt("gpt2", 2), learnt("gpt2")]
    assert patterns[0] != patterns[1]
    assert patterns[0].label != patterns[1].label
    assert patterns[0] == LearnedOffset.learn(case.model, case.tokenizer, OTHER, span=2)
    assert hash(patterns[0]) == hash(LearnedOffset(patterns[0].mean))
