"""Examples of which a model has no number: they are named, and are no examples of a test."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers import zoo
from helpers.letters import tokens_of

import headroles as hr
from headroles.ablation.example_stats import ExampleStats
from headroles.ablation.metrics import METRICS
from headroles.ablation.significance import effects
from headroles.data.corpus import Corpus, Sentence

TEXTS = ("a b c d", "b d a", "d c b a c", "c c a b")
SINGLE = ("a", "d", "b")  # of one token each: a decoder predicts from the second token on


@pytest.fixture(scope="module")
def model():
    return zoo.tiny("gpt2")


def corpus(*texts):
    return Corpus("texts", tuple(map(Sentence, texts)))


@pytest.mark.parametrize("options", [{}, {"precision": 1.1}, {"metric": "perplexity"}, {"metric": "agreement"}])
def test_texts_of_one_token_are_no_examples_of_a_decoder(model, options, caplog):
    tables = [
        hr.ablate(model, tokens_of("gpt2"), corpus(*texts), n_resamples=50, **options)
        for texts in (TEXTS, TEXTS + SINGLE)
    ]
    ends = (".p", ".low", ".high", "]", ".examples")
    with_single, without = (table[[name for name in table if name.endswith(ends)]] for table in reversed(tables))
    name = options.get("metric", "loss")
    assert f"{name}: nothing to measure in example 5, 6, 7 of 7, which are left out" in caplog.text
    pd.testing.assert_frame_equal(with_single, without, rtol=1e-4, check_exact=False)


def test_p_is_that_of_the_examples_with_a_number():
    """Two changes of one sign have p of at least 1/2, however many examples have none."""
    intact = np.array([[2.0, 1.0], [3.0, 1.0], *[[0.0, 0.0]] * 6])
    masked = {frozenset({("dec-self", 0, 0)}): intact + [[1.0, 0.0], [1.5, 0.0], *[[0.0, 0.0]] * 6]}
    stats = ExampleStats(intact, masked, list(range(8)), 0, METRICS["loss"])
    assert effects(stats, n_resamples=0).columns[".p"] == pytest.approx(0.5)
    assert len(stats.measured().numbers) == 2
