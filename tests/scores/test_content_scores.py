"""Scores of what is attended to: numbers made by hand, and slow loops over the models' own attention."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from importlib.metadata import version

import numpy as np
import pytest
import torch
from helpers import letters, zoo
from helpers.attentions import own_attentions
from helpers.close import close
from helpers.letters import (
    corpus,
    looking,
    observation,
    tokenizer,
    tokens_of,
    value,
    with_needles,
    with_repeats,
)

import headroles as hr
from headroles.data.corpus import Corpus, Sentence, Tokens
from headroles.data.probes import Needle
from headroles.models import heads as families
from headroles.models.batching import TokenView
from headroles.models.tokens.alignment import NO_WORD
from headroles.scores.base import Observation
from headroles.scores.content_scores import Alignment, Duplicate, Induction, Links, Rarity
from headroles.scores.registry import list_scores, named
from headroles.scores.retrieval import Retrieval
from headroles.tables import frame

RARE = Rarity(frequent=5)
NO_TARGET = "has no target side to count the decoder's tokens in; try a reference= with translations"


def slow_rarity(model, text):
    """Of each decoder self-attention head, from the model's own output and its own attention: sentence by sentence."""
    found = letters.batches_of(model, tokenizer(), text, max_tokens=1)
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
    found = hr.score(model, tokenizer(), letters.bare(12), RARE, n_resamples=0, max_tokens=64)["rarity"]["dec-self"]
    expected = slow_rarity(model, letters.bare(12))
    np.testing.assert_allclose(found.to_numpy().reshape(2, 4), expected, rtol=1e-6)
    assert found.between(0.01, 0.99).any()


def _talkative():
    """A model whose greedy output is of several tokens, not the same for all sentences."""
    model = zoo.tiny("marian")
    model.generation_config.no_repeat_ngram_size, model.generation_config.max_new_tokens = 1, 6
    return model


@pytest.mark.parametrize("greedy", [True, False])
def test_a_reference_without_targets_gives_no_number_for_a_decoder(greedy, caplog):
    model, given = zoo.tiny("marian"), letters.bare(6) if greedy else corpus(6, trees=False)
    table = hr.score(model, tokenizer(), given, [RARE, "confidence"], n_resamples=0, reference=letters.bare())
    assert table["rarity"]["dec-self"].isna().all()
    assert table["rarity"][["enc-self", "cross"]].notna().all()
    assert caplog.messages == [f"rarity of dec-self heads is NaN: reference 'bare' {NO_TARGET}"]
    caplog.clear()
    table = hr.score(model, tokenizer(), given, [RARE, "confidence"], n_resamples=0, reference=corpus())
    assert table["rarity"].notna().all()
    assert caplog.messages == []


def test_a_reference_without_words_gives_no_number_for_an_encoder(caplog):
    given = zoo.tiny("bert"), tokens_of("bert"), corpus(6, trees=False, translated=False)
    table = hr.score(*given, [RARE], n_resamples=0, reference=Corpus("blank", (Sentence(" "),)))
    assert table["rarity"].isna().all()
    reason = "reference 'blank' has no content tokens to count; try reference= with a corpus of whole sentences"
    assert caplog.messages == [f"rarity of enc-self heads is NaN: {reason}"]


def test_rarity_of_counts_of_nothing_is_nothing():
    one = observation(looking([0, 1, 2]), ids=[600, 700, 800])
    assert value(Rarity(), one)["rarity"] == pytest.approx(1 / 3)
    assert np.isnan(value(Rarity(), replace(one, counts=torch.zeros(letters.VOCABULARY, dtype=torch.long)))["rarity"])


def test_a_token_that_does_not_occur_is_not_frequent():
    """A reference of few different tokens left all others of low ids among its most frequent."""
    given, few = (zoo.tiny("bert"), tokens_of("bert"), corpus(8)), Corpus("few", (Sentence("a a a"),))
    rarity = hr.score(*given, Rarity(frequent=zoo.VOCABULARY), reference=few, n_resamples=0)
    assert rarity.notna().all(axis=None)


