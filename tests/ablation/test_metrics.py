"""Each metric is its textbook formula of sums that add, over any split of a corpus and for many variants at once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import sacrebleu
import scipy.stats
import torch
import torch.nn.functional as F
import transformers
from helpers import zoo
from helpers.letters import DETERMINISTIC, corpus, tokens_of, writing
from helpers.messages import whole
from helpers.objectives import in_one, output
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.modeling_outputs import SequenceClassifierOutput

from headroles.ablation.metrics import (
    BLEU,
    F1,
    METRICS,
    Accuracy,
    Agreement,
    ChrF,
    Loss,
    Matthews,
    Metric,
    Observation,
    PairAccuracy,
    PairDifference,
    Perplexity,
    metric,
)
from headroles.data.corpus import Corpus, Sentence
from headroles.models.head_model import HeadModel
from headroles.scores.objectives import objective

CLASSIFIERS = [Accuracy(), F1(), Matthews()]
MEANS = [Loss(), Perplexity(), Agreement()]
WRITTEN = [BLEU(), ChrF()]
BY_NAME = {"ids": lambda one: one.name if isinstance(one, Metric) else None}


def read(one, model, tokenizer, text, groups):
    """Function of an output and its batch: the statistics, for a model and corpus that have what the metric needs."""
    handle = HeadModel(model, tokenizer)
    one.check(handle, text, groups)
    made = None if one.objective is None else objective(one.objective, handle).fit(handle, groups)
    return lambda output, batch: one.update(Observation(handle, text, made, batch, output))


# --- classes --------------------------------------------------------------------------------------------------------


@cache
def classifier(classes):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.BertForSequenceClassification(transformers.BertConfig(**zoo.BERT, num_labels=classes))


def chosen(one, classes, pairs):
    """The statistics of a metric of pairs of a choice and a label: [example, statistic]."""
    text = Corpus("labels", tuple(Sentence("a b", label=str(label)) for _, label in pairs))
    (batch,) = in_one(classifier(classes), "bert", text)
    choices = torch.tensor([pairs[number][0] for number in batch.numbers])
    logits = F.one_hot(choices, classes) * 2.0 - torch.rand(len(pairs), classes, generator=torch.manual_seed(0))
    made = SequenceClassifierOutput(logits=logits)
    return read(one, classifier(classes), tokens_of("bert"), text, [batch])(made, batch)[np.argsort(batch.numbers)]


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


# --- what is written ------------------------------------------------------------------------------------------------

TEXTS = {  # reference: what is written
    "The cat sat on the mat , and the dog did not .": "The cat sat on the mat , but the dog did not .",
    "It was raining all day .": "It rained all day .",
    "He said nothing about it at all": "",
    "She has 3.5 apples - and \" two \" pears !": "She has 3.5 pears and two apples !",
    "Yes .": "Yes .",
}  # fmt: skip


def words(texts):
    """A tokenizer that has every word of some texts, and gives back what it was given."""
    known = ["<s>", "<pad>", "</s>", "<unk>", *dict.fromkeys(word for text in texts for word in text.split())]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def written(one, pairs):
    """The statistics of a metric of pairs of a reference and what is written instead: [example, statistic]."""
    tokenizer = words([text for pair in pairs for text in pair])
    text = Corpus("pairs", tuple(Sentence("a b", target=Sentence(reference)) for reference, _ in pairs))
    (batch,) = in_one(zoo.tiny("marian"), "marian", text)
    ids = tokenizer([pairs[number][1] for number in batch.numbers], return_tensors="pt", padding=True)["input_ids"]
    assert tokenizer.eos_token_id == zoo.EOS
    ids = F.pad(ids.long(), (0, 1), value=zoo.EOS)
    return read(one, zoo.tiny("marian"), tokenizer, text, [batch])(ids, batch)[np.argsort(batch.numbers)]


SCORES = {"bleu": sacrebleu.corpus_bleu, "chrf": sacrebleu.corpus_chrf}


@pytest.mark.parametrize("pairs", [[*TEXTS.items()], [*TEXTS.items()][:2], [("He said nothing", "")]], ids=len)
@pytest.mark.parametrize("one", WRITTEN, **BY_NAME)
def test_what_is_written_is_worth_what_sacrebleu_says(one, pairs):
    references, hypotheses = zip(*pairs, strict=True)
    expected = SCORES[one.name](hypotheses, [references]).score
    assert one.compute(written(one, pairs).sum(0)) == pytest.approx(expected, abs=1e-9)
    assert (expected > 10) == (len(pairs) > 1)


def test_a_sum_of_resamples_is_that_of_the_repeated_texts():
    """Weights of a bootstrap are whole numbers."""
    weights = np.array([2, 0, 1, 3, 1.0])
    pairs = list(TEXTS.items())
    repeated = [pair for pair, weight in zip(pairs, weights, strict=True) for _ in range(int(weight))]
    references, hypotheses = zip(*repeated, strict=True)
    for one in WRITTEN:
        found = one.compute(weights @ written(one, pairs))
        assert found == pytest.approx(SCORES[one.name](hypotheses, [references]).score, abs=1e-9)


# --- all of them ----------------------------------------------------------------------------------------------------


def answered_by_kind(one):
    """The same of a classifier, for metrics of classes."""
    if one.name not in ("accuracy", "f1", "matthews"):
        return answered(one)
    text = Corpus("labels", tuple(Sentence("a b", label=label) for label in "021120"))
    (batch,) = in_one(classifier(3), "bert", text)
    logits = torch.randn(6, 3, generator=torch.manual_seed(0))
    reading = read(one, classifier(3), tokens_of("bert"), text, [batch])
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


def test_a_metric_is_known_by_its_name():
    assert {name: type(one) for name, one in METRICS.items()} == {
        "loss": Loss, "perplexity": Perplexity, "agreement": Agreement, "accuracy": Accuracy, "f1": F1,
        "matthews": Matthews, "bleu": BLEU, "chrf": ChrF,
        "pair_accuracy": PairAccuracy, "pair_difference": PairDifference,
    }  # fmt: skip
    for name, one in METRICS.items():
        assert metric(name) is one
        assert one.name == name
    given = BLEU(beams=4)
    assert metric(given) is given


def test_which_are_better_when_less_and_which_are_of_what_is_written():
    assert {name for name, one in METRICS.items() if one.better == -1} == {"loss", "perplexity"}
    assert {name for name, one in METRICS.items() if one.generates} == {"bleu", "chrf"}


def test_metrics_of_the_same_options_say_the_same():
    """A sweep that goes on in another process knows its metric by its repr."""
    assert [repr(type(one)()) for one in METRICS.values()] == [repr(one) for one in METRICS.values()]
    assert repr(BLEU(2)) != repr(BLEU(1))


def test_an_unknown_metric():
    message = "unknown metric 'rouge'; known: loss, perplexity, agreement, accuracy, f1, matthews, bleu, chrf, "
    message += "pair_accuracy, pair_difference, "
    message += "top, reference, class, similarity"
    with pytest.raises(ValueError, match=whole(message)):
        metric("rouge")
