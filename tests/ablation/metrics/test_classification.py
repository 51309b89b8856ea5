"""Metrics of classes and pairs have the values of formulas by hand, scikit-learn and plain loops over tokens."""

from __future__ import annotations

import copy
import random
from functools import cache

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from helpers import letters, zoo
from helpers.ablations import sweep
from helpers.close import close
from helpers.letters import DETERMINISTIC, tokens_of
from helpers.metrics import choosing, read
from helpers.objectives import in_one
from helpers.skewness import p_of_mean
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import SequenceClassifierOutput

import headroles as hr
from headroles.ablation.metrics import F1, Accuracy, Matthews, Metric, PairAccuracy, PairDifference, Pearson, Spearman
from headroles.ablation.sweep import Sweep
from headroles.data.corpus import Corpus, Sentence, pair
from headroles.models import masking
from headroles.models.head_model import HeadModel
from headroles.plots.styling import harm

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


@pytest.mark.parametrize(("name", "of"), [("pearson", scipy.stats.pearsonr), ("spearman", scipy.stats.spearmanr)])
def test_correlations_of_scores_with_labels(name, of):
    model, tokenizer, rng = zoo.drawn(lambda: copy.deepcopy(choosing(1))), tokens_of("bert"), random.Random(1)
    # Each text once: a text twice has equal scores alone, but perhaps not to the last bit beside other padding.
    texts = sorted({" ".join(rng.choices("abcd", k=rng.randint(2, 6))) for _ in range(20)})
    labels = [round(rng.uniform(0, 5)) / 2 for _ in texts]  # some are equal
    corpus = hr.Corpus("c", tuple(Sentence(text, label=str(label)) for text, label in zip(texts, labels, strict=True)))

    def plain():
        with torch.no_grad():
            scores = [float(model(torch.tensor([tokenizer(text)["input_ids"]])).logits) for text in texts]
        return of(scores, labels).statistic

    table = hr.evaluate(model, tokenizer, corpus, [name], n_resamples=50, max_tokens=20)
    assert table["value"].iloc[0] == pytest.approx(plain(), abs=1e-5)
    assert table["low"].iloc[0] < table["value"].iloc[0] < table["high"].iloc[0]
    effect = hr.ablate(model, tokenizer, corpus, metric=name, unit="layer", n_resamples=0).iloc[0, 0]
    expected = -plain()
    with torch.no_grad():
        model.bert.encoder.layer[0].attention.output.dense.weight.zero_()
    assert effect == pytest.approx(expected + plain(), abs=1e-5)
    with pytest.raises(ValueError, match=f"^metric '{name}' is for models with one output, a score; got BertForSeq"):
        hr.evaluate(choosing(2), tokenizer, corpus, [name])


@pytest.mark.parametrize("equal", ["0", "1"])
def test_the_correlation_with_numbers_that_are_all_equal_is_0(equal):
    text = Corpus("scores", tuple(Sentence("a b", label="0.1" if equal == "1" else f"{i}.1") for i in range(7)))
    (batch,) = in_one(choosing(1), "bert", text)
    logits = torch.full((7, 1), 0.3) if equal == "0" else torch.randn(7, 1, generator=torch.manual_seed(0))
    for metric in (Pearson(), Spearman()):
        made = read(metric, choosing(1), tokens_of("bert"), text, [batch])(
            SequenceClassifierOutput(logits=logits), batch
        )
        assert metric.compute(metric.merged(made[:, None]).sum(0)) == 0


AGREES = ("dec-self", 0, 2)  # the head that carries agreement


@cache
def agreeing():
    """A decoder of zeros, but for one head: it moves the number of the words before to where the verb is predicted.

    Nouns have their number in two dimensions, verbs in two others, from which they are also predicted. Without the head
    the model slightly prefers singular verbs.
    """
    corpus = hr.minimal_pairs(60, seed=1)
    words = sorted({word for sentence in corpus for word in sentence.text.replace(".", " .").split()})
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="."))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token=".")
    config = GPT2Config(
        vocab_size=len(words), n_positions=16, n_embd=16, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if ".ln_" in f".{name}" and name.endswith("weight") else 0.0)
        for good, bad in zip(corpus.sentences[::2], corpus.sentences[1::2], strict=True):
            (_, noun, verb, *_), other = good.text.split(), bad.text.split()[2]
            number = 1 if len(verb) < len(other) else -1
            for word, place, sign in ((noun, 0, number), (verb, 2, number), (other, 2, -number)):
                model.transformer.wte.weight[words.index(word), place : place + 2] = sign * torch.tensor([1.0, -1.0])
        attention, (_, _, head) = model.transformer.h[0].attn, AGREES
        for place in (0, 1):
            attention.c_attn.weight[place, 2 * 16 + 4 * head + place] = 1.0  # value: the number of a noun
            attention.c_proj.weight[4 * head + place, 2 + place] = 1.0  # output: the number of a verb
        model.transformer.ln_f.bias[2:4] = torch.tensor([-0.01, 0.01])
    return model, tokenizer, corpus


