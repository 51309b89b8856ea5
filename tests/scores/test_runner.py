"""Scores of a corpus end to end: batches, resamples, provenance, and odd input."""

from __future__ import annotations

import random
import re
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import planted, zoo
from helpers.attending import collate, rows
from helpers.close import bound
from helpers.errors import given_corpus, planted_scores
from helpers.letters import DETERMINISTIC, STEP, corpus, measured, plain, scored, scores_for, tokens_of, writing
from helpers.syncs import per_batch
from helpers.traces import _traces
from hypothesis import given
from hypothesis import strategies as st

import headroles as hr
from headroles.analysis.intervals import bootstrap_counts, bounds, rounded
from headroles.data.corpus import Corpus, Sentence
from headroles.models import heads
from headroles.scores.accumulator import Accumulator
from headroles.scores.registry import named
from headroles.tables import frame

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
                accumulator.add(score, ("enc-self", 0), score.update(observation))
                accumulator.add(score, "enc-self", score.denominators(observation))
            accumulator.weigh(weights)
        return {name: values for _, name, values, _ in accumulator.columns(index, index)}

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


def test_bounds_leave_out_resamples_without_a_value():
    draws = np.array([np.arange(101.0), np.full(101, np.nan)])
    draws[0, :50] = np.nan
    low, high = bounds(draws)
    np.testing.assert_allclose(low, [51.25, np.nan])
    np.testing.assert_allclose(high, [98.75, np.nan])


# --- end to end -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_resamples_are_the_same_for_every_max_tokens():
    small, large = scored("marian", 64), scored("marian")
    pd.testing.assert_frame_equal(small, large, rtol=0, atol=bound(1))
    assert small.attrs["signatures"] == large.attrs["signatures"]
    for column in frame.resamples(large):
        one, other = (frame.resamples(table)[column] for table in (small, large))
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


