"""Losses are the model's own, whatever its class, its problem and its labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from helpers.close import close
from helpers.messages import whole
from tokenizers import Tokenizer, models, pre_tokenizers

import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.data.pairs import pair
from headroles.testing.case import Case


def value(model, tokenizer, corpus, metric):
    return hr.evaluate(model, tokenizer, corpus, [metric], n_resamples=0)["value"].iloc[0]


@torch.no_grad()
def own_loss(model, corpus):
    """The model's own loss of each token of texts that are numbers of tokens, one text at a time."""
    total = count = 0
    for sentence in corpus:
        ids = torch.tensor([[int(word) for word in sentence.text.split()]])
        steps = ids.numel() if "WithLMHead" in type(model).__name__ else ids.numel() - 1
        total += float(model(input_ids=ids, labels=ids).loss) * steps
        count += steps
    return total / count


@pytest.mark.parametrize("name", ["flaubert", "xlm", "gpt2", "xglm"])
def test_the_loss_is_the_models_own_whatever_its_class_is_called(name):
    model = hr.tiny_model(name)
    case = Case(model)
    close(value(model, case.tokenizer, case.corpus, "loss"), own_loss(model, case.corpus))


@pytest.mark.parametrize("name", ["flaubert", "xlm", "bert-generation"])
def test_a_model_that_reads_later_tokens_gives_sentences_no_likelihood(name):
    model = hr.tiny_model(name)
    pairs = hr.Corpus("pairs", pair("11 12 13", "11 13 12"))
    with pytest.raises(ValueError, match="which does not predict one token after the other"):
        hr.evaluate(model, Case(model).tokenizer, pairs, ["pair_accuracy"], n_resamples=0)


TEXTS = ["7", "3 9 27 1", "8 8 5", "50 4 31 2 6 7 9", "11 12", "44 2 5 13 21"]


SCORES = [0, 1, "0.5", 2.5, "-1", np.int64(3)]


SEVERAL = ["LABEL_0", "LABEL_2,LABEL_1", "1", 0, "LABEL_0, 2", "LABEL_1"]


VECTORS = [[1, 0, 0], [0, 1, 1], [0, 1, 0], [1, 0, 0], [1, 0, 1], [0, 1, 0]]


