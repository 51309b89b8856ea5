"""Every score goes through one suite, and a pass over a corpus gives the same table however the corpus is read."""

from __future__ import annotations

import gc
import math
import random
import re
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import zoo
from helpers.attentions import own_attentions
from helpers.close import bound
from helpers.letters import (
    DETERMINISTIC,
    LETTERS,
    PIECES,
    RELATIONS,
    SPECIAL,
    STEP,
    VOCABULARY,
    Tokens,
    _frequencies,
    _side,
    corpus,
    looking,
    measured,
    observation,
    plain,
    same,
    scored,
    scores_for,
    sums,
    tokenizer,
    tokens_of,
    total,
    value,
    writing,
)
from helpers.traces import _traces
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

import headroles as hr
from headroles.analysis.intervals import bootstrap_counts, bounds, rounded
from headroles.data.corpus import Corpus, Sentence
from headroles.models import batching
from headroles.models import heads as families
from headroles.models.head_model import HeadModel
from headroles.models.tokens.alignment import NO_WORD
from headroles.scores.accumulator import Accumulator
from headroles.scores.base import Observation, Score
from headroles.scores.patterns.confidence import Confidence
from headroles.scores.registry import DEFAULT, left_out, list_scores, named
from headroles.tables import frame

SHARES = {"share", "accuracy"}  # the first word of the docstring of a score whose every column is in [0, 1] ...
RANGES = {  # ... and the columns of which that does not say it
    "confidence": (0, 1),
    "sink[special]": (0, 1),
    "sink[first]": (0, 1),
    "position[offset]": (-2, 2),
    "alignment[monotone]": (-1, 1),
    "alignment[diagonal]": (0, 1),
    "distance": (0, math.inf),
    "entropy": (0, math.inf),
}
COUNTS = (".words",)  # what columns end in that say how many there were, 0 where there were none


# --- random attention, as batches of any shape ----------------------------------------------------------------------


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
    return [_row(rng, kind, many, *size) for size in draw(st.lists(sizes, min_size=1, max_size=4))]


def _row(rng, kind, many, query, key):
    keys = _tokens(rng, key)
    queries = _tokens(rng, query) if kind == "cross" else keys
    weights = np.exp(3 * rng.normal(size=(many, len(queries.ids), key)))
    weights = np.tril(weights) if kind == "dec-self" else weights
    return Row(kind, (weights / weights.sum(-1, keepdims=True)).astype(np.float32), queries, keys)


def _tokens(rng, length):
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
    return Tokens(ids, np.array(words), _sentence(rng, word + 1))


def _sentence(rng, size):
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
    return Observation(rows[0].kind, weights, queries, keys, *_frequencies())


# --- the suite ------------------------------------------------------------------------------------------------------


