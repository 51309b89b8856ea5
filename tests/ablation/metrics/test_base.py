"""Metrics add over any split of a corpus, are known by name, and have the values of plain formulas."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import zoo
from helpers.ablations import sweep
from helpers.letters import DETERMINISTIC, corpus, tokens_of, writing
from helpers.metrics import choosing, read
from helpers.objectives import in_one, output
from helpers.sweeps import by_token, inputs_of
from hypothesis import given
from hypothesis import strategies as st
from transformers.modeling_outputs import SequenceClassifierOutput

from headroles.ablation.metrics import BLEU, METRICS, Agreement, Loss, Metric, Of, Perplexity, as_metric
from headroles.data.corpus import Corpus, Sentence
from headroles.scores.objectives import OBJECTIVES, ClassLogit


def test_objectives_are_metrics_by_name_and_as_they_are():
    names = ("top", "reference", "class", "similarity")
    assert set(OBJECTIVES) - set(METRICS) == set(names)
    for name in names:
        assert as_metric(name) == Of(OBJECTIVES[name]())
        assert as_metric(name).name == name
    inputs_of = Of(ClassLogit(of="label"))
    assert as_metric(ClassLogit(of="label")) == inputs_of
    assert as_metric(inputs_of) is inputs_of
    assert {as_metric("loss"), as_metric("agreement")} <= set(METRICS.values())
    assert repr(as_metric("class")) != repr(inputs_of)  # by which files of a sweep are known


def test_top_is_the_mean_of_the_largest_logits():
    found = sweep(*inputs_of("gpt2"), [], as_metric("top"))
    largest = by_token(
        inputs_of("gpt2")[0], "gpt2", lambda logits, _: logits[:, [0, *range(2, zoo.VOCABULARY)]].amax(-1)
    )
    assert found.metric.compute(found.intact.sum(0)) == pytest.approx(float(largest.mean()), rel=1e-6)
    assert found.intact[:, 1].sum() == len(largest)


MEANS = [Loss(), Perplexity(), Agreement()]
BY_NAME = {"ids": lambda one: one.name if isinstance(one, Metric) else None}


# --- means ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_the_loss_is_of_all_tokens_and_perplexity_its_exponential(name):
    model = zoo.tiny(name)
    (batch,) = in_one(model, name, corpus(6))
    logits = output(model, batch).logits
    labels = batch.labels
    if labels is None:  # the token that comes next, which the last one lacks
        ids = batch.inputs["input_ids"].masked_fill(batch.inputs["attention_mask"] == 0, -100)
        logits, labels = logits[:, :-1], ids[:, 1:]
    expected = float(F.cross_entropy(logits.flatten(0, 1).double(), labels.flatten()))
    found = {one.name: one.compute(statistics(one, name).sum(0)) for one in MEANS}
    assert found == pytest.approx({"loss": expected, "perplexity": np.exp(expected), "agreement": 1}, rel=1e-5)


@cache
def statistics(one, name):
    """Of each example of a batch of six: [example, statistic]."""
    reading, answer, batch = answered(one, name)
    return reading(answer, batch)


@cache
def answered(one, name="marian"):
    """What reads a metric, what a model put out or wrote, and the batch it is of."""
    model, text = writing(name), corpus(6)
    if one.sentences == 2:
        labelled = (replace(sentence, label=("good", "bad")[row % 2]) for row, sentence in enumerate(text))
        text = Corpus("pairs", tuple(labelled))
    (batch,) = in_one(model, name, text)
    made = output(model, batch)
    if one.generates:
        inputs = {key: batch.inputs[key] for key in ("input_ids", "attention_mask")}
        made = model.generate(**inputs, num_beams=1, do_sample=False)
    return read(one, model, tokens_of(name), text, [batch]), made, batch


# --- all of them ----------------------------------------------------------------------------------------------------


def answered_by_kind(one):
    """The same of a classifier, for metrics of classes and of scores."""
    if one.name not in ("accuracy", "f1", "matthews", "pearson", "spearman"):
        return answered(one)
    classes = 1 if one.name in ("pearson", "spearman") else 3
    text = Corpus("labels", tuple(Sentence("a b", label=label) for label in "021120"))
    (batch,) = in_one(choosing(classes), "bert", text)
    logits = torch.randn(6, classes, generator=torch.manual_seed(0))
    reading = read(one, choosing(classes), tokens_of("bert"), text, [batch])
    return reading, SequenceClassifierOutput(logits=logits), batch


def some(made, rows):
    """The rows of what a model put out or wrote."""
    return made[rows] if torch.is_tensor(made) else type(made)(logits=made.logits[rows])


@pytest.mark.slow
@pytest.mark.parametrize("one", METRICS.values(), **BY_NAME)
@DETERMINISTIC
@given(order=st.permutations(range(6)), cuts=st.sets(st.integers(1, 5)))
def test_statistics_add_over_any_split_of_a_corpus(one, order, cuts):
    reading, made, batch = answered_by_kind(one)
    parts = [torch.tensor(part) for part in np.split(order, sorted(cuts))]
    found = np.concatenate([reading(some(made, rows), batch.take(rows)) for rows in parts])
    np.testing.assert_allclose(found, reading(made, batch)[order], rtol=1e-6)
    sums = sum(reading(some(made, rows), batch.take(rows)).sum(0) for rows in parts)
    assert one.compute(sums) == pytest.approx(float(one.compute(found.sum(0))))


@pytest.mark.parametrize("one", METRICS.values(), **BY_NAME)
def test_many_sums_at_once_have_the_values_they_have_alone(one):
    reading, made, batch = answered_by_kind(one)
    weights = np.random.default_rng(0).poisson(1, (2, 3, 6)) + np.eye(6)[0]
    sums = weights @ reading(made, batch)
    found = one.compute(sums)
    assert found.shape == (2, 3)
    assert found.dtype == np.float64
    expected = [[float(one.compute(each)) for each in row] for row in sums]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_metric_is_known_by_its_name_and_says_whether_less_is_better_and_what_it_reads():
    assert {name: type(one).__name__ for name, one in METRICS.items()} == {
        "loss": "Loss", "perplexity": "Perplexity", "agreement": "Agreement", "accuracy": "Accuracy", "f1": "F1",
        "matthews": "Matthews", "bleu": "BLEU", "chrf": "ChrF", "pair_accuracy": "PairAccuracy",
        "pair_difference": "PairDifference", "pearson": "Pearson", "spearman": "Spearman",
        "wer": "WER",
    }  # fmt: skip
    for name, one in METRICS.items():
        assert as_metric(name) is one
        assert one.name == name
    given = BLEU(beams=4)
    assert as_metric(given) is given
    assert {name for name, one in METRICS.items() if one.better == -1} == {"loss", "perplexity", "wer"}
    assert {name for name, one in METRICS.items() if one.generates} == {"bleu", "chrf", "wer"}
    # a sweep that goes on in another process knows its metric by its repr
    assert [repr(type(one)()) for one in METRICS.values()] == [repr(one) for one in METRICS.values()]
    assert repr(BLEU(2)) != repr(BLEU(1))