def test_a_small_corpus_without_a_rare_token_says_so(caplog):
    reason = (
        "in no sentence is the rarest token outside the most frequent ones (500 by default) of the corpus they are "
        "counted in, where frames of sound are none; try a larger one: reference=, or a smaller Rarity(frequent=...)"
    )
    texts, names = corpus(8, trees=False, translated=False), (None, ["rarity", "confidence"])
    for scores in names:  # that nobody asked for is said by `left_out` alone
        table = hr.score(zoo.tiny("bert"), tokens_of("bert"), texts, scores, n_resamples=0)
        assert table["rarity"].isna().all()
        assert table["confidence"].notna().all()
        assert hr.scores.left_out(table, scores)["rarity of enc-self heads is NaN"] == reason
        assert caplog.messages == [f"rarity of enc-self heads is NaN: {reason}"] * (scores is not None)
    table = hr.score(zoo.tiny("llama"), tokens_of("llama-grouped"), texts, "position", n_resamples=0)
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


def test_frequencies_can_be_those_of_another_corpus():
    model = zoo.tiny("bert")
    options = {"n_resamples": 0, "scores": [list_scores()["rarity"](frequent=10), "confidence"]}
    own = hr.score(model, tokens_of("bert"), corpus(), **options)
    other = Corpus("backwards", (Sentence(letters.LETTERS[::-1]), Sentence("x y z")))
    there = hr.score(model, tokens_of("bert"), corpus(), **options, reference=other)
    assert not np.allclose(own["rarity"], there["rarity"])
    assert np.array_equal(own["confidence"], there["confidence"])
    assert f"|frequencies:self|headroles:{version('headroles')}|" in frame.provenance(own, "rarity")
    assert f"|frequencies:backwards-{other.hash}|" in frame.provenance(there, "rarity")


SCORES = ["induction", "duplicate"]


def test_a_token_right_after_itself_does_not_copy_itself():
    made = observation(torch.eye(3), kind="dec-self", ids=[10, 10, 11])  # each looks at itself
    assert value(Induction(), made) == {"induction": 0}
    assert value(Duplicate(), made) == {"duplicate": 0}
    back = observation(looking([0, 0, 1, 2]), kind="dec-self", ids=[10, 10, 10, 11])  # one back
    assert value(Induction(), back) == {"induction": 1 / 2}
    assert value(Duplicate(), back) == {"duplicate": 1}


def test_the_scores_are_those_of_slow_loops():
    model, tokenizer, twice = with_repeats()
    found = hr.score(model, tokenizer, twice, SCORES, n_resamples=0)
    model.set_attn_implementation("eager")
    sums = {name: np.zeros(len(found)) for name in SCORES}
    count = 0
    for sentence in twice:
        with torch.no_grad():
            layers = model(torch.tensor([sentence.ids]), output_attentions=True).attentions
        attention = torch.cat([layer[0] for layer in layers]).double().numpy()  # [heads of all layers, query, key]
        special = {*tokenizer.all_special_ids}
        for i, token in enumerate(sentence.ids):
            before = [j for j in range(i) if sentence.ids[j] == token]
            if token in special or not before:
                continue
            count += 1
            for j in before:
                sums["duplicate"] += attention[:, i, j]
                sums["induction"] += attention[:, i, j + 1] if j + 1 < i else 0
    for name in SCORES:
        np.testing.assert_allclose(found[name], sums[name] / count, rtol=1e-5)


def test_without_a_repeated_token_both_scores_are_nan_and_the_log_says_why(caplog):
    model, tokenizer, twice = with_repeats()
    once = hr.Corpus("once", tuple(Tokens("", ids=sentence.ids[:6]) for sentence in twice))
    found = hr.score(model, tokenizer, once, SCORES, n_resamples=10)
    assert found[SCORES].isna().all(axis=None)
    assert [message.split(" of dec-self")[0] for message in caplog.messages] == SCORES


