"""What has no number is an error, or is said."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.letters import tokens_of

import headroles as hr
from headroles.data.corpus import Corpus
from headroles.scores.accumulator import Accumulator


@pytest.mark.parametrize("texts", [("", ""), ("</s>", "")])
def test_a_corpus_of_empty_sentences_is_an_error(texts):
    message = (
        "corpus 'texts' has nothing to measure: every score of every head would be NaN; got 0 content tokens (neither "
        "padding nor special) in its source; expected some; try a corpus of whole sentences"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        hr.score(zoo.tiny("bert"), tokens_of("bert"), Corpus.of(texts), n_resamples=2)


def test_single_words_have_no_neighbours_and_that_is_said(caplog):
    hr.score(zoo.tiny("bert"), tokens_of("bert"), Corpus.of(["a", "b"]), ["position", "confidence"], n_resamples=0)
    names = ", ".join(f"position[{d}]" for d in ("-2", "-1", "+1", "+2"))
    reason = "no sentence of the corpus has anything to measure it on"
    assert caplog.messages == [f"{names} of enc-self heads are NaN: {reason}"]


def test_totals_are_those_of_every_sum_of_every_batch():
    """Batches of two blocks of queries; two of them have one more sum, once in another order."""
    random = np.random.default_rng(0)
    score, accumulator = hr.list_scores()["distance"](), Accumulator([], n_resamples=3, seed=0)
    expected = {}
    for names in (["far", "mass"], ["far", "mass"], ["far", "mass", "more"], ["more", "mass", "far"], ["far", "mass"]):
        weights = random.integers(0, 3, (4, 5)).astype(float)  # [1 + resamples, batch]
        for layer, _ in [(layer, block) for layer in range(2) for block in range(2)]:
            sums = {name: random.normal(size=(5, 3)) for name in names}
            accumulator.add(score, ("enc-self", layer), {name: torch.from_numpy(each) for name, each in sums.items()})
            for name, each in sums.items():
                expected[layer, name] = expected.get((layer, name), 0) + weights @ each
        accumulator.add_denominators(score, "enc-self", {"queries": torch.ones(5, 1)})
        expected["queries"] = expected.get("queries", 0) + weights @ np.ones((5, 1))
        accumulator.weigh(torch.from_numpy(weights))
    for layer in range(2):
        for name, totals in accumulator.sums["enc-self", layer]["distance"].items():
            np.testing.assert_allclose(totals, expected[layer, name], rtol=1e-12)
    np.testing.assert_array_equal(accumulator.denominators["enc-self"]["distance"]["queries"], expected["queries"])