def split(score, rows, _, whole):
    """The sums of a batch are those of its parts."""
    for cut in range(1, len(rows)):
        parts = [sums(score, collate(part)) for part in (rows[:cut], rows[cut:])]
        same(whole, {name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def order(score, rows, _, whole):
    same(whole, {name: values.flip(0) for name, values in sums(score, collate(rows[::-1])).items()})


def padding(score, rows, _, whole):
    same(whole, sums(score, collate(rows, extra=3)))


def leading_dimensions(score, rows, observation, whole):
    """Resamples are finished together as each by itself."""
    weights = torch.from_numpy(np.random.default_rng(0).poisson(1.0, (2, 3, len(rows)))).double()
    heads_per_batch = score.compute(total(whole, weights))
    for i in np.ndindex(2, 3):
        same(
            {name: values[i] for name, values in heads_per_batch.items()},
            score.compute(total(whole, weights[i])),
        )
    assert all(values.shape == (2, 3, observation.weights.shape[1]) for values in heads_per_batch.values())


def purity(score, rows, observation, whole):
    """What is seen is not changed, and seen again is the same."""
    same(sums(score, observation), whole)
    before = collate(rows)
    for seen, fresh in ((observation, before), (observation.queries, before.queries), (observation.keys, before.keys)):
        for name in ("weights",) if seen is observation else ("ids", "content"):
            assert torch.equal(getattr(seen, name), getattr(fresh, name))


def columns(score, rows, _, whole):
    """Columns bear the score's name, are the same whatever is seen, and are float64."""
    found = score.compute(total(whole))
    alone = score.compute(total(sums(score, collate(rows[:1]))))
    assert list(found) == list(alone)
    assert all(re.fullmatch(rf"{score.name()}(\[[^\[\]]+\])?(\.\w+)?", name) for name in found)
    assert not any(name.endswith((".low", ".high")) for name in found)
    assert {values.dtype for values in found.values()} == {torch.float64}


def ranges(score, _, __, whole):
    share = (type(score).__doc__ or "").split()[0].lower() in SHARES
    for name, values in score.compute(total(whole)).items():
        low, high = RANGES.get(name, (0, 1) if share and not name.endswith(COUNTS) else (-math.inf, math.inf))
        there = values[~values.isnan()]
        assert ((there >= low - 1e-6) & (there <= high + 1e-6)).all(), (name, values)


def nothing_only_where_nothing_was(score, _, observation, whole):
    """NaN stands where there was nothing to do, for all heads alike, and is nowhere else; nothing is infinite."""
    found = score.compute(total(whole))
    lacking = any((values == 0).any() for values in total(score.denominators(observation)).values())
    for name, values in found.items():
        assert not values.isinf().any(), name
        assert not values.isnan().any() or (lacking and values.isnan().all()), name
    never = score.compute({name: 0 * values for name, values in total(whole).items()})
    for name, values in never.items():
        assert (values == 0).all() if name.endswith(COUNTS) else values.isnan().all(), name


SUITE = (split, order, padding, leading_dimensions, purity, columns, ranges, nothing_only_where_nothing_was)


def conform(score):
    """Run the suite on a score, for many batches of the kinds it is for."""

    @DETERMINISTIC
    @given(rows(score.kinds))
    def run(rows):
        observation = collate(rows)
        whole = sums(score, observation)
        for check in SUITE:
            check(score, rows, observation, whole)

    run()


@pytest.mark.parametrize("name", [name for name, cls in list_scores().items() if issubclass(cls, Score)])
def test_every_score_conforms(name):
    conform(list_scores()[name]())


# --- a score that a reader writes -----------------------------------------------------------------------------------


@pytest.fixture
def forgetting():
    """A class of scores is known as long as it lives; one made in a test must not be known in the next."""
    before = list(list_scores())
    yield
    gc.collect()
    assert list(list_scores()) == before


def untouched():
    """A new score, in fifteen lines."""

    @dataclass(frozen=True)
    class Untouched(Score):
        """Share of real keys that no real query looks at most."""

        def update(self, observation):
            top = observation.top[1][..., None] == torch.arange(
                observation.weights.shape[-1]
            )  # [batch, heads, query, key]
            touched = (top & observation.queries.content[:, None, :, None]).any(2)
            return {"rest": (observation.keys.content[:, None] & ~touched).sum(-1)}

        def denominators(self, observation):
            return {"keys": observation.keys.content.sum(-1, keepdim=True)}

        def compute(self, sums):
            return {"untouched": sums["rest"] / sums["keys"]}

    return Untouched


@pytest.mark.usefixtures("forgetting")
def test_a_new_score_is_one_like_any_other():
    new = untouched()
    conform(new())
    assert list_scores()["untouched"] is new
    table = hr.score(zoo.tiny("marian"), tokenizer(), corpus(), ["untouched", "confidence"], n_resamples=20)
    assert list(table) == [f"{name}{end}" for name in ("untouched", "confidence") for end in ("", ".low", ".high")]
    assert table.notna().all(axis=None)
    pd.testing.assert_frame_equal(
        hr.score(zoo.tiny("marian"), tokenizer(), corpus(), new(), n_resamples=20), table.filter(like="untouched")
    )


@pytest.mark.usefixtures("forgetting")
def test_no_new_score_takes_a_name_of_ours():
    ours = list_scores()["rarity"]
    own = type("Rarity", (Score,), {})
    assert own.name() == "rarity"
    assert list_scores()["rarity"] is ours


# --- exact numbers on attention made by hand ------------------------------------------------------------------------


BACK = looking([0, 0, 1, 2, 3])  # one back; the first token at itself
UNIFORM = torch.full((4, 4), 1 / 4)
EDGES = torch.full((6, 6), 1 / 6)  # with a special token at either end
nan = math.nan


@pytest.mark.parametrize(
    ("weights", "special", "expected"),
    [
        (BACK, (), {"position[-2]": 0, "position[-1]": 1, "position[0]": 1 / 5, "position[+1]": 0, "position[+2]": 0,
                    "position[best]": 1, "position[offset]": -1, "confidence": 1, "entropy": 0, "distance": 4 / 5,
                    "sink[special]": 0, "sink[first]": 2 / 5}),
        (torch.eye(5), (), {"position[-1]": 0, "position[0]": 1, "position[best]": 1, "position[offset]": 0,
                            "confidence": 1, "entropy": 0, "distance": 0, "sink[first]": 1 / 5}),
        (UNIFORM, (), {"confidence": 1 / 4, "entropy": math.log(4), "distance": 20 / 16, "sink[special]": 0,
                       "sink[first]": 1 / 4}),
        (EDGES, (0, 5), {"confidence": 1 / 6, "entropy": math.log(6), "distance": 20 / 16, "sink[special]": 2 / 6,
                         "sink[first]": 1 / 6}),
        # [CLS] a b [SEP]: one back from b is a; from a it is [CLS], which does not exist for the score
        (looking([0, 0, 1, 2]), (0, 3), {"position[-1]": 1, "position[0]": 0, "confidence": 1 / 2, "sink[special]":
                                         1 / 2, "sink[first]": 1 / 2, "distance": 1}),
        (looking([3, 3, 3, 3]), (0, 3), {"confidence": 0, "sink[special]": 1, "sink[first]": 0, "distance": nan}),
        (looking([0]), (), {"position[-1]": nan, "position[0]": 1, "position[+1]": nan, "position[best]": 1}),
        (looking([0, 1]), (0, 1), {"position[0]": nan, "position[best]": nan, "position[offset]": nan,
                                   "confidence": nan, "entropy": nan, "sink[first]": nan, "distance": nan}),
    ],
)  # fmt: skip
def test_numbers_of_self_attention(weights, special, expected):
    found = {}
    for name in {column.partition("[")[0] for column in expected}:
        found |= value(list_scores()[name](), observation(weights, special=special))
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_later_tokens_do_not_exist_in_a_decoder():
    weights = torch.tril(torch.ones(4, 4)) / torch.arange(1, 5)[:, None]
    found = value(named(["position"])[0], observation(weights, kind="dec-self"))
    expected = {"position[-2]": 1 / 2, "position[-1]": 1 / 3, "position[0]": 1 / 4, "position[+1]": nan}
    expected |= {"position[+2]": nan, "position[best]": 1 / 2, "position[offset]": -2}
    assert found == pytest.approx(expected, nan_ok=True)  # of equal weights the first is the largest


def test_a_head_that_looks_at_no_offset_has_a_best_one_of_nothing():
    found = value(named(["position"])[0], observation(looking([7, 7, 7, 7, 0, 0, 0, 0])))
    assert set(found.values()) == {0, -2}  # equal offsets: the first


def test_offsets_are_an_option():
    found = value(replace(named(["position"])[0], offsets=(-4, 0)), observation(BACK))
    assert found == {"position[-4]": 0, "position[0]": 1 / 5, "position[best]": 1 / 5, "position[offset]": 0}


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


# the words a b c d; b governs a and d, d governs c; c is written in two pieces, between [CLS] and [SEP]
TREE = Sentence("abcd", ((0, 1), (1, 2), (2, 3), (3, 4)), (1, -1, 3, 1), ("nsubj", "root", "amod", "obj"))
WORDS = [NO_WORD, 0, 1, 2, 2, 3, NO_WORD]


@pytest.mark.parametrize(
    ("places", "kind", "expected"),
    [
        # each token looks at the governor of its word
        ([0, 2, 0, 5, 5, 2, 0], "enc-self", {"nsubj dep>head": 1, "amod dep>head": 1, "obj dep>head": 1,
                                             "nsubj head>dep": 0, "advmod dep>head": nan}),
        # b looks at a, d at a piece of c: the governors find their dependents
        ([0, 0, 1, 0, 0, 4, 0], "enc-self", {"nsubj head>dep": 1, "amod head>dep": 1, "obj head>dep": 0}),
        # in a decoder only words before the query count: b sees a, d sees b and c; a does not see b
        ([0, 1, 1, 3, 4, 2, 2], "dec-self", {"nsubj head>dep": 1, "nsubj dep>head": nan, "obj dep>head": 1,
                                             "obj head>dep": nan, "amod head>dep": 0}),
    ],
)  # fmt: skip
def test_numbers_of_syntax(places, kind, expected):
    made = observation(looking(places), kind=kind, special=(0, 6), sentence=TREE, words=WORDS)
    found = value(named(["syntax"])[0], made)
    assert {name: found[f"syntax[{name}]"] for name in expected} == pytest.approx(expected, nan_ok=True)


def test_words_are_sums_of_keys_and_means_of_queries():
    """Two pieces that together weigh most are the largest word; two query pieces are heard equally."""
    score, weights = named(["syntax"])[0], torch.zeros(7, 7)
    weights[5] = torch.tensor([0, 0, 0.4, 0.3, 0.3, 0, 0])  # d: most on b alone, more on the two pieces of c
    weights[3], weights[4] = torch.eye(7)[1] * 0.6, torch.eye(7)[5] * 0.7  # c: a little more on d than on a
    found = value(score, observation(weights, special=(0, 6), sentence=TREE, words=WORDS))
    assert found["syntax[amod head>dep]"] == found["syntax[amod dep>head]"] == 1
    assert found["syntax[obj dep>head]"] == 0


def test_the_baseline_is_the_best_single_offset():
    score = named(["syntax"])[0]
    many = Sentence("abcdef", tuple((i, i + 1) for i in range(6)), (1, -1, 1, 4, 1, 1), ("x", "root", *4 * ["obj"]))
    found = value(score, observation(torch.eye(6), sentence=many, words=list(range(6))))
    # dependents 2, 4, 5 of 1 and 3 of 4: their offsets are -1, -3, -4 and +1
    assert found["syntax[obj dep>head].baseline"] == 1 / 4
    # governors 1 and 4 are right at +1 (2 of 1) and at -1 (3 of 4)
    assert found["syntax[obj head>dep].baseline"] == 1 / 2


@pytest.mark.parametrize(("apart", "found"), [(20, 1), (21, 0)])
def test_offsets_of_at_most_twenty_words_are_tried(apart, found):
    links = (apart, *[-1] * 21)
    far = Sentence("a" * 22, tuple((i, i + 1) for i in range(22)), links, ("obj", *["root"] * 21))
    told = value(named(["syntax"])[0], observation(torch.eye(22), sentence=far, words=list(range(22))))
    assert told["syntax[obj dep>head].baseline"] == told["syntax[obj head>dep].baseline"] == found
    assert told["syntax[obj dep>head].words"] == told["syntax[obj head>dep].words"] == 1


def test_the_first_word_may_govern():
    two = Sentence("ab", ((0, 1), (1, 2)), (-1, 0), ("root", "obj"))
    found = value(named(["syntax"])[0], observation(looking([1, 0]), sentence=two, words=[0, 1]))
    assert found["syntax[obj dep>head]"] == found["syntax[obj head>dep]"] == 1


def test_to_look_at_no_word_is_not_to_look_at_the_first():
    two = Sentence("ab", ((0, 1), (1, 2)), (-1, 0), ("root", "obj"))
    made = observation(looking([0, 0, 0]), special=(0,), sentence=two, words=[NO_WORD, 0, 1])
    assert value(named(["syntax"])[0], made)["syntax[obj dep>head]"] == 0


def test_subtypes_count_when_asked():
    passive = replace(TREE, relations=("nsubj:pass", "root", "amod", "obj"))
    made = observation(looking([0, 2, 0, 5, 5, 2, 0]), special=(0, 6), sentence=passive, words=WORDS)
    score = named(["syntax"])[0]
    assert math.isnan(value(score, made)["syntax[nsubj dep>head]"])
    assert value(replace(score, subtypes=True), made)["syntax[nsubj dep>head]"] == 1


def test_a_sentence_with_a_word_without_tokens_is_left_out():
    score = named(["syntax"])[0]
    lost = [NO_WORD if word == 0 else word for word in WORDS]
    made = observation(looking([0, 2, 0, 5, 5, 2, 0]), special=(0, 6), sentence=TREE, words=lost)
    for name, found in value(score, made).items():
        assert found == 0 if name.endswith(COUNTS) else math.isnan(found)


def test_unknown_and_repeated_scores_are_refused():
    for asked, message in [
        ("position-1", f"unknown score 'position-1'; known: {', '.join(list_scores())}"),
        (["sink", "nonsense"], f"unknown score 'nonsense'; known: {', '.join(list_scores())}"),
        (["sink", list_scores()["sink"]()], "duplicate score 'sink'; expected each score once"),
        ([], f"no score given; known: {', '.join(list_scores())}"),
        ([3], "unknown score: got 3; expected a name or an instance such as Position()"),
    ]:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            named(asked)


# --- adding up ------------------------------------------------------------------------------------------------------


def test_how_often_a_sentence_counts_depends_on_its_number_and_the_seed_alone():
    weights = bootstrap_counts(range(50), 400, 7)
    assert weights.shape == (401, 50)
    assert (weights[0] == 1).all()
    assert np.array_equal(bootstrap_counts([30, 4], 400, 7), weights[:, [30, 4]])
    assert np.array_equal(bootstrap_counts(range(50), 100, 7), weights[:101])
    assert not np.array_equal(bootstrap_counts(range(50), 400, 8), weights)
    assert bootstrap_counts([3], 0, 7).shape == (1, 1)
    assert weights[1:].mean() == pytest.approx(1, abs=0.03)
    assert weights[1:].var(ddof=1) == pytest.approx(1, abs=0.05)
    assert len(np.unique(weights[1:], axis=1).T) == 50


@pytest.mark.slow
@DETERMINISTIC
@given(rows(kinds=("enc-self",)), st.integers(0, 5))
def test_sums_over_batches_in_any_order_are_equal(rows, seed):
    scores = named(["confidence", "position", "syntax", "rarity"])
    index = frame.index({("enc-self", 0): rows[0].weights.shape[0]})

    def columns(groups):
        accumulator = Accumulator(scores, n_resamples=5, seed=seed)
        for group in groups:
            observation, weights = collate([rows[i] for i in group]), torch.from_numpy(bootstrap_counts(group, 5, seed))
            for score in scores:
                accumulator.add(score, ("enc-self", 0), score.update(observation), weights)
                accumulator.add_denominators(score, "enc-self", score.denominators(observation), weights)
        return {name: values for _, name, values, _ in accumulator.columns(index)}

    whole = columns([range(len(rows))])
    for name, values in columns([[i] for i in reversed(range(len(rows)))]).items():
        np.testing.assert_allclose(values, whole[name], atol=bound(1))
    plain = {}
    for score in scores:
        plain |= measured(score, collate(rows))
    for name, values in whole.items():
        np.testing.assert_allclose(values[:, 0], plain[name])


def test_resamples_keep_thirteen_bits():
    given = np.random.default_rng(0).normal(size=(4, 500)) * 10.0 ** np.arange(-2, 2)[:, None]
    kept = rounded(given)
    assert np.abs(kept / given - 1).max() <= 2**-13
    mantissas, _ = np.frexp(kept)
    assert np.array_equal(mantissas * 2**13, (mantissas * 2**13).round())
    assert np.isnan(rounded(np.array([np.nan])))[0]


@pytest.mark.parametrize(("n_resamples", "seed"), [(-1, 0), (0, -1), (5, 2**64)])
def test_what_resamples_cannot_be_drawn_by(n_resamples, seed):
    message = (
        f"bootstrap out of range: got n_resamples={n_resamples}, seed={seed}; expected n_resamples >= 0 and "
        f"0 <= seed < 2**64"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Accumulator([], n_resamples=n_resamples, seed=seed)
    Accumulator([], n_resamples=0, seed=2**64 - 1)


def test_bounds_leave_out_resamples_without_a_value():
    draws = np.array([np.arange(101.0), np.full(101, np.nan)])
    draws[0, :50] = np.nan
    low, high = bounds(draws)
    np.testing.assert_allclose(low, [51.25, np.nan])
    np.testing.assert_allclose(high, [98.75, np.nan])


# --- end to end -----------------------------------------------------------------------------------------------------
# The tokenizer knows letters: a word of n letters is n pieces.


FAMILIES = ["bert", "albert", "llama-grouped", "marian"]


IN_PARTS = [name for name, score in list_scores().items() if getattr(score, "in_parts", False)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marian", "llama-grouped", "t5"])
def test_the_table_is_the_same_for_texts_in_parts(name, monkeypatch):
    kinds = {site.kind for site in hr.attention_sites(zoo.tiny(name))}
    asked = [list_scores()[each]() for each in IN_PARTS if kinds & set(list_scores()[each].kinds)]
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


@pytest.mark.slow
def test_resamples_are_the_same_for_every_max_tokens():
    small, large = scored("marian", 64), scored("marian")
    pd.testing.assert_frame_equal(small, large, rtol=0, atol=bound(1))
    assert small.attrs["signatures"] == large.attrs["signatures"]
    for column in frame.resamples(large).draws:
        one, other = (frame.resamples(table).draws[column] for table in (small, large))
        np.testing.assert_allclose(one, other, rtol=2 * STEP, atol=bound(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["bert", "bloom", "marian", "t5", "fsmt"]
)  # places of tokens are counted each their way
def test_the_table_is_the_same_for_every_max_tokens_and_order(name):
    sentences = list(corpus())
    random.Random(0).shuffle(sentences)
    given, options = Corpus("letters", tuple(sentences)), {"n_resamples": 0, "max_tokens": 64}
    other = hr.score(zoo.tiny(name), tokens_of(name), given, scores_for(name), **options)
    pd.testing.assert_frame_equal(other, plain(scored(name)), rtol=0, atol=bound(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_scores_stand_where_they_are_for(name):
    """A column has values for all heads of the kinds of its score, and for no others."""
    table = scored(name)
    assert table.index.equals(families.head_index(zoo.tiny(name)))
    kinds = set(table.index.unique("kind"))
    scores = {column.partition("[")[0] for column in plain(table)}
    assert scores == {score for score in DEFAULT if kinds & set(list_scores()[score].kinds)}
    for column in plain(table):
        there = set(table.index[table[column].notna()].unique("kind"))
        mine = kinds & set(list_scores()[column.partition("[")[0]].kinds)
        later = column.startswith(("position[+", "syntax"))  # a decoder may have nothing to look for
        assert there == mine or (later and there == mine - {"dec-self"}), column
        assert all(table[column].isna().groupby("kind").nunique().eq(1))


def test_a_decoder_finds_only_earlier_words():
    """With trees that point forwards only, the governors of a decoder's words are never seen, the dependents are."""
    rows = tuple(
        replace(sentence, heads=(*range(1, size), -1), relations=(*["obj"] * (size - 1), "root"))
        for sentence in corpus(translated=False)
        if (size := len(sentence.spans))
    )
    for name in ("gpt2", "llama-grouped"):
        table = hr.score(zoo.tiny(name), tokens_of(name), Corpus("chains", rows), "syntax", n_resamples=0)
        assert table["syntax[obj dep>head]"].isna().all()
        assert table["syntax[obj head>dep]"].between(0, 1).all()
        assert (table["syntax[obj head>dep].baseline"] == 1).all()
    heads_found = hr.score(zoo.tiny("bert"), tokens_of("bert"), Corpus("chains", rows), "syntax", n_resamples=0)
    assert heads_found["syntax[obj dep>head]"].between(0, 1).all()


@pytest.fixture
def noticed():
    """What a score is shown of each kind, over all batches of a translation model."""
    before, shown = list(list_scores()), noticing()
    gc.collect()
    assert list(list_scores()) == before
    return shown


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


def test_a_decoder_reads_the_start_and_all_but_the_last_token_of_the_reference(noticed):
    texts = {"enc-self": [one.text for one in corpus()], "dec-self": [one.target.text for one in corpus()]}
    for kind, side in (("enc-self", "keys"), ("dec-self", "queries"), ("cross", "queries"), ("cross", "keys")):
        read = sorted(
            ids[mask].tolist()
            for view in (getattr(observed, side) for observed in noticed[kind][::2])  # of the two layers the first
            for ids, mask in zip(view.ids, view.attention_mask, strict=True)
        )
        of_source = side == "keys"
        written = [tokenizer()(text)["input_ids"] for text in texts["enc-self" if of_source else "dec-self"]]
        assert read == sorted(ids if of_source else [zoo.EOS, *ids[:-1]] for ids in written), (kind, side)


def test_every_token_is_known_by_its_word(noticed):
    for observed in (observed for kind in noticed for observed in noticed[kind]):
        for side in (observed.queries, observed.keys):
            for i, sentence in enumerate(side.sentences):
                owned = ["" for _ in sentence.spans]
                for token, word in zip(side.ids[i].tolist(), side.words[i].tolist(), strict=True):
                    if word != NO_WORD:
                        owned[word] += PIECES[token].removeprefix("##")
                assert owned == sentence.text.split()


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


def test_what_a_model_writes_ends_at_its_end():
    """Nothing after the end token was written; other sentences of the batch may go on."""
    model = writing("marian")
    model.final_logits_bias[0, zoo.EOS] = 1.5
    encoded = batching.encode(corpus(translated=False), tokenizer(), model)
    lengths = []
    for batch in batching.batches(encoded, model):
        for ids, present in zip(batch.target.ids.tolist(), batch.target.attention_mask.tolist(), strict=True):
            end = ids.index(zoo.EOS, 1) if zoo.EOS in ids[1:] else len(ids)
            assert present == [True] * end + [False] * (len(ids) - end)
            lengths.append(end)
    assert len(set(lengths)) > 2


def test_two_calls_of_one_module_are_two_layers():
    table = scored("albert")
    assert table.index.unique("layer").tolist() == [0, 1]
    assert not np.allclose(table.loc["enc-self", 0]["confidence"], table.loc["enc-self", 1]["confidence"])


@pytest.mark.slow
def test_a_decoder_is_forced_on_references_or_writes_its_own():
    name = "marian"
    model, sources = writing(name), corpus(12, translated=False)
    forced, greedy = (
        hr.score(model, tokens_of(name), given, scores_for(name), n_resamples=0) for given in (corpus(12), sources)
    )
    assert "|decoder:reference|" in frame.provenance(forced, "confidence")
    assert "|decoder:greedy|" in frame.provenance(greedy, "confidence")
    assert "decoder" not in frame.provenance(scored("bert"), "confidence")
    encoder = forced.loc["enc-self"]
    pd.testing.assert_frame_equal(greedy.loc["enc-self"], encoder, rtol=0, atol=bound(1))
    assert not np.allclose(greedy.loc["cross"]["confidence"], forced.loc["cross"]["confidence"])
    assert greedy.loc["dec-self"].filter(regex=r"^syntax\[[^.]*$").isna().all(axis=None)
    assert greedy["confidence"].between(0, 1).all()
    again = hr.score(model, tokens_of(name), sources, scores_for(name), n_resamples=0, max_tokens=40)
    pd.testing.assert_frame_equal(again, greedy, rtol=0, atol=bound(1))


def test_the_seed_changes_the_intervals_only():
    one, other = (
        scored("bert"),
        hr.score(zoo.tiny("bert"), tokens_of("bert"), corpus(), scores_for("bert"), n_resamples=50, seed=1),
    )
    pd.testing.assert_frame_equal(plain(other), plain(one), rtol=0, atol=0)
    assert not np.allclose(one["confidence.low"], other["confidence.low"])
    assert "|seed:0|" in frame.provenance(one, "confidence.low")
    assert "|seed:1|" in frame.provenance(other, "confidence.low")


def test_intervals_hold_the_estimate_and_are_narrower_for_larger_corpora():
    few, many = (hr.score(zoo.tiny("bert"), tokens_of("bert"), corpus(n), ["confidence", "position"], n_resamples=300)
                 for n in (20, 320))  # fmt: skip
    widths = []
    for table in (few, many):
        columns = [name for name in plain(table) if name not in ("position[best]", "position[offset]")]
        low, value, high = (table[[name + end for name in columns]].to_numpy() for end in (".low", "", ".high"))
        assert ((low <= value) & (value <= high)).mean() > 0.95
        widths.append((high - low).mean())
    assert widths[1] == pytest.approx(widths[0] / 4, rel=0.3)


def test_a_thousand_resamples_are_drawn_unless_others_are_asked_for():
    table = hr.score(zoo.tiny("bert"), tokens_of("bert"), corpus(3), "confidence")
    assert frame.resamples(table).draws["confidence"].shape[1] == 1000
    assert "|resamples:1000|" in frame.provenance(table, "confidence")


def test_without_resamples_there_are_no_intervals():
    table = hr.score(zoo.tiny("bert"), tokens_of("bert"), corpus(), "confidence", n_resamples=0)
    assert list(table) == ["confidence"]
    assert frame.resamples(table) is None


SHARES = ("position[+", "position[-", "position[0", "position[best", "syntax[", "rarity", "alignment[diagonal")


def test_resamples_are_those_the_intervals_are_of():
    table = scored("marian")
    draws_of = frame.resamples(table).draws
    assert set(plain(table)) - set(draws_of) == {name for name in table if name.endswith(".words")}
    for name, draws in draws_of.items():
        assert draws.shape == (len(table), 50)
        assert draws.dtype == np.float32
        if name.startswith(SHARES):
            inside = (table[f"{name}.low"] <= table[name]) & (table[name] <= table[f"{name}.high"])
            wide = table[f"{name}.high"] > table[f"{name}.low"]
            assert ((inside & wide) | table[name].isna()).all()
            continue
        low, high = bounds(draws)
        np.testing.assert_allclose(low, table[f"{name}.low"], rtol=STEP, atol=bound(1))
        np.testing.assert_allclose(high, table[f"{name}.high"], rtol=STEP, atol=bound(1))


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


def test_the_signature_says_what_was_measured():
    text = frame.provenance(scored("marian"), "position[-1]")
    fields = dict(field.partition(":")[::2] for field in text.split("|"))
    both = [one for sentence in corpus() for one in (sentence, sentence.target)]
    tokens = sum(len(tokenizer()(one.text)["input_ids"]) for one in both)
    assert fields["model"] == "MarianMTModel"
    assert re.fullmatch("[0-9a-f]{12}", fields["weights"])
    assert (fields["corpus"], fields["text"], fields["sentences"]) == ("letters", corpus().hash, "40")
    assert (fields["tokens"], fields["too_long"], fields["unaligned"]) == (str(tokens), "0", "0")
    assert fields["score"] == "Position(offsets=(-2, -1, 0, 1, 2))"
    assert (fields["resamples"], fields["seed"]) == ("50", "0")
    assert "shared" not in fields
    grouped = hr.score(zoo.tiny("llama-grouped"), tokens_of("llama-grouped"), corpus(3), "confidence", n_resamples=0)
    assert re.search(r"\|shared:[^|]+\|", frame.provenance(grouped, "confidence"))


@pytest.mark.parametrize("name", ["bert", "marian", "bloom"])
@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(name, training):
    model = zoo.tiny(name).train(training)
    next(model.base_model.children()).train(not training)  # each part has a mode of its own
    before = _traces(model)
    measured = hr.score(model, tokens_of(name), corpus(), "confidence", n_resamples=0)
    assert _traces(model) == before
    assert np.array_equal(measured["confidence"], scored(name)["confidence"])  # and was measured without dropout
    assert all(parameter.grad is None for parameter in model.parameters())


def test_sentences_too_long_are_left_out_and_counted(caplog):
    long = Corpus("letters", (Sentence("a " * 60), *corpus()))
    table = hr.score(zoo.tiny("bert"), tokens_of("bert"), long, "confidence", n_resamples=0)
    np.testing.assert_allclose(table["confidence"], scored("bert")["confidence"], atol=bound(1))
    assert "|sentences:40|too_long:1|" in frame.provenance(table, "confidence")
    assert caplog.messages == ["1 of 41 sentences left out: longer than 40 tokens"]


@pytest.mark.parametrize(
    ("name", "given", "scores", "message"),
    [
        ("bert", corpus(), "alignment", "score 'alignment' is for cross heads; the model has enc-self"),
        ("bert", corpus(trees=False), "syntax", "score 'syntax' needs dependency trees, and corpus 'letters' has none "
         "on the side of its enc-self heads; read CoNLL-U, or make trees with headroles.parse"),
        ("marian", corpus(trees=False), "syntax", "score 'syntax' needs dependency trees, and corpus 'letters' has "
         "none on the side of its dec-self or enc-self heads; read CoNLL-U, or make trees with headroles.parse"),
        ("bert", Corpus("nothing", ()), None, "corpus 'nothing' is empty"),
        ("bert", Corpus("long", (Sentence("a " * 60),) * 2), None, "corpus 'long' has no sentence of at most 40 "
         "tokens, as many as the model reads; split them"),
        ("bert", corpus(), "nonsense", "unknown score 'nonsense'; known: {known}"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_an_error(name, given, scores, message):
    message = message.format(known=", ".join(list_scores()))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        hr.score(zoo.tiny(name), tokens_of(name), given, scores)


@pytest.mark.parametrize(("parsed", "kind"), [("source", "enc-self"), ("target", "dec-self")])
def test_trees_of_some_sentences_on_one_side_will_do(parsed, kind):
    bare, trees = corpus(8, trees=False).sentences, corpus(8).sentences
    source, target = (trees[:4] + bare[4:] if side == parsed else bare for side in ("source", "target"))
    pairs = (replace(one, target=other.target) for one, other in zip(source, target, strict=True))
    table = hr.score(zoo.tiny("marian"), tokenizer(), Corpus("half", tuple(pairs)), "syntax", n_resamples=0)
    told = table.filter(regex=r"\]$").dropna(how="all")
    assert set(told.index.get_level_values("kind")) == {kind}


def test_trees_of_a_source_are_for_the_heads_of_the_encoder():
    model = zoo.tiny("marian")
    hr.remove_heads(model, [("enc-self", layer, head) for layer in (0, 1) for head in range(4)])
    pairs = (replace(one, target=other.target) for one, other in zip(corpus(4), corpus(4, trees=False), strict=True))
    with pytest.raises(ValueError, match="has none on the side of its dec-self heads; read CoNLL-U"):
        hr.score(model, tokenizer(), Corpus("half", tuple(pairs)), "syntax")


def test_a_model_without_heads_is_an_error():
    model = zoo.tiny("bert")
    hr.remove_heads(model, list(families.head_index(model)))
    for scores in (None, "confidence", "importance"):
        with pytest.raises(ValueError, match=r"^BertForMaskedLM has no heads left to measure$"):
            hr.score(model, tokens_of("bert"), corpus(4), scores)


def test_a_corpus_without_trees_has_every_score_but_syntax():
    table = hr.score(zoo.tiny("marian"), tokenizer(), corpus(trees=False), n_resamples=0)
    assert {name.partition("[")[0] for name in table} == set(DEFAULT) - {"syntax"}


def test_a_tokenizer_of_another_model_is_an_error():
    large = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 70, "<unk>": 0}, "<unk>")))
    message = (
        f"the tokenizer does not fit the model: {type(large).__name__} has tokens up to 70, BertForMaskedLM has "
        f"embeddings for 64; load both from one checkpoint"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        hr.score(zoo.tiny("bert"), large, Corpus("a", (Sentence("a"),)))


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


def test_an_example_that_is_not_finite_is_named():
    model, letters = zoo.tiny("gpt2"), tokens_of("gpt2")
    model.transformer.wte.weight.data[letters("d")["input_ids"][0]] = math.nan
    given = Corpus("some", tuple(map(Sentence, ("a b c", "c a", "c a d"))))
    with pytest.raises(ValueError, match=r"^the attention of dec-self layer 0 is not finite on sentence 3 of the"):
        hr.attention_examples(model, letters, given)


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, "dec-self") for name in ("gpt2", "bloom", "marian")]
    + [(name, "enc-self") for name in ("bert", "marian")]
    + [("marian", "cross")],
)
def test_the_attention_of_one_head_is_the_models_own(name, kind):
    model, sentence = zoo.tiny(name), corpus()[0]
    found = hr.attention_matrix(model, tokens_of(name), sentence, (kind, 1, 2))
    batch = next(batching.batches(batching.encode(corpus()[:1], tokens_of(name), model), model))
    own = own_attentions(model, batch.inputs)[kind, 1][0, 2]
    np.testing.assert_allclose(found, own, atol=bound(1))
    sides = [batch.queries(kind).ids[0], batch.keys(kind).ids[0]]
    assert [list(found.index), list(found.columns)] == [[PIECES[i] for i in ids] for ids in sides]


def test_the_attention_of_a_bare_text():
    model = writing("marian").train()
    found = hr.attention_matrix(model, tokenizer(), "ab c", ("enc-self", 0, 0))
    assert list(found.columns) == ["a", "##b", "c", "</s>"]
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=bound(1))
    assert model.training
    assert hr.attention_matrix(model, tokenizer(), "ab c", ("cross", 0, 0)).index[0] == "</s>"  # the decoder's start
    half = hr.attention_matrix(model.bfloat16(), tokenizer(), "ab c", ("enc-self", 0, 0))
    np.testing.assert_allclose(half, found, atol=0.02)


def test_attention_of_one_head_that_is_not_finite_is_an_error():
    model = zoo.tiny("bert")
    model.bert.encoder.layer[1].attention.self.query.weight.data[0, 0] = math.nan
    message = (
        "the attention of ('enc-self', 1, 0) is not finite; look for NaN or infinite weights in BertForMaskedLM: "
        "1 of 1,024 in bert.encoder.layer.1.attention.self.query.weight"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        hr.attention_matrix(model, tokens_of("bert"), "ab c", ("enc-self", 1, 0))
    assert hr.attention_matrix(model, tokens_of("bert"), "ab c", ("enc-self", 0, 0)).notna().all(axis=None)


def test_what_attention_refuses():
    for sentence, head, message in [
        ("a", ("cross", 0, 0), "no head ('cross', 0, 0) in BertForMaskedLM, which has enc-self 2 layers of 4 heads"),
        (
            "a " * 60,
            ("enc-self", 0, 0),
            "corpus 'one sentence' has no sentence of at most 40 tokens, as many as the model reads; split them",
        ),
    ]:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            hr.attention_matrix(zoo.tiny("bert"), tokens_of("bert"), sentence, head)


def test_the_reason_for_a_score_that_is_left_out_is_what_its_corpus_lacked():
    model, tokenizer = zoo.tiny("bert"), tokens_of("bert")
    table = hr.score(model, tokenizer, corpus(3), ["confidence"], n_resamples=0)
    reasons = left_out(table, ["confidence", "syntax", "rarity"])
    assert reasons == {
        "syntax": "the corpus has no dependency trees; read CoNLL-U, or make trees with headroles parse",
        "rarity": "the corpus is a stream; read it whole, or give a reference corpus for token counts",
    }
