"""What classifiers make of padded texts: the library's values beside a plain loop over one text at a time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import transformers
from helpers import zoo
from helpers.close import close
from helpers.worded import of_words

import headroles as hr
from headroles.data.corpus import Corpus, Sentence

SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>"]
SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_labels": 3}
GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "num_labels": 3}
DECODERS = {
    "llama": lambda pad: transformers.LlamaForSequenceClassification(
        transformers.LlamaConfig(**SMALL, intermediate_size=48, pad_token_id=pad)
    ),
    "gpt2": lambda pad: transformers.GPT2ForSequenceClassification(
        transformers.GPT2Config(**GPT2, bos_token_id=1, eos_token_id=2, pad_token_id=pad)
    ),
}


def tokenizer(pad):
    return of_words([*SPECIAL, *map(str, range(60))], eos_token="<eos>", pad_token=pad)


def classifier(name, pad):
    return zoo.drawn(lambda: DECODERS[name](pad))


TEXTS = ["7", "3 9 27 1", "8 8 5", "50 4 31 2 6 7 9", "11 12", "44 2 5 13 21"]
CORPUS = Corpus("numbers", tuple(Sentence(text, label=str(i % 3)) for i, text in enumerate(TEXTS)))


@torch.no_grad()
def losses(model, masked=None):
    """The cross-entropy of each text by itself, where the first head of the first layer may be masked."""
    mask = torch.ones(8)
    mask[0] = masked is None
    rows = []
    with hr.mask_heads(model, mask):
        for i, text in enumerate(TEXTS):
            ids = torch.tensor([[int(word) + len(SPECIAL) for word in text.split()]])
            rows.append(float(F.cross_entropy(model(input_ids=ids).logits, torch.tensor([i % 3]))))
    return torch.tensor(rows).mean()


PADS = [("<eos>", 0), ("<pad>", 2), ("<pad>", None), (None, None), (None, 0), ("<pad>", -1)]


@pytest.mark.parametrize(("name", "pad", "own"), [([*DECODERS][row % 2], *pads) for row, pads in enumerate(PADS)])
def test_a_decoder_classifies_the_last_word_whatever_pads(name, pad, own):
    model = classifier(name, own)
    intact, without = losses(model), losses(model, masked=0)
    table = hr.ablate(model, tokenizer(pad), CORPUS, metric="loss", n_resamples=0)
    close(hr.evaluate(model, tokenizer(pad), CORPUS, ["loss"], n_resamples=0)["value"].iloc[0], intact)
    close(table.iloc[0, 0], without - intact, size=intact)


@pytest.mark.parametrize("method", [("IntegratedGradients", (("n_steps", 4),)), ("FeatureAblation",)])
def test_without_a_padding_id_attributions_are_those_with_one(method):
    score, tokens = hr.Attribution(*method), tokenizer("<pad>")
    tables = [hr.score(classifier("gpt2", own), tokens, CORPUS, [score], n_resamples=0) for own in (0, None)]
    close(tables[1].iloc[:, 0], tables[0].iloc[:, 0])


@pytest.mark.parametrize("own", [0, None])
def test_training_pads_as_the_model_recognises_it(tmp_path, own):
    """With a rate of 0 the loss of a batch is the mean of those of its texts by themselves."""
    model = classifier("llama", own)
    expected = losses(model)  # transformers' Trainer gives the model the padding id of the tokenizer
    history = hr.train(model, tokenizer("<eos>"), CORPUS, tmp_path, epochs=1, rate=0.0)
    close(history["loss"].iloc[-1], expected)
