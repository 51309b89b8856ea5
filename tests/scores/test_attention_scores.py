"""Scores of a query's weights: numbers made by hand and plain loops; patterns as scores."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import scipy.stats
import torch
from helpers.letters import looking, observation, value

import headroles as hr
from headroles.patterns import First, Induction, Offset, Pattern, Rarest
from headroles.scores.attention_scores import Confidence, Distance, Entropy, Previous, Resting, Sink
from headroles.scores.registry import list_scores, named
from headroles.testing.case import Case


@pytest.mark.parametrize("kind", ["enc-self", "dec-self"])
@pytest.mark.parametrize("special", [(), (0, 5), (2,)])
def test_numbers_of_random_weights_are_those_of_plain_loops(kind, special):
    """Of content queries: the largest weight on content, the entropy, the mass on special tokens and on the first."""
    weights = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
    weights = (weights.tril() if kind == "dec-self" else weights) + torch.eye(6)
    weights = weights / weights.sum(-1, keepdim=True)
    content = [place for place in range(6) if place not in special]
    sums, far, mass = dict.fromkeys(("confidence", "entropy", "sink[special]", "sink[first]"), 0.0), 0.0, 0.0
    for query in content:
        row = weights[query].tolist()
        sums["confidence"] += max(row[key] for key in content)
        sums["entropy"] += scipy.stats.entropy(row)
        sums["sink[special]"] += sum(row[key] for key in special)
        sums["sink[first]"] += row[0]
        far += sum(abs(query - key) * row[key] for key in content)
        mass += sum(row[key] for key in content)
    seen, found = observation(weights, kind=kind, special=special), {}
    for score in (Confidence(), Entropy(), Sink(), Distance()):
        found |= value(score, seen)
    means = {name: number / len(content) for name, number in sums.items()}
    assert found == pytest.approx(means | {"distance": far / mass}, rel=1e-6)


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


def test_numbers_of_the_token_before():
    assert value(Previous(), observation(looking([0, 0, 1, 2]))) == {"previous": 1}
    assert value(Previous(), observation(torch.eye(4))) == {"previous": 0}
    assert value(Previous(), observation(torch.full((4, 4), 1 / 4), special=(1,))) == {"previous": 1 / 4}


@pytest.mark.parametrize(
    ("kind", "special", "least", "resting"),
    [
        ("dec-self", (), 0.01, 1 / 3),  # of the last three: the first token can do nothing else
        ("dec-self", (), 0.15, 2 / 3),
        ("dec-self", (0,), 0.15, 2 / 3),  # a special first token is no query anyway
        ("enc-self", (), 0.01, 2 / 4),  # in an encoder the first token could look ahead
        ("enc-self", (2,), 0.15, 2 / 3),  # .08 is left of the third row, which is of a special token, and asks nothing
    ],
)
def test_numbers(kind, special, least, resting):
    rows = [[1, 0, 0, 0], [0.995, 0.005, 0, 0], [0.9, 0.08, 0.02, 0], [0.2, 0.4, 0, 0.4]]
    assert value(Resting(least=least), observation(rows, kind=kind, special=special)) == {
        "resting": pytest.approx(resting)
    }


def test_the_bound_itself_is_enough():
    assert value(Resting(least=0.25), observation([[1, 0], [0.75, 0.25]], kind="dec-self")) == {"resting": 0}


@dataclass(frozen=True)
class Second(Pattern):
    """The second token."""

    def targets(self, observation):
        """Return weight 1 on the second token, from the third on."""
        targets = torch.zeros(
            len(observation.keys.ids), observation.queries.ids.shape[1], observation.keys.ids.shape[1]
        )
        targets[:, 2:, 1] = 1
        return targets


@pytest.fixture(scope="module")
def case():
    return Case(hr.tiny_model("llama"))


def test_a_measured_pattern_is_the_score_of_the_same_name(case):
    scores = ["position", "rarity", "induction", "sink", Offset(-1), Rarest(), Rarest(0), Induction(), First()]
    twice = hr.Corpus.of([" ".join(dict.fromkeys(text.text.split())) for text in case.corpus])
    twice = hr.Corpus.of([f"{text.text} {text.text}" for text in twice])
    table = hr.score(case.model, case.tokenizer, twice, scores, n_resamples=0)
    assert table["induction"].gt(0).all()
    assert table["pattern[offset=-1 share]"].equals(table["position[-1]"])
    for pattern, score in (("induction", "induction"), ("first", "sink[first]")):
        np.testing.assert_allclose(table[f"pattern[{pattern} mass]"], table[score], rtol=1e-6)


def test_a_pattern_of_ones_own_is_measured_and_imposed(case):
    table = hr.score(case.model, case.tokenizer, case.corpus, [Second()], n_resamples=20)
    hits, mass, count = 0, 0, 0
    for sentence in case.corpus:
        ids = torch.tensor([[int(word) for word in sentence.text.split()]])
        with torch.no_grad():
            attention = torch.cat(case.eager(ids, output_attentions=True).attentions)  # [layer, head, query, key]
        hits = hits + (attention[:, :, 2:].argmax(-1) == 1).sum(-1)
        mass = mass + attention[:, :, 2:, 1].sum(-1)
        count += ids.shape[1] - 2
    for part, sums in (("share", hits), ("mass", mass)):
        values = torch.tensor(table[f"pattern[second {part}]"].to_numpy())
        torch.testing.assert_close(values, (sums / count).flatten().double(), rtol=1e-5, atol=1e-7)
        assert (table[f"pattern[second {part}].low"] <= table[f"pattern[second {part}].high"]).all()
    effects = hr.ablate(case.model, case.tokenizer, case.corpus, replacement=Second(), n_resamples=0)
    assert list(effects)[0] == "ablation[loss second]"
    assert effects.iloc[:, 0].abs().max() > 1e-3


@dataclass(frozen=True)
class Deeper(Pattern):
    """The token as many places before as the number of the layer says, and one more for odd heads."""

    def targets(self, observation):
        """Return weight 1 on that token."""
        batch, heads, queries, keys = observation.weights.shape
        targets = torch.zeros(batch, heads, queries, keys)
        for head in range(heads):
            back = observation.layer + 1 + head % 2
            for row, place in enumerate(observation.places.tolist()):
                if place >= back:
                    targets[:, head, row, place - back] = 1
        return targets


@pytest.mark.parametrize("cells", [2**22, 64])
@pytest.mark.parametrize("pattern", [First(), Deeper()])
def test_queries_count_that_see_a_target_in_their_layer(pattern, cells, monkeypatch):
    """Layers 0 and 2 of this Gemma have a window of 4 tokens."""
    monkeypatch.setattr("headroles.models.heads.CELLS", cells)
    case = Case(hr.tiny_model("gemma3_text"))
    windows = [kind == "sliding_attention" for kind in case.model.config.layer_types]
    assert {*windows} == {True, False}
    width, words = case.model.config.sliding_window, " ".join(text.text for text in case.corpus).split()
    corpus = hr.Corpus.of([" ".join(words[:15]), " ".join(words[5:17])])
    assert width < 12
    table = hr.score(case.model, case.tokenizer, corpus, [pattern], n_resamples=0)
    hits, counts = (torch.zeros(len(windows), case.model.config.num_attention_heads) for _ in range(2))
    for sentence in corpus:
        ids = case.ids(sentence)
        with torch.no_grad():
            attention = case.eager(ids, output_attentions=True).attentions
        for layer, weights in enumerate(attention):
            for head in range(weights.shape[1]):
                back = layer + 1 + head % 2
                for place in range(ids.shape[1]):
                    target = 0 if pattern == First() else place - back
                    if target >= 0 and not (windows[layer] and place - target >= width):
                        hits[layer, head] += weights[0, head, place].argmax() == target
                        counts[layer, head] += 1
    found = torch.tensor(table[f"pattern[{pattern.label} share]"].to_numpy())
    torch.testing.assert_close(found, (hits / counts).flatten().double(), rtol=1e-6, atol=0, equal_nan=True)
