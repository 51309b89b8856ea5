"""A tiny classifier, and objectives by plain formulas on single sentences."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F
import transformers
from helpers import zoo
from helpers.letters import batches_of, corpus, tokens_of

from headroles.data.corpus import Corpus
from headroles.models.attention_hooks import without_cache
from headroles.scores.objectives import Agreement, Loss, Reference, Top

CLASSES = {0: "no", 1: "maybe", 2: "yes"}
ALL = 10**6  # tokens: one batch


@cache
def classifier():
    """A tiny classifier of the same body as "bert"."""
    names = {"id2label": CLASSES, "label2id": {v: k for k, v in CLASSES.items()}}
    config = transformers.BertConfig(**zoo.BERT, num_labels=3, **names)
    return zoo.drawn(lambda: transformers.BertForSequenceClassification(config), seed=1, std=0.5)


def labelled(size=6):
    """The same sentences with labels, by name and by number in turn."""
    labels = ["yes", "0", "maybe", "2", "no", "1"]
    sentences = zip(corpus(size), labels, strict=True)
    return Corpus("labelled", tuple(replace(one, label=label, target=None) for one, label in sentences))


def in_one(model, name, given, max_tokens=ALL):
    """The batches of a corpus, by default a single one."""
    return batches_of(model, tokens_of(name), given, words=False, max_tokens=max_tokens)


def output(model, batch):
    with torch.no_grad():
        return model(**batch.inputs, **without_cache(model))


def alone(model, name, sentence):
    """The logits at the steps of one sentence alone, and the tokens there: [step, vocabulary], [step]."""
    ids = tokens_of(name)(sentence.text, return_tensors="pt")["input_ids"]
    if model.config.is_encoder_decoder:
        labels = tokens_of(name)(sentence.target.text, return_tensors="pt")["input_ids"]
        start = torch.tensor([[model.config.decoder_start_token_id]])
        return model(input_ids=ids, decoder_input_ids=torch.cat([start, labels[:, :-1]], 1)).logits[0], labels[0]
    logits = model(input_ids=ids).logits[0]
    if name == "bert":  # the token itself, where it is a word
        words = ids[0] >= zoo.FIRST_WORD
        return logits[words], ids[0, words]
    return logits[:-1], ids[0, 1:]


FORMULAS = {
    Top: lambda logits, _: logits.index_fill(-1, torch.tensor([zoo.PAD]), -torch.inf).amax(-1),
    Reference: lambda logits, labels: logits[range(len(labels)), labels],
    Loss: lambda logits, labels: F.cross_entropy(logits, labels, reduction="none"),
    Agreement: lambda _, labels: torch.ones(len(labels)),
}
