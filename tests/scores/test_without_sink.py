"""Scores without the sink: plain loops, blocks of queries, padding on the left, dependencies, studies and refusals."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import zoo
from helpers.close import bound
from helpers.letters import corpus, looking, observation, sums, tokens_of, value
from reference import attention as by_hand
from reference import without_sink as slow

import headroles as hr
from headroles.patterns import First, Offset
from headroles.scores.attention_scores import Measured, Position, Resting
from headroles.scores.content_scores import Syntax
from headroles.scores.registry import list_scores
from headroles.tables import frame

SELF = ("confidence", "entropy", "position", "distance", "previous")
SCORES = {
    "bert": SELF,
    "gpt2": (*SELF, "induction", "duplicate"),
    "llama-grouped": (*SELF, "induction", "duplicate"),
    "mistral": (*SELF, "induction", "duplicate"),  # windows of four tokens: later queries do not see the first
    "marian": (*SELF, "induction", "duplicate", "alignment"),
}


def without(names, least):
    classes = list_scores()
    return [Resting(least=least), *(classes[name](weights="nosink", least=least) for name in names)]


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("least", [0.01, 0.75])  # heads without training rest rarely: with .75 many queries leave
def test_every_number_is_that_of_plain_loops(name, least):
    model, tokenizer, sentences = zoo.tiny(name), tokens_of(name), corpus(12)
    found = hr.score(model, tokenizer, sentences, without(SCORES[name], least), n_resamples=0)
    expected = slow.scores(model, tokenizer, sentences, least)
    assert sorted(found.index) == sorted(expected)
    for head, columns in expected.items():
        assert len(columns) >= 3
        for column, number in columns.items():
            assert found.loc[head, column] == pytest.approx(number, abs=bound(1)), (head, column)
    assert least < 0.5 or len({columns["resting"] for columns in expected.values()}) > 4  # others leave in other heads


@pytest.mark.parametrize("score", ["confidence", "position", "entropy", "distance", "previous", "duplicate", "resting"])
def test_padding_on_the_left_changes_nothing(score):
    """The sink is the first token that is not padding."""
    weights = torch.rand(6, 6, generator=torch.Generator().manual_seed(0)).tril() + torch.eye(6)
    seen = observation(weights / weights.sum(-1, keepdim=True), kind="dec-self", ids=[4, 5, 4, 6, 5, 4])
    keys, wide = _padded(seen.keys), torch.nn.functional.pad(seen.weights, (2, 0, 2, 0))
    padded = replace(seen, weights=wide, queries=keys, keys=keys)
    instance = list_scores()[score](**({} if score == "resting" else {"weights": "nosink"}))
    both = [one if score == "resting" else one.without_sink() for one in (seen, padded)]
    assert value(instance, both[1]) == pytest.approx(value(instance, both[0]), nan_ok=True)


def _padded(view):
    def pad(part, number):
        return torch.nn.functional.pad(part, (2, 0), value=number)

    content, mask = (pad(part, False) for part in (view.content, view.attention_mask))
    return replace(view, ids=pad(view.ids, 1), content=content, attention_mask=mask, words=pad(view.words, -1), kept={})


def test_a_head_that_rests_on_most_tokens_has_the_numbers_of_the_others():
    rows = [[1, 0, 0, 0], [0.995, 0, 0.005, 0], [0.9, 0.08, 0.02, 0], [0.2, 0, 0.8, 0]]
    seen = observation(rows, kind="dec-self")
    assert value(Resting(), seen) == {"resting": pytest.approx(1 / 3)}  # the first token can do nothing else
    off = seen.without_sink()
    assert off.counted[0, 0].tolist() == [False, False, True, True]
    assert value(list_scores()["confidence"](weights="nosink"), off) == {"confidence": pytest.approx((0.8 + 1) / 2)}
    found = value(Position(weights="nosink"), off)
    assert found["position[-1]"] == 1  # of both; the token before the second is the sink, which is no key
    assert found["position[-2]"] == 0


# --- dependencies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "least"), [("bert", 0.01), ("bert", 0.75), ("gpt2", 0.75)])
def test_dependencies_are_those_of_plain_loops(name, least):
    model, tokenizer, sentences = zoo.tiny(name), tokens_of(name), corpus(30)
    found = hr.score(model, tokenizer, sentences, Syntax(weights="nosink", least=least), n_resamples=0)
    model.set_attn_implementation("eager")
    hits, words, offsets = Counter(), Counter(), Counter()
    for one in (by_hand.encode(sentence, tokenizer) for sentence in sentences):
        with torch.no_grad():
            layers = model(input_ids=torch.tensor([one.ids]), output_attentions=True).attentions
        for layer, weights in enumerate(layers):
            for head, rows in enumerate(weights[0].double().tolist()):
                _add_dependencies((layer, head), rows, one, least, name == "gpt2", hits, words, offsets)
    model.set_attn_implementation("sdpa")
    assert len(words) > 40
    for (layer, head, column), number in words.items():
        row = found.xs((layer, head), level=("layer", "head")).iloc[0]
        best = max(offsets[layer, head, column, offset] for offset in range(-20, 21))
        assert row[f"{column}.words"] == number
        assert row[column] == pytest.approx(hits[layer, head, column] / number)
        assert row[f"{column}.baseline"] == pytest.approx(best / number)


def _add_dependencies(at, rows, one, least, causal, hits, words, offsets):
    keys = [key for key in one.real if key > 0]
    left = {query: sum(rows[query][key] for key in keys) for query in one.real if not (causal and query == 0)}
    counted = {query for query in left if left[query] >= least}
    for name, queries in one.asked.items():
        column = name.replace("syntax", "syntax-nosink")
        for word, partners in queries:
            able = {other for other in partners if set(one.words[other]) & set(keys) and (other < word or not causal)}
            pieces = [query for query in one.words[word] if query in counted]
            if not able or not pieces:
                continue
            words[*at, column] += 1
            for other in able:
                offsets[*at, column, other - word] += 1
            on = [sum(rows[q][k] / left[q] for q in pieces for k in own if k in keys) for own in one.words]
            hits[*at, column] += on.index(max(on)) in able and max(on) > 0


# --- the table -------------------------------------------------------------------------------------------------------


def test_with_and_without_it_are_measured_in_one_pass():
    model, tokenizer = zoo.tiny("gpt2"), tokens_of("gpt2")
    names, options = ["confidence", "sink", "position"], {"n_resamples": 20, "max_tokens": 40}
    usual = hr.score(model, tokenizer, corpus(8), names, **options)
    forwards = []
    hook = model.transformer.wte.register_forward_hook(lambda *call: forwards.append(call[1][0].shape))
    hr.score(model, tokenizer, corpus(8), names, **options)
    alone = len(forwards)
    both = hr.score(model, tokenizer, corpus(8), names, without_sink=True, **options)
    hook.remove()
    assert alone > 2
    assert forwards[alone:] == forwards[:alone]
    pd.testing.assert_frame_equal(frame.only(both, list(usual)), usual)
    added = [name for name in both if name not in usual]
    assert {name.partition("[")[0].partition(".")[0] for name in added} == {
        *("resting", "confidence-nosink", "position-nosink")
    }
    text = frame.provenance(both, "confidence-nosink.low")
    assert text.endswith("|score:Confidence(weights='nosink', least=0.01)")
    assert frame.provenance(both, "resting").endswith("|score:Resting(least=0.01)")


@pytest.mark.slow
def test_a_study_keeps_both_and_the_roles_of_both(tmp_path):
    model, tokenizer = zoo.tiny("gpt2"), tokens_of("gpt2")
    options = {"n_resamples": 2, "study": hr.Study(tmp_path)}
    usual = hr.score(model, tokenizer, corpus(4), without_sink=False, **options)
    both = hr.score(model, tokenizer, corpus(4), without_sink=True, **options)
    assert {"induction-nosink", "duplicate-nosink", "resting"} <= {*both} - {*usual}
    assert hr.score(model, tokenizer, corpus(4), without_sink=False, **options).columns.equals(usual.columns)
    assert {"induction", "induction-nosink"} <= {*hr.roles(hr.Study(tmp_path))}


def test_by_norm_and_without_the_sink_go_together():
    table = hr.score(
        zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(4), "confidence", weights="norm", without_sink=True, n_resamples=0
    )
    assert list(table) == ["confidence-norm", "resting", "confidence-nosink"]
    plain = hr.score(zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(4), "confidence", without_sink=True, n_resamples=0)
    assert np.array_equal(table["confidence-nosink"], plain["confidence-nosink"])


def test_a_pattern_of_the_sink_never_applies_without_it():
    seen = observation(looking([0, 0, 1, 2]), kind="dec-self").without_sink()
    assert math.isnan(value(Measured(First(), weights="nosink"), seen)["pattern[first share]"])
    assert value(Measured(Offset(-1), weights="nosink"), seen)["pattern[offset=-1 share]"] == 1
    assert sums(Measured(Offset(-1), weights="nosink"), seen)["queries"].tolist() == [[2]]


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_score_that_counts_queries_which_have_left_is_refused():
    @dataclass(frozen=True)
    class Naive(hr.Score):
        def update(self, seen):
            return {"top": seen.over_queries(seen.top[0])}

        def denominators(self, seen):
            return {"queries": seen.queries.content.sum(-1, keepdim=True)}

        def compute(self, sums):
            return {"naive": sums["top"] / sums["queries"]}

    with pytest.raises(ValueError, match="queries of score 'naive' must be counted for each of 4 heads, got 1"):
        hr.score(zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(4), Naive(), without_sink=True, n_resamples=0)
    del Naive
