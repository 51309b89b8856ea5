"""Sentences of random letters with trees, their tokenizer, and sums of scores over them."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from helpers import zoo
from hypothesis import HealthCheck, settings
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import headroles as hr
from headroles.data.corpus import Corpus, Linked, Sentence
from headroles.models.batching import TokenView
from headroles.models.head_model import HeadModel
from headroles.models.tokens.alignment import NO_WORD
from headroles.scores.base import Observation
from headroles.scores.registry import DEFAULT, list_scores

DETERMINISTIC = settings(
    derandomize=True, database=None, deadline=None, max_examples=12, suppress_health_check=list(HealthCheck)
)
VOCABULARY, PADDING, SPECIAL = 1000, 1, 4  # ids below SPECIAL are special
RELATIONS = ("nsubj", "obj", "amod", "advmod", "nsubj:pass", "det")


def batches_of(model, tokenizer, corpus, *, max_tokens=4096, **options):
    """The batches of a corpus."""
    handle = HeadModel(model, tokenizer)
    return list(handle.batches(handle.encode(corpus, **options), max_tokens=max_tokens))


class Tokens(NamedTuple):
    ids: np.ndarray  # [token]
    words: np.ndarray  # [token]
    sentence: Sentence | None


def _side(tokens, extra):
    shape = len(tokens), max(len(one.ids) for one in tokens) + extra
    ids, words = torch.full(shape, PADDING), torch.full(shape, NO_WORD)
    present = torch.zeros(shape, dtype=torch.bool)
    for i, one in enumerate(tokens):
        for table, values in ((ids, one.ids), (words, one.words), (present, np.True_)):
            table[i, : len(one.ids)] = torch.as_tensor(values)
    return TokenView(ids, present, present & (ids >= SPECIAL), words, tuple(one.sentence for one in tokens))


@cache
def _frequencies():
    """Counts and ranks of the vocabulary: small ids are frequent."""
    counts = torch.arange(VOCABULARY, 0, -1) // 3
    ranks = torch.empty_like(counts)
    ranks[counts.argsort(descending=True, stable=True)] = torch.arange(VOCABULARY)
    return counts, ranks


def sums(score, seen):
    """What a score adds up of a batch of attention or gradients, sentence by sentence: {name: [batch, ...]}."""
    denominators, update = score.denominators(seen), score.update(seen)
    assert not set(denominators) & set(update)
    rows = len(seen.weights if hasattr(seen, "weights") else seen.counted)
    assert all(len(values) == rows for values in (denominators | update).values())
    return {name: values.double() for name, values in (denominators | update).items()}


def total(sums, weights=None):
    """Sums over sentences, each counted as often as `weights` [..., batch] say: {name: [..., heads or 1, ...]}."""
    batch = len(next(iter(sums.values())))
    weights = torch.ones(batch, dtype=torch.float64) if weights is None else weights
    return {name: torch.tensordot(weights, values.double(), dims=1) for name, values in sums.items()}


def measured(score, seen):
    """Column -> values of the heads."""
    added = total(sums(score, seen))
    columns = score.compute(added)
    assert set(score.counted(added)) <= set(columns)  # numbers of trials of columns that there are
    return {name: values.tolist() for name, values in columns.items()}


def same(one, other):
    assert list(one) == list(other)
    for name, values in one.items():
        torch.testing.assert_close(values, other[name], atol=1e-5, rtol=1e-5, equal_nan=True)


def observation(weights, *, kind="enc-self", special=(), sentence=None, words=None, ids=None):
    """One sentence and one head, `weights` [query, key]; the tokens at `special` are, and ids count up otherwise."""
    weights = torch.as_tensor(weights, dtype=torch.float32)
    sizes = weights.shape
    given = list(range(SPECIAL, SPECIAL + sizes[1])) if ids is None else ids
    keys = _alone([0 if i in special else one for i, one in enumerate(given)], words, sentence)
    queries = _alone(list(range(SPECIAL, SPECIAL + sizes[0])), None, None) if kind == "cross" else keys
    return Observation(kind, weights[None, None], queries, keys, *_frequencies())


def _alone(ids, words, sentence):
    words = [NO_WORD] * len(ids) if words is None else words
    return _side([Tokens(np.array(ids), np.array(words), sentence)], 0)


def value(score, seen):
    return {name: values[0] for name, values in measured(score, seen).items()}


def looking(places, keys=None):
    """Weights of a head that looks at one place from each query: [query, key]."""
    return torch.nn.functional.one_hot(torch.tensor(places), keys or len(places)).float()


LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = ["<s>", "<pad>", "</s>", "<unk>", *LETTERS, *(f"##{letter}" for letter in LETTERS)]


@cache
def tokenizer(template="$A </s>"):
    """A tokenizer for the models of the zoo, whose special ids are the same."""
    vocabulary = {piece: number for number, piece in enumerate(PIECES)}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = [("<s>", zoo.BOS), ("</s>", zoo.EOS)]
    made.post_processor = processors.TemplateProcessing(single=template, special_tokens=tokens)
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


@cache
def corpus(size=40, *, trees=True, translated=True):
    """Words of one to three random letters in random trees; sentence i depends on i alone."""
    return Corpus("letters", tuple(_letters(random.Random(i), trees, translated) for i in range(size)))


def _letters(rng, trees, translated):
    words = [
        "".join(rng.choices(LETTERS, range(26, 0, -1), k=rng.choice((1, 1, 2, 3)))) for _ in range(rng.randint(3, 8))
    ]
    starts = [sum(map(len, words[:i])) + i for i in range(len(words))]
    root = rng.randrange(len(words))
    links = [-1 if i == root else rng.choice([j for j in range(len(words)) if j != i]) for i in range(len(words))]
    labels = ["root" if head < 0 else rng.choice(RELATIONS) for head in links]
    target = _letters(rng, trees, False) if translated else None
    spans = tuple((start, start + len(word)) for start, word in zip(starts, words, strict=True))
    return Sentence(" ".join(words), spans, *((tuple(links), tuple(labels)) if trees else ()), target=target)


@cache
def linked(size=12):
    """The sentences of `corpus` with random word links; some words have none, some several."""
    pairs = []
    for number, pair in enumerate(corpus(size, trees=False)):
        rng = random.Random(number)
        every = [(source, target) for source in range(len(pair.spans)) for target in range(len(pair.target.spans))]
        links = tuple(rng.sample(every, len(every) // 5)) if number else ()
        pairs.append(Linked(**{field.name: getattr(pair, field.name) for field in fields(Sentence)}, links=links))
    return Corpus("linked", tuple(pairs))


STEP = 2**-12  # resamples are kept to this precision
TEMPLATES = {"bert": "<s> $A </s>", "albert": "<s> $A </s>", "gpt2": "$A", "llama-grouped": "<s> $A", "bloom": "$A"}


@cache
def scored(name, max_tokens=4096):
    return hr.score(zoo.tiny(name), tokens_of(name), corpus(), scores_for(name), max_tokens=max_tokens, n_resamples=50)


def scores_for(name):
    """All that the model can have; no token of so small a vocabulary is outside the 500 most frequent."""
    chosen = [list_scores()[score]() for score in DEFAULT]
    kinds = {site.kind for site in hr.attention_sites(zoo.tiny(name))}
    return [replace(one, frequent=20) if one.name() == "rarity" else one for one in chosen if kinds & set(one.kinds)]


def tokens_of(name):
    return tokenizer(TEMPLATES.get(name, "$A </s>"))


def plain(table):
    """The columns without the bounds of their intervals."""
    return table[[name for name in table if not name.endswith((".low", ".high"))]]


def writing(name):
    """A model that says how long its own output may be: transformers warns of any other, and lets it write 20."""
    model = zoo.tiny(name)
    model.generation_config.max_new_tokens = 12
    return model


def bare(size=40):
    """Without trees and without targets."""
    return Corpus("bare", tuple(replace(one, target=None) for one in corpus(size, trees=False)))


def with_repeats():
    model = zoo.tiny("gpt2")
    return model, tokens_of(model), hr.repeated_tokens(tokens_of(model), 4, length=6)


def with_needles(name="gpt2", **options):
    model = zoo.tiny(name)
    return model, tokens_of(name), hr.needles(tokens_of(name), 6, length=12, size=4, **options)