def test_the_head_that_carries_agreement_is_found():
    model, tokenizer, corpus = agreeing()
    singular = np.mean([sentence.text.split()[2].endswith("s") for sentence in corpus.sentences[::2]])
    assert 0.3 < singular < 0.7
    intact = hr.evaluate(model, tokenizer, corpus, ["pair_accuracy", "pair_difference"], n_resamples=200)
    assert intact.loc["pair_accuracy", "value"] == 1
    table = hr.ablate(model, tokenizer, corpus, metric="pair_accuracy", n_resamples=200)
    column = table["ablation[pair_accuracy]"]
    close(column[AGREES], singular - 1)
    assert column.drop(AGREES).eq(0).all()
    assert table.loc[AGREES, "ablation[pair_accuracy].high"] < 0
    assert table.loc[AGREES, "ablation[pair_accuracy].holm"] < 0.001
    assert harm("ablation[pair_accuracy]") == -1


def random_pairs(count=7, *, translated=False):
    rng = random.Random(0)

    def text():
        return " ".join("".join(rng.choices("abc", k=rng.randint(1, 3))) for _ in range(rng.randint(2, 6)))

    rows = [pair(text(), text(), text() if translated else None) for _ in range(count)]
    return hr.Corpus("random", tuple(sentence for row in rows for sentence in row))


@cache
def pairs_of(name):
    return zoo.tiny(name), letters.tokens_of(name), random_pairs(translated=name == "marian")


def by_hand(name, masked=()):
    """Log-likelihood of each sentence alone, minus that of the ungrammatical one: [pair]."""
    model, tokenizer, corpus = pairs_of(name)
    likelihoods = []
    for sentence in corpus:
        ids = torch.tensor([tokenizer(sentence.text)["input_ids"]])
        with torch.no_grad(), hr.mask_heads(model, masking.head_mask(model, masked)):
            if sentence.target is None:
                logits, wanted = model(ids).logits[0, :-1], ids[0, 1:]
            else:
                wanted = torch.tensor(tokenizer(text_target=sentence.target.text)["input_ids"])
                start = torch.tensor([[model.config.decoder_start_token_id, *wanted[:-1].tolist()]])
                logits = model(input_ids=ids, decoder_input_ids=start).logits[0]
        likelihoods.append(-F.cross_entropy(logits.double(), wanted, reduction="sum").item())
    return np.array(likelihoods).reshape(-1, 2) @ [1, -1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_effects_are_those_of_a_plain_loop(name):
    model, tokenizer, corpus = pairs_of(name)
    head = next(iter(hr.models.heads.head_index(model)))
    intact, ablated = by_hand(name), by_hand(name, [head])
    size = np.abs(intact).max() * 20  # log-likelihoods of which the differences are taken
    options = {"sets": {"one": [head]}, "n_resamples": 50, "max_tokens": 64}
    differences, shares = (
        hr.ablate(model, tokenizer, corpus, metric=metric, **options).iloc[0]
        for metric in ("pair_difference", "pair_accuracy")
    )
    close(differences.iloc[0], (ablated - intact).mean(), size=size)
    close(differences["ablation[pair_difference].p"], p_of_mean(ablated - intact), size=1, operations=4096)
    close(shares.iloc[0], (ablated > 0).mean() - (intact > 0).mean())
    found = sweep(model, tokenizer, corpus, [frozenset([head])], PairDifference(), max_tokens=64)
    assert sorted(found.numbers) == list(range(7))  # a resample is one of pairs
    close(found.intact[:, 0], intact[found.numbers], size=size)
    assert "examples:7|" in found.signature


def test_predictions_are_the_gradient_of_each_pair_and_serve_precision():
    model, tokenizer, corpus = pairs_of("gpt2")
    heads = [frozenset([head]) for head in hr.models.heads.head_index(model)]
    predicted = Sweep(HeadModel(model, tokenizer), corpus, PairDifference(), max_tokens=64).predict(heads)
    gates = torch.ones(len(heads), requires_grad=True)
    good, bad = _likelihoods(model, tokenizer, corpus[4:6], gates)
    (gradient,) = torch.autograd.grad(good - bad, gates)
    row = predicted.numbers.index(2)
    found = np.array([predicted.predicted[variant][row] for variant in heads])
    close(found, -gradient, operations=1024)
    table = hr.ablate(model, tokenizer, corpus, metric="pair_difference", precision=1.5, n_resamples=0)
    whole = hr.ablate(model, tokenizer, corpus, metric="pair_difference", n_resamples=0)
    close(table.iloc[:, 0], whole.iloc[:, 0], size=float(whole.iloc[:, 0].abs().max()) * 20)  # all of 7 pairs


def _likelihoods(model, tokenizer, sentences, gates):
    found = []
    for sentence in sentences:
        ids = torch.tensor([tokenizer(sentence.text)["input_ids"]])
        with hr.mask_heads(model, gates):
            found.append(-F.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="sum"))
    return found


def test_a_part_of_the_pairs_is_run_as_pairs():
    model, tokenizer, corpus = pairs_of("gpt2")
    whole = sweep(model, tokenizer, corpus, [], PairAccuracy(), max_tokens=64)
    part = sweep(model, tokenizer, corpus, [], PairAccuracy(), max_tokens=64, rows=[1, 4])
    assert sorted(part.numbers) == [1, 4]
    for number, row in zip(part.numbers, part.intact, strict=True):
        assert row.tolist() == whole.intact[whole.numbers.index(number)].tolist()
