"""Random rows of attention, one sentence each, and batches of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from helpers import zoo
from helpers.letters import RELATIONS, SPECIAL, VOCABULARY, Tokens, _frequencies, _side, corpus, sums, tokenizer, total
from hypothesis import strategies as st

import headroles as hr
from headroles.data.corpus import Sentence
from headroles.models.tokens.alignment import NO_WORD
from headroles.scores.base import Observation, Score
from headroles.tables import frame


class Row(NamedTuple):
    """One sentence of a batch, not padded."""

    kind: str
    weights: np.ndarray  # [heads, query, key]
    queries: Tokens
    keys: Tokens


@st.composite
def rows(draw, kinds=frame.KINDS):
    """Some sentences with random tokens, trees and attention of one kind."""
    kind, many = draw(st.sampled_from(kinds)), draw(st.integers(1, 3))
    sizes = st.tuples(st.integers(1, 7), st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return [row(rng, kind, many, *size) for size in draw(st.lists(sizes, min_size=1, max_size=4))]


def row(rng, kind, many, query, key):
    keys = tokens(rng, key)
    queries = tokens(rng, query) if kind == "cross" else keys
    weights = np.exp(3 * rng.normal(size=(many, len(queries.ids), key)))
    weights = np.tril(weights) if kind == "dec-self" else weights
    return Row(kind, (weights / weights.sum(-1, keepdims=True)).astype(np.float32), queries, keys)


def tokens(rng, length):
    """Some special, some of several pieces, some of no word; with a tree, with words only, or with nothing known."""
    common, rare = rng.integers(SPECIAL, 500, length), rng.integers(500, VOCABULARY, length)
    ids = np.where(rng.random(length) < 0.6, common, rare)
    ids = np.where(rng.random(length) < 0.25, rng.integers(0, SPECIAL, length), ids)
    word, words = -1, []
    for one in ids:
        word += one >= SPECIAL and (word < 0 or rng.random() < 0.7)
        words.append(word if one >= SPECIAL and rng.random() < 0.95 else NO_WORD)
    if rng.random() < 0.1:  # a decoder's own output
        return Tokens(ids, np.full(length, NO_WORD), None)
    return Tokens(ids, np.array(words), sentence(rng, word + 1))


def sentence(rng, size):
    spans = tuple((i, i + 1) for i in range(size))
    if not size or rng.random() < 0.15:
        return Sentence("x" * size, spans)
    links = [int(head) for head in rng.integers(-1, size, size)]
    return Sentence("x" * size, spans, tuple(links), tuple(map(str, rng.choice(RELATIONS, size))))


def collate(rows, extra=0):
    """Rows as one batch, with `extra` tokens of padding more than needed; padded queries look at all there is."""
    many = rows[0].weights.shape[0]
    queries = _side([row.queries for row in rows], extra)
    keys = _side([row.keys for row in rows], extra) if rows[0].kind == "cross" else queries
    weights = torch.zeros(len(rows), many, queries.ids.shape[1], keys.ids.shape[1])
    for i, row in enumerate(rows):
        _, query, key = row.weights.shape
        weights[i, :, :, :key] = 1 / key
        weights[i, :, :query, :key] = torch.from_numpy(row.weights)
    towards = partial(_along, weights)
    return Observation(rows[0].kind, weights, queries, keys, *_frequencies(), towards=towards)


def _along(weights, tokens):
    return (torch.arange(weights.shape[-1]) - tokens[..., None])[:, None].expand_as(weights).float()


def columns(score, rows, _, whole):
    """Columns bear the score's name, are the same whatever is seen, and are float64."""
    found = score.compute(total(whole))
    alone = score.compute(total(sums(score, collate(rows[:1]))))
    assert list(found) == list(alone)
    assert all(re.fullmatch(rf"{score.name()}(\[[^\[\]]+\])?(\.\w+)?", name) for name in found)
    assert not any(name.endswith((".low", ".high")) for name in found)
    assert {values.dtype for values in found.values()} == {torch.float64}


def noticing():
    shown = {}

    @dataclass(frozen=True)
    class Noticing(Score):
        def update(self, observation):
            shown.setdefault(observation.kind, []).append(observation)
            return {"nothing": observation.over_queries(0 * observation.top[0])}

        def compute(self, sums):
            return {"noticing": sums["nothing"]}

    hr.score(zoo.tiny("marian"), tokenizer(), corpus(), [Noticing(), "confidence"], n_resamples=0, max_tokens=64)
    return shown