@pytest.mark.slow
def test_a_study_of_a_decoder_has_them_without_asking_and_one_of_an_encoder_has_not(tmp_path):
    for name, expected in (("gpt2", True), ("bert", False)):
        model = zoo.tiny(name)
        study = hr.Study(tmp_path / name)
        table = hr.score(model, tokens_of(model), corpus(3), n_resamples=20, study=study)
        assert ({*SCORES} <= {*table.columns}) == expected
        if expected:
            assert "corpus:repeated" in frame.provenance(table, "induction")
            assert "corpus:repeated" not in frame.provenance(table, "confidence")
            assert {"induction", "duplicate"} <= {*hr.roles(table).columns}


def planted(sentence: Needle, places) -> Observation:
    ids = torch.tensor([sentence.ids])
    yes = torch.ones_like(ids, dtype=torch.bool)
    side = TokenView(ids, yes, yes, torch.full_like(ids, -1), (sentence,))
    return Observation("dec-self", looking(places)[None, None], side, side, torch.ones(99), torch.arange(99))


def test_a_head_that_looks_at_the_next_token_of_the_needle_retrieves_and_no_other():
    sentence = Needle("", ids=(9, 4, 5, 6, 9, 9, 4, 5, 6), needle=1, answer=6, size=3)
    still = list(range(9))
    copying = [*still[:6], 2, 3, 8]
    assert value(Retrieval(), planted(sentence, copying)) == {"retrieval": 1}
    assert value(Retrieval(), planted(sentence, [*still[:6], 2, 0, 8])) == {"retrieval": 1 / 2}
    assert value(Retrieval(), planted(sentence, [*still[:6], 1, 2, 3])) == {"retrieval": 0}  # a duplicate-token head
    assert value(Retrieval(), planted(sentence, still)) == {"retrieval": 0}
    nothing = planted(sentence, copying)
    nothing.weights.zero_()
    assert value(Retrieval(), nothing) == {"retrieval": 0}


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped", "mistral"])
def test_retrieval_and_previous_are_those_of_slow_loops(name, monkeypatch):
    model, tokenizer, hidden = with_needles(name)
    found = hr.score(model, tokenizer, hidden, ["retrieval", "previous"], n_resamples=20)
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    hits, count, weight, follow = 0, 0, 0, 0
    for sentence in hidden:
        with torch.no_grad():
            layers = model(torch.tensor([sentence.ids]), output_attentions=True).attentions
        attention = torch.cat([layer[0] for layer in layers]).double().numpy()  # [heads of all layers, query, key]
        for step in range(3):
            row = attention[:, sentence.answer + step]
            hits = hits + (row.argmax(-1) == sentence.needle + step + 1)
            count += 1
        for i in range(1, len(sentence.ids)):
            if not {sentence.ids[i], sentence.ids[i - 1]} & {*tokenizer.all_special_ids}:
                weight = weight + attention[:, i, i - 1]
                follow += 1
    model.set_attn_implementation(own)
    close(found["retrieval"], hits / count)
    close(found["previous"], weight / follow)
    assert (found["retrieval.low"] <= found["retrieval"]).all()
    assert (found["retrieval"] <= found["retrieval.high"]).all()
    if name == "mistral":  # its window of four tokens ends before the needle
        far = hr.score(model, tokenizer, hidden[:5], "retrieval", n_resamples=0)
        assert (far["retrieval"].to_numpy() == 0).all()
    else:
        assert found["retrieval"].to_numpy().max() > 0
    monkeypatch.setattr(families, "CELLS", 60)
    parts = hr.score(model, tokenizer, hidden, ["retrieval", "previous"], n_resamples=0)
    np.testing.assert_allclose(parts["retrieval"], found["retrieval"])
    np.testing.assert_allclose(parts["previous"], found["previous"], rtol=1e-5)


