"""Measured patterns: equal to the scores of the same patterns, and to a slow loop."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import headroles as hr
from headroles.patterns import First, Induction, Offset, Pattern, Rarest
from headroles.scores import Measured
from headroles.testing.case import Case


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
    torch.testing.assert_close(
        torch.tensor(table["pattern[induction mass]"].to_numpy()), torch.tensor(table["induction"].to_numpy()),
        rtol=1e-6, atol=0,
    )  # fmt: skip
    torch.testing.assert_close(
        torch.tensor(table["pattern[first mass]"].to_numpy()), torch.tensor(table["sink[first]"].to_numpy()),
        rtol=1e-6, atol=0,
    )  # fmt: skip


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


def test_norms_and_repeated_labels(case):
    table = hr.score(case.model, case.tokenizer, case.corpus, [Measured(Offset(-1), weights="norm")], n_resamples=0)
    assert "pattern-norm[offset=-1 share]" in table
    with pytest.raises(ValueError, match=r"^duplicate score 'pattern\[offset=-1\]'; expected each score once$"):
        hr.score(case.model, case.tokenizer, case.corpus, [Offset(-1), Measured(Offset(-1))], n_resamples=0)


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
