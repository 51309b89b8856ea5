"""Models of every kind give the number of a plain loop of transformers, or one sentence."""

from __future__ import annotations

import pytest
import torch
import transformers
from helpers import zoo
from helpers.close import close
from helpers.silenced import silenced
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import headroles as hr

WORDS = [f"w{number}" for number in range(zoo.VOCABULARY - zoo.FIRST_WORD)]
SEQUENCES = {  # sequence classifiers that are encoder-decoders: their options
    "Bart": zoo.BART,
    "MBart": zoo.BART,
    "PLBart": zoo.BART,
    "Mvp": zoo.BART,
    "T5": zoo.T5,
    "MT5": zoo.T5,
    "UMT5": zoo.T5,
}


def built(name, config, options):
    """A model with weights large enough for attention to be far from uniform."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, name)(getattr(transformers, config)(**options)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1 and parameter.requires_grad:
                    parameter.normal_(std=0.3)
    return model


def classifier(family, **options):
    return built(
        f"{family}ForSequenceClassification", f"{family}Config", SEQUENCES[family] | {"num_labels": 3} | options
    )


def bert(name, **options):
    return built(name, "BertConfig", zoo.BERT | options)


@pytest.fixture(scope="module")
def tokenizer():
    """One word is one token; a text ends with EOS."""
    special = ["<bos>", "<pad>", "<eos>", "<unk>"]
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*special, *WORDS])}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", zoo.EOS)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


@pytest.fixture(scope="module")
def corpus():
    """Texts of different lengths, with one of three labels each."""
    texts = [" ".join(WORDS[(7 * row + 3 * place) % len(WORDS)] for place in range(2 + row)) for row in range(5)]
    return hr.Corpus("labelled", tuple(hr.Sentence(text, label=str(row % 3)) for row, text in enumerate(texts)))


def value(model, tokenizer, corpus, metric):
    return hr.evaluate(model, tokenizer, corpus, [metric], n_resamples=0)["value"].iloc[0]


def plain(model, tokenizer, corpus):
    """The model's own loss and class of each text, one at a time."""
    rows = []
    for sentence in corpus:
        ids = tokenizer(sentence.text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            output = model(input_ids=ids, labels=torch.tensor([int(sentence.label)]))
        rows.append((float(output.loss), float(output.logits.argmax() == int(sentence.label))))
    return torch.tensor(rows).mean(0).tolist()  # loss, accuracy


# --- sequence classifiers of encoder-decoders -------------------------------------------------------------------------


@pytest.mark.parametrize("family", SEQUENCES)
def test_the_loss_and_effects_of_an_encoder_decoders_classifier_are_its_own(family, tokenizer, corpus):
    model = classifier(family)
    loss, accuracy = plain(model, tokenizer, corpus)
    close(value(model, tokenizer, corpus, "loss"), loss)
    assert value(model, tokenizer, corpus, "accuracy") == pytest.approx(accuracy)
    heads = {"enc": ("enc-self", 0, 1), "dec": ("dec-self", 1, 2), "cross": ("cross", 0, 3)}
    table = hr.ablate(model, tokenizer, corpus, sets={name: [head] for name, head in heads.items()}, n_resamples=0)
    sites = {site.key: site for site in hr.attention_sites(model)}
    for name, (kind, layer, head) in heads.items():
        site = sites[kind, layer]
        columns = slice(head * site.size, (head + 1) * site.size)
        with silenced(site.out, columns):
            expected, _ = plain(model, tokenizer, corpus)
        close(table["ablation[loss]"][name], expected - loss, size=loss)


def test_attention_of_an_encoder_decoders_classifier_is_that_of_its_own_decoder_inputs(tokenizer, corpus):
    model = classifier("Bart")
    table = hr.score(model, tokenizer, corpus, ["confidence"], n_resamples=0)
    model.set_attn_implementation("eager")
    best = []
    for sentence in corpus:  # the decoder reads the start token and the text: its first token and EOS are not content
        ids = tokenizer(sentence.text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            output = model(input_ids=ids, output_attentions=True)
        weights = output.cross_attentions[1][0, :, 1:, :-1]  # [head, query, key]
        best.append(weights.amax(-1))
    close(table.loc[("cross", 1), "confidence"].to_numpy(), torch.cat(best, -1).mean(-1).numpy())
    assert "decoder:source" in table.attrs["signatures"]["confidence"]


def test_importance_of_an_encoder_decoders_classifier_is_a_difference_of_its_logit(tokenizer, corpus):
    model = classifier("Bart").double()
    ids = tokenizer(corpus.sentences[3].text, return_tensors="pt")["input_ids"]
    one = hr.Corpus("one", (corpus.sentences[3],))
    table = hr.score(model, tokenizer, one, [hr.Importance(objective="loss")], n_resamples=0)
    step, values = 1e-5, []
    for gate in (1 + step, 1 - step):
        mask = torch.ones(len(table), dtype=torch.float64)
        mask[table.index.get_loc(("cross", 1, 2))] = gate
        with torch.no_grad(), hr.mask_heads(model, mask):
            values.append(float(model(input_ids=ids, labels=torch.tensor([int(one.sentences[0].label)])).loss))
    assert table.loc[("cross", 1, 2)].iloc[0] == pytest.approx(abs(values[0] - values[1]) / (2 * step), rel=1e-6)


def test_an_encoder_decoder_without_a_head_reads_the_text_again_or_asks_for_a_target(tokenizer, corpus):
    bart = built("BartModel", "BartConfig", zoo.BART)
    table = hr.score(bart, tokenizer, corpus, ["confidence"], n_resamples=0)
    assert table["confidence"].notna().all()
    t5 = built("T5Model", "T5Config", zoo.T5)
    with pytest.raises(ValueError, match="^T5Model needs targets for its decoder, got corpus 'labelled' without"):
        hr.score(t5, tokenizer, corpus, ["confidence"], n_resamples=0)


def test_a_token_classifier_of_an_encoder_decoder_has_an_encoder_alone(tokenizer, corpus):
    model = built("T5ForTokenClassification", "T5Config", zoo.T5)
    assert set(hr.score(model, tokenizer, corpus, ["confidence"], n_resamples=0).index.unique("kind")) == {"enc-self"}


def test_a_classifier_writes_no_translation(tokenizer, corpus):
    with pytest.raises(
        ValueError, match="^metric 'bleu' needs a translation model; BartForSequenceClassification writes"
    ):
        hr.evaluate(classifier("Bart"), tokenizer, corpus, ["bleu"], n_resamples=0)


def test_texts_without_an_end_token_are_refused(tokenizer, corpus):
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    bare = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")
    with pytest.raises(
        ValueError, match="^each text for BartForSequenceClassification must have the end token .*, got 5 of 5 texts"
    ):
        hr.evaluate(classifier("Bart"), bare, corpus, ["loss"], n_resamples=0)


@pytest.mark.parametrize("family", ["Bart", "T5"])
def test_all_checks_hold_for_a_classifier_of_an_encoder_decoder(family):
    table = hr.check_model(classifier(family))
    assert set(table["holds"]) <= {"yes", "not asked"}, table[["holds", "why"]]


# --- heads whose output has another name, or another shape ------------------------------------------------------------


@pytest.mark.parametrize("name", ["BertForPreTraining", "AlbertForPreTraining", "BigBirdForPreTraining"])
def test_the_loss_of_a_model_of_two_tasks_is_that_of_its_words(name, tokenizer, corpus):
    options = zoo.BERT | ({"embedding_size": 16, "num_hidden_groups": 1} if name.startswith("Albert") else {})
    options |= {"attention_type": "original_full"} if name.startswith("BigBird") else {}
    model = built(name, name.replace("ForPreTraining", "Config"), options)
    total = count = 0
    for sentence in corpus:
        ids = tokenizer(sentence.text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=ids).prediction_logits[0, :-1]  # without EOS, which is special
        total += float(torch.nn.functional.cross_entropy(logits, ids[0, :-1], reduction="sum"))
        count += len(logits)
    close(value(model, tokenizer, corpus, "loss"), total / count)
    assert value(model, tokenizer, corpus, "agreement") == 1
    assert hr.score(model, tokenizer, corpus, ["importance"], n_resamples=0).iloc[:, 0].notna().all()


def test_next_sentences_are_two_classes(tokenizer, corpus):
    model = bert("BertForNextSentencePrediction")
    texts = hr.Corpus("two", tuple(hr.Sentence(s.text, label=str(n % 2)) for n, s in enumerate(corpus)))
    loss, accuracy = plain(model, tokenizer, texts)
    close(value(model, tokenizer, texts, "loss"), loss)
    assert value(model, tokenizer, texts, "accuracy") == pytest.approx(accuracy)


OTHERS = ["BertForQuestionAnswering", "BertForTokenClassification", "ElectraForPreTraining", "BartForQuestionAnswering"]


@pytest.mark.parametrize("name", OTHERS)
def test_a_head_of_neither_classes_nor_words_is_refused_in_one_sentence(name, tokenizer, corpus):
    family = name.partition("For")[0]
    model = built(name, f"{family}Config", zoo.BART if family == "Bart" else zoo.BERT)
    for metric in ("loss", "accuracy", "class", "top"):
        with pytest.raises(ValueError, match=rf"{name}\b") as caught:
            hr.evaluate(model, tokenizer, corpus, [metric], n_resamples=0)
        assert "hidden states only" not in str(caught.value)
    with pytest.raises(ValueError, match=rf"needs hidden states, got the logits of {name}"):
        hr.evaluate(model, tokenizer, corpus, ["similarity"], n_resamples=0)
    assert hr.score(model, tokenizer, corpus, ["confidence"], n_resamples=0)["confidence"].notna().all()


def test_a_choice_among_several_texts_is_refused(tokenizer, corpus):
    with pytest.raises(ValueError, match="BertForMultipleChoice"):
        hr.evaluate(bert("BertForMultipleChoice"), tokenizer, corpus, ["loss"], n_resamples=0)


# --- what a model is, whatever its class is called --------------------------------------------------------------------


def test_a_classifier_is_one_whatever_its_class_is_called(tokenizer, corpus):
    class Toxicity(transformers.BertForSequenceClassification):
        pass

    class TokensLikeSequenceClassification(transformers.BertForTokenClassification):
        pass

    config = transformers.BertConfig(**zoo.BERT, num_labels=3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, other = Toxicity(config).eval(), TokensLikeSequenceClassification(config).eval()
    close(value(model, tokenizer, corpus, "loss"), plain(model, tokenizer, corpus)[0])
    with pytest.raises(ValueError, match="TokensLikeSequenceClassification"):
        value(other, tokenizer, corpus, "accuracy")


@pytest.mark.parametrize("labels", [7, 8])  # as many as a small forward has tokens
def test_a_label_for_each_token_is_no_class_of_the_text(labels, tokenizer, corpus):
    model = built("ElectraForPreTraining", "ElectraConfig", zoo.BERT | {"num_labels": labels})
    with pytest.raises(ValueError, match="metric 'accuracy' is for classifiers"):
        value(model, tokenizer, corpus, "accuracy")


def test_a_gpt2_classifier_without_padding_reads_one_text_at_a_time(corpus, tokenizer):
    options = {**zoo.GPT2, "pad_token_id": None, "num_labels": 3}
    model = built("GPT2ForSequenceClassification", "GPT2Config", options)
    close(value(model, tokenizer, corpus, "loss"), plain(model, tokenizer, corpus)[0])