def test_without_needles_retrieval_is_nan_and_the_log_says_why(caplog):
    model, tokenizer, _ = with_needles()
    assert hr.score(model, tokenizer, corpus(3, translated=False), "retrieval", n_resamples=0)["retrieval"].isna().all()
    assert caplog.messages[0].endswith(f"is NaN: {Retrieval.missing}")


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


def test_the_first_word_may_govern_and_to_look_at_no_word_is_not_to_look_at_it():
    two = Sentence("ab", ((0, 1), (1, 2)), (-1, 0), ("root", "obj"))
    found = value(named(["syntax"])[0], observation(looking([1, 0]), sentence=two, words=[0, 1]))
    assert found["syntax[obj dep>head]"] == found["syntax[obj head>dep]"] == 1
    made = observation(looking([0, 0, 0]), special=(0,), sentence=two, words=[NO_WORD, 0, 1])
    assert value(named(["syntax"])[0], made)["syntax[obj dep>head]"] == 0


def test_subtypes_count_when_asked():
    passive = replace(TREE, relations=("nsubj:pass", "root", "amod", "obj"))
    made = observation(looking([0, 2, 0, 5, 5, 2, 0]), special=(0, 6), sentence=passive, words=WORDS)
    score = named(["syntax"])[0]
    assert math.isnan(value(score, made)["syntax[nsubj dep>head]"])
    assert value(replace(score, subtypes=True), made)["syntax[nsubj dep>head]"] == 1


@pytest.mark.parametrize("lost", [[NO_WORD, NO_WORD, *WORDS[2:]], WORDS], ids=["no token", "a special token"])
def test_pairs_with_a_word_without_tokens_of_its_text_are_left_out(lost):
    special = (0, 6) if lost != WORDS else (0, 1, 6)  # such as a [MASK] in the text
    made = observation(looking([0, 2, 1, 5, 5, 2, 0]), special=special, sentence=TREE, words=lost)
    found = value(named(["syntax"])[0], made)
    assert found["syntax[nsubj dep>head].words"] == found["syntax[nsubj head>dep].words"] == 0  # of a and b
    assert found["syntax[amod dep>head].words"] == found["syntax[obj dep>head].words"] == 1
    assert found["syntax[amod dep>head]"] == found["syntax[obj dep>head]"] == 1
    assert np.isnan(found["syntax[nsubj dep>head]"])  # whatever its tokens look at
    assert np.isnan(found["syntax[nsubj head>dep]"])


# --- end to end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("parsed", "kind"), [("source", "enc-self"), ("target", "dec-self")])
def test_trees_of_some_sentences_on_one_side_will_do(parsed, kind):
    bare, trees = corpus(8, trees=False).sentences, corpus(8).sentences
    source, target = (trees[:4] + bare[4:] if side == parsed else bare for side in ("source", "target"))
    pairs = (replace(one, target=other.target) for one, other in zip(source, target, strict=True))
    table = hr.score(zoo.tiny("marian"), tokenizer(), Corpus("half", tuple(pairs)), "syntax", n_resamples=0)
    told = table.filter(regex=r"\]$").dropna(how="all")
    assert set(told.index.get_level_values("kind")) == {kind}


@pytest.mark.parametrize("target", [2, 4, 7, 12, 50, 59])
def test_the_borders_of_the_diagonal_are_exact(target):
    """A border that falls on a token was decided by how float32 rounds it."""
    for source in (1, 2, 3, 5, 8, 13, 20, 30, 38, 44, 59):
        centres = [Fraction(step * (source - 1), target - 1) for step in range(target)]
        expected = [sum(abs(place - centre) <= 1 for centre in centres) for place in range(source)]
        weights = torch.eye(source)[:, None].expand(source, target, source)  # head i looks at place i
        found = Alignment().update(replace(observation(weights[0], kind="cross"), weights=weights[None]))["near"]
        assert found.tolist() == [expected], source


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
    return hr.score(zoo.tiny("marian"), tokenizer(), letters.linked(), n_resamples=20)


