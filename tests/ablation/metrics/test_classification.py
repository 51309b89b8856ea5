"""Metrics of choices are those of textbooks."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from helpers.letters import DETERMINISTIC, tokens_of
from helpers.metrics import choosing, read
from helpers.objectives import in_one
from hypothesis import example, given
from hypothesis import strategies as st
from transformers.modeling_outputs import SequenceClassifierOutput

from headroles.ablation.metrics import F1, Accuracy, Matthews, Metric
from headroles.data.corpus import Corpus, Sentence

CLASSIFIERS = [Accuracy(), F1(), Matthews()]
BY_NAME = {"ids": lambda one: one.name if isinstance(one, Metric) else None}


def chosen(one, classes, pairs):
    """The statistics of a metric of pairs of a choice and a label: [example, statistic]."""
    text = Corpus("labels", tuple(Sentence("a b", label=str(label)) for _, label in pairs))
    (batch,) = in_one(choosing(classes), "bert", text)
    choices = torch.tensor([pairs[number][0] for number in batch.numbers])
    logits = F.one_hot(choices, classes) * 2.0 - torch.rand(len(pairs), classes, generator=torch.manual_seed(0))
    made = SequenceClassifierOutput(logits=logits)
    return read(one, choosing(classes), tokens_of("bert"), text, [batch])(made, batch)[np.argsort(batch.numbers)]


def accuracy(choices, labels, _):
    return np.mean(choices == labels)


def f1(choices, labels, classes):
    """The harmonic mean of precision and recall of the last class; 0 where none of it is right."""
    right = np.sum((choices == classes - 1) & (labels == classes - 1))
    if not right:
        return 0
    precision, recall = right / np.sum(choices == classes - 1), right / np.sum(labels == classes - 1)
    return 2 * precision * recall / (precision + recall)


def matthews(choices, labels, classes):
    """Covariances summed over classes (Gorodkin 2004, equation 8)."""
    one, other = np.eye(classes)[choices], np.eye(classes)[labels]
    one, other = one - one.mean(0), other - other.mean(0)
    spread = np.sqrt(np.sum(one**2) * np.sum(other**2))
    return np.sum(one * other) / spread if spread > 1e-9 else 0


FORMULAS = {"accuracy": accuracy, "f1": f1, "matthews": matthews}
PAIRS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("one", CLASSIFIERS, **BY_NAME)
@DETERMINISTIC
@given(pairs=PAIRS)
@example(pairs=[(1, 0), (1, 1), (1, 1)])  # one choice for all
@example(pairs=[(1, 1), (0, 1)])  # one label for all
@example(pairs=[(1, 1), (1, 1)])
@example(pairs=[(0, 0), (1, 1), (0, 0)])
def test_choices_are_worth_what_textbooks_say(one, classes, pairs):
    pairs = [(min(choice, classes - 1), min(label, classes - 1)) for choice, label in pairs]
    found = one.compute(chosen(one, classes, pairs).sum(0))
    expected = FORMULAS[one.name](*np.array(pairs).T, classes)
    assert found == pytest.approx(expected, abs=1e-12)


def test_of_two_classes_matthews_is_the_correlation_of_choices_and_labels():
    pairs = np.random.default_rng(0).integers(0, 2, (40, 2)).tolist()
    found = Matthews().compute(chosen(Matthews(), 2, pairs).sum(0))
    (neither, missed), (wrong, right) = np.histogram2d(*np.transpose(pairs), bins=2)[0]
    table = right * neither - wrong * missed
    margins = (right + wrong) * (right + missed) * (neither + wrong) * (neither + missed)
    assert found == pytest.approx(table / np.sqrt(margins))
    assert found == pytest.approx(scipy.stats.pearsonr(*np.transpose(pairs)).statistic)
