"""Words with labels, a model that labels words, and its loss as transformers' `run_ner` has it."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import datasets
import torch
import transformers
from helpers import zoo

TAGGED = [
    (["abba", "c", "dab"], ["PER", "O", "LOC"]), (["a"], ["O"]),
    (["cab", "de", "f", "fed", "ba"], ["O", "PER", "O", "O", "LOC"]),
    (["bead", "a"], ["LOC", "PER"]), (["e", "faded"], ["O", "O"]),
]  # fmt: skip
NAMES = ("LOC", "O", "PER")  # of the model; those of a data set have another order


@cache
def letters():
    """A tokenizer with a piece for each letter of a word."""
    pieces = ["<pad>", "<bos>", "<eos>", "<unk>", *"abcdef", *(f"##{letter}" for letter in "abcdef")]
    special = {"pad_token": "<pad>", "cls_token": "<bos>", "sep_token": "<eos>", "unk_token": "<unk>"}
    return transformers.BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)}, **special)


def tagger(name="BertForTokenClassification", options=zoo.BERT):
    classes = {"id2label": dict(enumerate(NAMES)), "label2id": {name: number for number, name in enumerate(NAMES)}}
    config = getattr(transformers, name.replace("ForTokenClassification", "Config"))(
        **options | {"pad_token_id": 0} | classes
    )
    return zoo.drawn(lambda: getattr(transformers, name)(config))


def tagged(make=list):
    return make([{"tokens": words, "ner_tags": names} for words, names in TAGGED])


def in_a_data_set(rows, names=("O", "PER", "LOC")):
    """The rows, with numbers of classes in the order of a data set."""
    numbered = [row | {"ner_tags": [names.index(name) for name in row["ner_tags"]]} for row in rows]
    classes = datasets.List(datasets.ClassLabel(names=list(names)))
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "ner_tags": classes})
    return datasets.Dataset.from_list(numbered, features=features)


def run_ner(model):
    """The labels of each text's tokens, the model's own loss and the number of right words, as in run_ner."""
    for words, names in TAGGED:
        encoding, labels = letters()(words, is_split_into_words=True, return_tensors="pt"), []
        for before, word in pairwise([None, *encoding.word_ids()]):
            labels.append(-100 if word in (None, before) else NAMES.index(names[word]))
        output = model(encoding["input_ids"], labels=torch.tensor([labels]))
        counted = torch.tensor(labels) >= 0
        yield labels, output.loss, float((output.logits[0].argmax(-1) == torch.tensor(labels))[counted].double().sum())
