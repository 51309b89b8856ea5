"""Losses are the model's own, whatever its class, its problem and its labels."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from helpers import zoo
from helpers.close import close
from helpers.errors import refuses
from helpers.messages import whole
from helpers.silenced import silenced
from helpers.tagged import TAGGED, in_a_data_set, letters, run_ner, tagged, tagger
from helpers.worded import of_words
from tokenizers import processors

import headroles as hr
from headroles.data.corpus import Corpus, Sentence, pair
from headroles.data.sentences import ClassName
from headroles.testing.case import Case


def value(model, tokenizer, corpus, metric):
    return hr.evaluate(model, tokenizer, corpus, [metric], n_resamples=0)["value"].iloc[0]


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "options", "shifts"),
    [
        *((name, {}, name in ("gpt2", "xglm")) for name in ("flaubert", "xlm", "gpt2", "xglm", "bert")),
        ("gemma3_text", {"use_bidirectional_attention": True}, True),  # attention goes both ways
        ("llama", {"is_causal": False}, True),
        ("bert-generation", {}, True),
    ],
)
def test_the_loss_is_the_models_own_whatever_its_class_is_called(name, options, shifts):
    case, total, count = Case(hr.tiny_model(name, **options)), 0, 0
    for ids in map(case.ids, case.corpus):  # one text at a time
        steps = ids.numel() - shifts
        total += float(case.model(input_ids=ids, labels=ids).loss) * steps
        count += steps
    close(value(case.model, case.tokenizer, case.corpus, "loss"), total / count)


@pytest.mark.parametrize("name", ["flaubert", "xlm", "bert-generation"])
def test_a_model_that_reads_later_tokens_gives_sentences_no_likelihood(name):
    case = Case(hr.tiny_model(name))
    with pytest.raises(ValueError, match="needs the likelihood of sentences: got .*; try a decoder"):
        value(case.model, case.tokenizer, hr.Corpus("pairs", pair("11 12 13", "11 13 12")), "pair_accuracy")


TEXTS = ["7", "3 9 27 1", "8 8 5", "50 4 31 2 6 7 9", "11 12", "44 2 5 13 21"]
SCORES = [0, 1, "0.5", 2.5, "-1", np.int64(3)]
SEVERAL = ["LABEL_0", "LABEL_2,LABEL_1", "1", 0, "LABEL_0, 2", "LABEL_1"]
VECTORS = [[1, 0, 0], [0, 1, 1], [0, 1, 0], [1, 0, 0], [1, 0, 1], [0, 1, 0]]


def tokenizer():
    return of_words(["<pad>", *map(str, range(1, 64))], "<pad>", pad_token="<pad>")


def classifier(architecture="bert", **options):
    config = transformers.AutoConfig.for_model(
        architecture, vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=32, pad_token_id=0, **options,
    )  # fmt: skip
    return zoo.drawn(lambda: transformers.AutoModelForSequenceClassification.from_config(config))


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
    return value(model, tokenizer(), given, metric)


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


def electra(labels):
    return built("ElectraForPreTraining", "ElectraConfig", zoo.BERT | {"num_labels": labels})


REFUSED = {
    "no number": (lambda: value_of(classifier(num_labels=1), corpus(["good"] * 6), "loss"),
        "label must be a number for BertForSequenceClassification.*, got 'good'"),
    "no end": (lambda: value(sequences("Bart"), ending("$A"), labelled(), "loss"),
        "^each text for BartForSequenceClassification must have the end token .*, got 5 of 5 texts"),
    "several texts": (
        lambda: value(built("BertForMultipleChoice", "BertConfig", zoo.BERT), ending(), labelled(), "loss"),
        "BertForMultipleChoice",
    ),
    **{  # a label for each token, as many as a small forward has tokens
        f"{count} labels": (
            lambda count=count: value(electra(count), ending(), labelled(), "accuracy"),
            "metric 'accuracy' is for classifiers",
        )
        for count in (7, 8)
    },
}  # fmt: skip

test_what_a_model_does_not_put_out_is_refused = refuses(REFUSED)


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
    given = corpus(SEVERAL if several else SCORES)
    close(value_of(model, given, "loss"), losses.mean())
    history = hr.train(model, tokenizer(), given, tmp_path, epochs=1, rate=0.0)
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


CLASSES = ("neu", "POS", "neg")  # of the data, where the model has others


def of_classes(names, labels):
    case = Case(classified())
    texts = [sentence.text for sentence in case.corpus]
    return case, Corpus(
        "x", tuple(Sentence(text, label=ClassName.of(n, names)) for text, n in zip(texts, labels, strict=False))
    )


def classified(names=("neg", "neu", "pos")):
    return named(dict(enumerate(names)), {name: number for number, name in enumerate(names)})


@pytest.mark.parametrize(
    ("names", "numbers"), [(("neg", "neu", "pos"), [1, 2, 0]), (("LABEL_0", "LABEL_1", "LABEL_2"), [0, 1, 2])]
)
def test_classes_of_a_data_set_are_meant_by_name_and_by_number_where_the_model_has_no_names(names, numbers):
    case, given = of_classes(CLASSES, [0, 1, 2, 0])
    model, losses = classified(names), []
    for sentence in given:
        with torch.no_grad():
            logits = model(**case.tokenizer(sentence.text, return_tensors="pt")).logits
        losses.append(float(torch.nn.functional.cross_entropy(logits, torch.tensor([numbers[sentence.label.number]]))))
    close(value(model, case.tokenizer, given, "loss"), np.mean(losses))


@pytest.mark.parametrize("names", [("neu", "pos", "bad"), ("neu", "pos"), ("neu", "pos", "neg", "bad")])
def test_classes_that_only_the_data_or_the_model_has_are_refused(names):
    case, given = of_classes(names, [0, 1])
    said = (
        "classes must have the same names in the data and in BertForSequenceClassification, got "
        f"{', '.join(names)} in the data and neg, neu, pos in its label2id; try the model's names"
    )
    with pytest.raises(ValueError, match=whole(said)):
        value(classified(), case.tokenizer, given, "accuracy")


# --- words ------------------------------------------------------------------------------------------------------------


def of_all_words(model):
    """The loss and the accuracy of all words."""
    with torch.no_grad():
        rows, counts = [*run_ner(model)], [len(words) for words, _ in TAGGED]
    loss = sum(float(loss) * count for (_, loss, _), count in zip(rows, counts, strict=True)) / sum(counts)
    return loss, sum(right for _, _, right in rows) / sum(counts)


@pytest.mark.parametrize(
    ("name", "options"), [("BertForTokenClassification", zoo.BERT), ("GPT2ForTokenClassification", zoo.GPT2)]
)
@pytest.mark.parametrize("make", [list, pd.DataFrame, in_a_data_set])
def test_the_loss_and_the_accuracy_of_words_are_read_at_their_first_pieces(name, options, make):
    model = tagger(name, options)
    table = hr.evaluate(model, letters(), tagged(make), ["loss", "accuracy", "agreement"], n_resamples=0)
    loss, accuracy = of_all_words(model)
    close(table["value"].to_numpy(), np.array([loss, accuracy, 1]))


def test_effects_and_importance_of_words_are_those_of_a_loop():
    model, gates = tagger(), torch.ones(8, requires_grad=True)
    with hr.mask_heads(model, gates):
        gradients = [torch.autograd.grad(loss, gates)[0].abs() for _, loss, _ in run_ner(model)]
    table = hr.score(model, letters(), tagged(), ["importance", "relevance"], n_resamples=0)
    close(table["importance"].to_numpy(), torch.stack(gradients).mean(0).numpy())
    without = []
    for head in range(8):
        with hr.mask_heads(model, torch.arange(8) != head):
            without.append(of_all_words(model))
    for place, metric in enumerate(("loss", "accuracy")):
        effects = hr.ablate(model, letters(), tagged(), metric=metric, n_resamples=0).iloc[:, 0].to_numpy()
        close(effects, np.array(without)[:, place] - of_all_words(model)[place], size=1)


def test_words_that_nobody_labelled_and_unknown_labels_are_refused():
    model = tagger()
    for rows, said in {
        "no labels": ([{"tokens": ["a", "b"]}], "corpus 'texts' has no labels of words; give rows with words in"),
        "some": (
            [{"tokens": ["a"], "labels": ["O"]}, {"tokens": ["b"], "labels": None}], "has no label for 1 of its 2",
        ),
        "too few": ([{"tokens": ["a", "b"], "labels": ["O"]}], "'a b' must have a label for each of its 2 words"),
        "unknown": ([{"tokens": ["a"], "labels": ["ORG"]}], "label must be one of LOC, O, PER, 0, 1, 2, got 'ORG'"),
    }.values():  # fmt: skip
        with pytest.raises(ValueError, match=said):
            value(model, letters(), rows, "loss")
    with pytest.raises(ValueError, match="a sentence has no labels of its words; give rows"):
        hr.score(model, letters(), ["a b"], ["importance"])


# --- answers ----------------------------------------------------------------------------------------------------------

ANSWERS = [("7 3", "9 27"), ("1 8", "8"), ("50 4 31 2", "6 7 9 5 1"), ("11", "12 3")]


def answered(model, gates=None):
    """The loss of each answer in a loop: sums and numbers of tokens."""
    sums, counts = [], []
    for text, answer in ANSWERS:
        ids = torch.tensor([tokenizer()(f"{text} {answer}")["input_ids"]])
        size = len(answer.split())
        with hr.mask_heads(model, torch.ones(8) if gates is None else gates):
            logits = model(input_ids=ids).logits[0, -size - 1 : -1]
        sums.append(torch.nn.functional.cross_entropy(logits, ids[0, -size:], reduction="sum"))
        counts.append(size)
    return torch.stack(sums), torch.tensor(counts)


def test_where_texts_have_answers_loss_effects_and_importance_are_of_the_answers():
    model = hr.tiny_model("llama", vocab_size=64, num_hidden_layers=2, num_attention_heads=4)
    rows = [{"prompt": text, "completion": answer} for text, answer in ANSWERS]
    gates = torch.ones(8, requires_grad=True)
    sums, counts = answered(model, gates)
    close(value(model, tokenizer(), rows, "loss"), float(sums.detach().sum() / counts.sum()))
    importance = torch.stack(
        [torch.autograd.grad(one, gates, retain_graph=True)[0].abs() for one in sums / counts]
    ).mean(0)
    found = hr.score(model, tokenizer(), rows, [hr.scores.Importance(norm=None)], n_resamples=0)
    close(found["importance"], importance.numpy(), operations=1024)
    effects = hr.ablate(model, tokenizer(), rows, metric="loss", n_resamples=0)["ablation[loss]"]
    without = torch.tensor([float(answered(model, 1 - one)[0].detach().sum()) for one in torch.eye(8)])
    close(effects, (without - sums.detach().sum()).numpy() / float(counts.sum()), size=float(sums.detach().sum()))


# --- models of every kind: sequence classifiers of encoder-decoders, two tasks, classes of another name ---------------


WORDS = [f"w{number}" for number in range(zoo.VOCABULARY - zoo.FIRST_WORD)]
SEQUENCES = {"Bart": zoo.BART, "MBart": zoo.BART, "T5": zoo.T5, "UMT5": zoo.T5}  # encoder-decoders that classify


def built(name, config, options):
    return zoo.drawn(lambda: getattr(transformers, name)(getattr(transformers, config)(**options)))


def sequences(family):
    return built(f"{family}ForSequenceClassification", f"{family}Config", SEQUENCES[family] | {"num_labels": 3})


@cache
def ending(template="$A <eos>"):
    """A tokenizer of whole words; a text ends with EOS."""
    names = {"bos_token": "<bos>", "pad_token": "<pad>", "eos_token": "<eos>"}
    made = of_words([*names.values(), "<unk>", *WORDS], **names)
    end = [("<eos>", zoo.EOS)]
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=end)
    return made


def labelled(count=3):
    """Texts of different lengths, with one of so many labels each."""
    texts = [" ".join(WORDS[(7 * row + 3 * place) % len(WORDS)] for place in range(2 + row)) for row in range(5)]
    return Corpus("labelled", tuple(Sentence(text, label=str(row % count)) for row, text in enumerate(texts)))


def plain(model, corpus):
    """The model's own loss and class of each text, one at a time."""
    rows = []
    for sentence in corpus:
        ids = ending()(sentence.text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            output = model(input_ids=ids, labels=torch.tensor([int(sentence.label)]))
        rows.append((float(output.loss), float(output.logits.argmax() == int(sentence.label))))
    return torch.tensor(rows).mean(0).tolist()  # loss, accuracy


@pytest.mark.parametrize("family", SEQUENCES)
def test_the_loss_and_effects_of_an_encoder_decoders_classifier_are_its_own(family):
    model = sequences(family)
    loss, accuracy = plain(model, labelled())
    close(value(model, ending(), labelled(), "loss"), loss)
    assert value(model, ending(), labelled(), "accuracy") == pytest.approx(accuracy)
    heads = {"enc": ("enc-self", 0, 1), "dec": ("dec-self", 1, 2), "cross": ("cross", 0, 3)}
    table = hr.ablate(model, ending(), labelled(), sets={name: [head] for name, head in heads.items()}, n_resamples=0)
    sites = {site.key: site for site in hr.attention_sites(model)}
    for name, (kind, layer, head) in heads.items():
        site = sites[kind, layer]
        columns = slice(head * site.size, (head + 1) * site.size)
        with silenced(site.out, columns):
            expected, _ = plain(model, labelled())
        close(table["ablation[loss]"][name], expected - loss, size=loss)


def test_attention_of_an_encoder_decoders_classifier_is_that_of_its_own_decoder_inputs():
    model = sequences("Bart")
    table = hr.score(model, ending(), labelled(), ["confidence"], n_resamples=0)
    model.set_attn_implementation("eager")
    best = []
    for sentence in labelled():  # the decoder reads the start token and the text: the first and EOS are not content
        ids = ending()(sentence.text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            output = model(input_ids=ids, output_attentions=True)
        weights = output.cross_attentions[1][0, :, 1:, :-1]  # [head, query, key]
        best.append(weights.amax(-1))
    close(table.loc[("cross", 1), "confidence"].to_numpy(), torch.cat(best, -1).mean(-1).numpy())
    assert "decoder:source" in table.attrs["signatures"]["confidence"]


def test_an_encoder_decoder_without_a_head_reads_the_text_again_or_asks_for_a_target():
    """One that classifies tokens has an encoder alone."""
    bart = built("BartModel", "BartConfig", zoo.BART)
    table = hr.score(bart, ending(), labelled(), ["confidence"], n_resamples=0)
    assert table["confidence"].notna().all()
    t5 = built("T5Model", "T5Config", zoo.T5)
    with pytest.raises(ValueError, match="^T5Model needs targets for its decoder, got corpus 'labelled' without"):
        hr.score(t5, ending(), labelled(), ["confidence"], n_resamples=0)
    tokens = built("T5ForTokenClassification", "T5Config", zoo.T5)
    assert set(hr.score(tokens, ending(), labelled(), ["confidence"], n_resamples=0).index.unique("kind")) == {
        "enc-self"
    }


@pytest.mark.slow
@pytest.mark.parametrize("family", ["Bart", "T5"])
def test_all_checks_hold_for_a_classifier_of_an_encoder_decoder(family):
    table = hr.check_model(sequences(family))
    assert set(table["holds"]) <= {"yes", "not asked"}, table[["holds", "why"]]


# --- heads whose output has another name, or another shape ------------------------------------------------------------


@pytest.mark.parametrize("name", ["BertForPreTraining", "AlbertForPreTraining", "BigBirdForPreTraining"])
def test_the_loss_of_a_model_of_two_tasks_is_that_of_its_words(name):
    options = zoo.BERT | ({"embedding_size": 16, "num_hidden_groups": 1} if name.startswith("Albert") else {})
    options |= {"attention_type": "original_full"} if name.startswith("BigBird") else {}
    model = built(name, name.replace("ForPreTraining", "Config"), options)
    total = count = 0
    for sentence in labelled():
        ids = ending()(sentence.text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=ids).prediction_logits[0, :-1]  # without EOS, which is special
        total += float(torch.nn.functional.cross_entropy(logits, ids[0, :-1], reduction="sum"))
        count += len(logits)
    close(value(model, ending(), labelled(), "loss"), total / count)
    assert value(model, ending(), labelled(), "agreement") == 1
    assert hr.score(model, ending(), labelled(), ["importance"], n_resamples=0).iloc[:, 0].notna().all()


def test_next_sentences_are_two_classes():
    model = built("BertForNextSentencePrediction", "BertConfig", zoo.BERT)
    loss, accuracy = plain(model, labelled(2))
    close(value(model, ending(), labelled(2), "loss"), loss)
    assert value(model, ending(), labelled(2), "accuracy") == pytest.approx(accuracy)


OTHERS = ["BertForQuestionAnswering", "ElectraForPreTraining", "BartForQuestionAnswering"]


@pytest.mark.parametrize("name", OTHERS)
def test_a_head_of_neither_classes_nor_words_is_refused_in_one_sentence(name):
    family = name.partition("For")[0]
    model = built(name, f"{family}Config", zoo.BART if family == "Bart" else zoo.BERT)
    for metric in ("loss", "accuracy", "class", "top"):
        with pytest.raises(ValueError, match=rf"{name}\b") as caught:
            value(model, ending(), labelled(), metric)
        assert "hidden states only" not in str(caught.value)
    with pytest.raises(ValueError, match=f"needs hidden states, got the logits of {name}"):
        value(model, ending(), labelled(), "similarity")
    assert hr.score(model, ending(), labelled(), ["confidence"], n_resamples=0)["confidence"].notna().all()


# --- what a model is, whatever its class is called --------------------------------------------------------------------


def test_a_classifier_is_one_whatever_its_class_is_called():
    class Toxicity(transformers.BertForSequenceClassification):
        pass

    class TokensLikeSequenceClassification(transformers.BertForTokenClassification):
        pass

    config = transformers.BertConfig(**zoo.BERT, num_labels=3)
    model, other = (zoo.drawn(lambda cls=cls: cls(config)) for cls in (Toxicity, TokensLikeSequenceClassification))
    close(value(model, ending(), labelled(), "loss"), plain(model, labelled())[0])
    with pytest.raises(ValueError, match="corpus 'labelled' has no labels of words"):
        value(other, ending(), labelled(), "accuracy")