VARIANTS = {  # model, scores
    "norm": ("marian", [*named(["confidence", "sink", "entropy", "alignment"], "norm")]),
    "norm in blocks": ("gpt2", [*named(["confidence", "position", "entropy", "sink", "induction"], "norm")]),
    "without the sink": ("marian", [*named(["confidence", "entropy", "position", "alignment"], without_sink=True)]),
    "without the sink in blocks": ("mistral", [*named(["confidence", "distance", "previous"], without_sink=True)]),
    "direct": ("gpt2", [hr.Direct()]),
    "integrated gradients": ("bert", [hr.Attribution()]),
    "feature ablation": ("bert", [hr.Attribution("FeatureAblation")]),
    **{f"patching {node} {replacement}": ("marian", [
           hr.AttributionPatching(node, replacement=replacement, objective="loss")])
       for node, replacement in (("output", "zero"), ("output", "resample"), ("key", "resample"))},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_numbers_of_a_text_do_not_depend_on_its_batch_or_blocks(variant, monkeypatch):
    name, scores = VARIANTS[variant]
    given = zoo.tiny(name), tokens_of(name), corpus(6), scores
    together = hr.score(*given, n_resamples=0)
    monkeypatch.setattr("headroles.models.heads.CELLS", 100 if "blocks" in variant else heads.CELLS)
    alone = hr.score(*given, n_resamples=0, max_tokens=1)
    pd.testing.assert_frame_equal(alone, together, rtol=1e-5, atol=1e-5)


def test_a_decoder_reads_the_start_and_all_but_the_last_token_of_the_reference(noticed):
    texts = {"enc-self": [one.text for one in corpus()], "dec-self": [one.target.text for one in corpus()]}
    for kind, side in (("enc-self", "keys"), ("dec-self", "queries"), ("cross", "queries"), ("cross", "keys")):
        read = sorted(
            ids[mask].tolist()
            for view in (getattr(observed, side) for observed in noticed[kind][::2])  # of the two layers the first
            for ids, mask in zip(view.ids, view.attention_mask, strict=True)
        )
        of_source = side == "keys"
        written = [tokens_of("marian")(text)["input_ids"] for text in texts["enc-self" if of_source else "dec-self"]]
        assert read == sorted(ids if of_source else [zoo.EOS, *ids[:-1]] for ids in written), (kind, side)


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
    one, given = scored("bert"), (zoo.tiny("bert"), tokens_of("bert"), corpus())
    other = hr.score(*given, scores_for("bert"), n_resamples=50, seed=1)
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


def test_without_resamples_there_are_no_intervals():
    table = hr.score(zoo.tiny("bert"), tokens_of("bert"), corpus(), "confidence", n_resamples=0)
    assert list(table) == ["confidence"]
    assert frame.resamples(table) == {}


BOUNDED = ("position[+", "position[-", "position[0", "position[best", "syntax[", "rarity", "alignment[diagonal")


def test_resamples_are_those_the_intervals_are_of():
    table = scored("marian")
    draws_of = frame.resamples(table)
    assert set(plain(table)) - set(draws_of) == {name for name in table if name.endswith(".words")}
    for name, draws in draws_of.items():
        assert draws.shape == (len(table), 50)
        assert draws.dtype == np.float32
        if name.startswith(BOUNDED):
            inside = (table[f"{name}.low"] <= table[name]) & (table[name] <= table[f"{name}.high"])
            wide = table[f"{name}.high"] > table[f"{name}.low"]
            assert ((inside & wide) | table[name].isna()).all()
            continue
        low, high = bounds(draws)
        np.testing.assert_allclose(low, table[f"{name}.low"], rtol=STEP, atol=bound(1))
        np.testing.assert_allclose(high, table[f"{name}.high"], rtol=STEP, atol=bound(1))


def test_the_signature_says_what_was_measured():
    text = frame.provenance(scored("marian"), "position[-1]")
    fields = dict(field.partition(":")[::2] for field in text.split("|"))
    both = [one for sentence in corpus() for one in (sentence, sentence.target)]
    tokens = sum(len(tokens_of("marian")(one.text)["input_ids"]) for one in both)
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


ONE = Sentence("the a .")
LONG = Sentence("the " * planted.POSITIONS)  # [CLS] and [SEP] are two more


def test_sentences_that_are_too_long_are_left_out_counted_and_said_once(caplog):
    table = planted_scores(given_corpus(ONE, LONG, ONE, LONG))
    assert [message for message in caplog.messages if "left out" in message] == [
        "2 of 4 sentences left out: longer than 32 tokens"
    ]
    pd.testing.assert_frame_equal(frame.bare(table), frame.bare(planted_scores(given_corpus(ONE, ONE))))
    signatures = [frame.provenance(table, column).split("|") for column in table]
    assert all({"sentences:2", "too_long:2", "tokens:10"} <= set(fields) for fields in signatures)
    fits = Sentence("the " * (planted.POSITIONS - 2))
    assert "too_long:0" in frame.provenance(planted_scores(given_corpus(fits)), "confidence").split("|")


def test_sentences_of_special_tokens_alone_change_nothing():
    some = planted.corpus().sentences[:20]
    table = planted_scores(given_corpus(*some))
    again = planted_scores(given_corpus(Sentence(""), *some, Sentence(" ")))
    pd.testing.assert_frame_equal(frame.bare(again), frame.bare(table), rtol=0, atol=bound(1))
    assert table["confidence"].notna().all()


@pytest.mark.parametrize("text", ["the", "\0", "the \0 a", "😀", "the 😀 a .", "the\u2028a", "\ufeffthe"])
def test_scores_of_the_oddest_sentences_are_numbers_or_not_there(text):
    table = planted_scores(given_corpus(Sentence(text)), n_resamples=3)
    values = table.to_numpy(dtype=float)
    assert not np.isinf(values).any()
    assert table["confidence"].between(0, 1).all()
    assert table["position[0]"].between(0, 1).all()


@pytest.mark.parametrize("scores", [["confidence", "position", "rarity"], ["confidence-nosink"], ["importance"]])
@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_the_host_looks_at_numbers_once_a_batch(name, scores):
    model, tokenizer = zoo.tiny(name).eval(), tokens_of(name)
    options = {"without_sink": True} if "nosink" in scores[0] else {}
    scores = [score.removesuffix("-nosink") for score in scores]
    run = partial(hr.score, model, tokenizer, scores=scores, max_tokens=1, n_resamples=2, **options)
    assert sum(per_batch(run, corpus(2), corpus(5)).values()) <= 3