@torch.no_grad()
@pytest.mark.parametrize(("weights", "step_read"), [("attention", "read"), ("nosink", "read"), ("attention", "next")])
def test_links_are_those_of_a_loop_over_the_model_s_own_attention(scores, weights, step_read):
    """Word by word from the output of transformers: the decoder reads the target one place after it predicts it."""
    model, tokens = zoo.tiny("marian"), tokenizer()
    if weights == "nosink":
        scores = hr.score(model, tokens, letters.linked(), [Links(weights="nosink")], n_resamples=20)
        scores = scores.rename(columns=lambda name: name.replace("-nosink", ""))
    if step_read == "next":
        scores = hr.score(model, tokens, letters.linked(), [Links(), Links(at="next")], n_resamples=20)
        scores = scores.filter(like="[next]").rename(columns=lambda name: name.replace("[next]", ""))
    sink = int(weights == "nosink")  # the first token is no key
    model.set_attn_implementation("eager")
    hits, near, queries = torch.zeros(2, 4), 0, 0
    for pair in letters.linked():
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
                    hits[layer, head] += (
                        sink + int(of_layer[0, head, step + (step_read == "read"), sink : len(words)].argmax()) in right
                    )
    cross = scores.xs("cross")
    assert queries >= 50
    assert cross["links"].tolist() == pytest.approx((hits.flatten() / queries).tolist())
    assert cross["links.baseline"].tolist() == pytest.approx([near / queries] * 8)
    assert scores.drop("cross", level="kind")["links"].isna().all()
    assert (cross["links.low"] <= cross["links"]).all()
    assert (cross["links"] <= cross["links.high"]).all()


@torch.no_grad()
@pytest.mark.parametrize("step_read", ["read", "next"])
def test_links_of_a_language_model_are_those_of_a_loop_over_pairs_in_one_text(step_read):
    model, tokens, pairs = zoo.tiny("gpt2"), tokens_of("gpt2"), letters.linked().joined(" ")
    found = hr.score(model, tokens, pairs, [Links(at=step_read)], n_resamples=0).to_numpy()
    model.set_attn_implementation("eager")
    hits, near, queries = torch.zeros(2, 4), 0, 0
    for pair, (before, after) in zip(pairs, ((one.spans, one.target.spans) for one in letters.linked()), strict=True):
        encoded = tokens(pair.text, return_offsets_mapping=True)
        place_of = {place: word for word, span in enumerate(pair.spans) for place in range(*span)}
        words = [place_of.get(start) for start, _ in encoded["offset_mapping"]]
        assert len(pair.spans) == len(before) + len(after)
        attention = model(torch.tensor([encoded["input_ids"]]), output_attentions=True).attentions
        sources, targets = ([link[side] for link in pair.links] for side in (0, 1))
        for place, word in enumerate(words):
            right = [key for key, other in enumerate(words) if word is not None and (other, word) in pair.links]
            step = place - (step_read == "next")
            if not right:
                continue
            queries += 1
            share = Fraction((word - min(targets)) * (max(sources) - min(sources)), max(1, max(targets) - min(targets)))
            near += words.index(min(sources) + math.floor(share + Fraction(1, 2))) in right
            for layer, of_layer in enumerate(attention):
                real = [key for key in range(step + 1) if words[key] is not None]
                for head in range(4):
                    hits[layer, head] += real[int(of_layer[0, head, step, real].argmax())] in right
    assert queries >= 50
    assert found[:, 0] == pytest.approx((hits.flatten() / queries).tolist())
    assert found[:, 1] == pytest.approx([near / queries] * 8)


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