def tokenizer():
    ids = {"<pad>": 0} | {str(number): number for number in range(1, 64)}
    words = Tokenizer(models.WordLevel(ids, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>")


def classifier(architecture="bert", **options):
    config = transformers.AutoConfig.for_model(
        architecture, vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=32, pad_token_id=0, **options,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForSequenceClassification.from_config(config)
        for weight in (weight for weight in model.parameters() if weight.ndim > 1):
            torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


def corpus(labels):
    return Corpus("numbers", tuple(Sentence(text, label=label) for text, label in zip(TEXTS, labels, strict=True)))


@torch.no_grad()
def own(model, labels, mask=None):
    """The model's own loss of each text, and its first logit, one text at a time: [text] each."""
    rows = []
    with hr.mask_heads(model, torch.ones(8) if mask is None else mask):
        for text, label in zip(TEXTS, labels, strict=True):
            output = model(input_ids=torch.tensor([[int(word) for word in text.split()]]), labels=label)
            rows.append((float(output.loss), float(output.logits[0, 0])))
    return np.array(rows).T


def value_of(model, given, metric):
    return hr.evaluate(model, tokenizer(), given, [metric], n_resamples=0)["value"].iloc[0]


@pytest.mark.parametrize("architecture", ["bert", "llama"])
def test_one_output_is_a_score(architecture):
    model, labels = classifier(architecture, num_labels=1), [torch.tensor([float(score)]) for score in SCORES]
    losses, scores = own(model, labels)
    mask = torch.ones(8)
    mask[0] = 0
    masked = own(model, labels, mask)
    given = corpus(SCORES)
    close(value_of(model, given, "loss"), losses.mean())
    for metric, intact, without in (("loss", losses, masked[0]), ("class", scores, masked[1])):
        effect = hr.ablate(model, tokenizer(), given, metric=metric, n_resamples=0).iloc[0, 0]
        close(effect, without.mean() - intact.mean(), size=np.abs(intact).max())


@pytest.mark.parametrize("architecture", ["bert", "llama"])
def test_several_classes_have_the_binary_cross_entropy(architecture):
    model = classifier(architecture, num_labels=3, problem_type="multi_label_classification")
    losses, _ = own(model, torch.tensor(VECTORS, dtype=torch.float)[:, None])
    close(value_of(model, corpus(SEVERAL), "loss"), losses.mean())


@pytest.mark.parametrize("metric", ["accuracy", "agreement", "f1", "matthews", "perplexity"])
@pytest.mark.parametrize(
    ("options", "labels", "problem"),
    [
        ({"num_labels": 1}, SCORES, "regression"),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, SEVERAL, "multi_label_classification"),
    ],
    ids=["score", "several"],
)
def test_metrics_of_one_choice_are_refused(options, labels, problem, metric):
    message = rf"{metric} needs a model that chooses .*, got BertForSequenceClassification \({problem}\)"
    with pytest.raises(ValueError, match=message):
        value_of(classifier(**options), corpus(labels), metric)


def test_a_label_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="label must be a number for BertForSequenceClassification.*, got 'good'"):
        value_of(classifier(num_labels=1), corpus(["good"] * 6), "loss")


def test_labels_may_be_integers():
    model, numbers = classifier(num_labels=3), [0, 1, 2, 0, 1, 2]
    losses, _ = own(model, [torch.tensor([number]) for number in numbers])
    for labels in (numbers, np.array(numbers), [str(number) for number in numbers]):
        close(value_of(model, corpus(labels), "loss"), losses.mean())


@pytest.mark.parametrize("several", [False, True])
def test_training_minimises_the_models_own_loss(tmp_path, several):
    options = {"num_labels": 3, "problem_type": "multi_label_classification"} if several else {"num_labels": 1}
    model = classifier(**options, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    labels = torch.tensor(VECTORS if several else [float(score) for score in SCORES])[:, None].float()
    losses, _ = own(model, labels)
    history = hr.train(model, tokenizer(), corpus(SEVERAL if several else SCORES), tmp_path, epochs=1, rate=0.0)
    close(history["loss"].iloc[-1], losses.mean())


NAMED = {
    "names alone": ({0: "neg", 1: "pos", 2: "so"}, None, ["neg", "pos", "so"]),
    "names that are other numbers": ({0: "1", 1: "2", 2: "0"}, None, ["1", "2", "0"]),
    "numbers": ({0: "neg", 1: "pos", 2: "so"}, None, ["0", "1", "2"]),
    "both ways": ({0: "neg", 1: "pos", 2: "so"}, {"neg": 0, "pos": 1, "so": 2}, ["neg", "1", "so"]),
}


def named(names, numbers):
    model = hr.tiny_model("bert", architectures=["BertForSequenceClassification"], num_labels=3)
    model.config.id2label, model.config.label2id = names, numbers
    return model


@pytest.mark.parametrize("kind", NAMED)
def test_classes_are_those_that_the_config_names(kind):
    names, numbers, labels = NAMED[kind]
    model = named(names, numbers)
    case = Case(model)
    texts = [sentence.text for sentence in case.corpus]
    with torch.no_grad():
        chosen = [int(model(**case.tokenizer(text, return_tensors="pt")).logits.argmax()) for text in texts]
    right = Corpus(
        "right", tuple(Sentence(text, label=labels[number]) for text, number in zip(texts, chosen, strict=True))
    )
    assert len(set(chosen)) > 1
    assert value(model, case.tokenizer, right, "accuracy") == 1


@pytest.mark.parametrize(("names", "numbers", "label", "said"), [
    ({0: "1", 1: "2", 2: "3"}, None, "0", "label must be one of 1, 2, 3, got '0'"),
    ({0: "a", 1: "b", 2: "c"}, {"a": 1}, "a",
     "label 'a' must name one class of BertForSequenceClassification, got [0, 1]"),
])  # fmt: skip
def test_a_label_that_two_classes_may_have_is_refused(names, numbers, label, said):
    model = named(names, numbers)
    case = Case(model)
    with pytest.raises(ValueError, match=whole(said)):
        value(model, case.tokenizer, Corpus("x", (Sentence(case.corpus[0].text, label=label),)), "accuracy")
