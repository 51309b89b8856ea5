"""A tokenizer has to match its model: by sizes, by the tokenizer loaded with it, and by the model's folder."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

import headroles as hr

WORDS = [f"w{number}" for number in range(196)]
CORPUS = hr.Corpus("words", (hr.Sentence("w1 w2 w3 w1"), hr.Sentence("w4 w2 w9")))
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def tokenizer(words=WORDS, special=SPECIAL):
    numbered = {word: number for number, word in enumerate([*special, *words])}
    made = Tokenizer(WordLevel(numbered, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")


def model(size=200, **options):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return BertModel(BertConfig(vocab_size=size, **sizes, **options)).eval()


def scored(one, other):
    return hr.score(one, other, CORPUS, ["confidence"], n_resamples=0)


def refused(one, other, wrong):
    message = f"the tokenizer does not fit the model: {wrong}; load both from one checkpoint"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        scored(one, other)


@pytest.fixture
def folder(tmp_path):
    return hr.save(model(), tokenizer(), tmp_path / "model")


SHUFFLED = "198 of the 200 tokens of TokenizersBackend have other ids in the model's own tokenizer"


def shuffled():
    """As many tokens, in another order."""
    return tokenizer([*WORDS[1:], WORDS[0]], ["[UNK]", "[PAD]", "[CLS]", "[SEP]"])


def test_vocabulary_differs_from_the_loaded_one(folder, tmp_path):
    one, own = hr.load(folder)
    folder.rename(tmp_path / "elsewhere")  # what `load` gave is known without the folder
    refused(one, shuffled(), SHUFFLED)
    assert len(scored(one, own)) == 2


def test_vocabulary_differs_from_the_one_in_the_folder(folder):
    one = BertModel.from_pretrained(folder).eval()
    refused(one, shuffled(), SHUFFLED)
    assert len(scored(one, tokenizer())) == 2
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert len(scored(BertModel.from_pretrained(folder).eval(), shuffled())) == 2  # nothing is known of it


def test_tokens_may_have_been_added(folder):
    one, own = hr.load(folder)
    own.add_special_tokens({"additional_special_tokens": ["<new>"]})  # has no embedding, and is not used
    assert len(scored(one, own)) == 2
    less = tokenizer(WORDS[:150])  # trained on less, the same as far as it goes
    assert len(scored(one, less)) == 2


def test_tokens_beyond_the_embeddings():
    refused(model(128), tokenizer(), "TokenizersBackend has tokens up to 199, BertModel has embeddings for 128")


def test_embeddings_may_be_padded():
    assert len(scored(model(1024), tokenizer())) == 2


def test_a_folder_with_the_tokenizer_of_another_model(tmp_path):
    """Far fewer tokens than embeddings, and another padding token than the model's config says."""
    hr.save(model(4000), tokenizer(), tmp_path / "right")
    assert hr.load(tmp_path / "right")  # fewer tokens alone
    hr.save(model(4000), shuffled(), tmp_path / "wrong")
    message = "has 200 tokens, BertModel has embeddings for 4000, and its config has other ids for pad token"
    with pytest.raises(ValueError, match=message):
        hr.load(tmp_path / "wrong")


def test_a_copied_model_is_compared_with_its_folder(folder):
    one, _ = hr.load(folder)
    refused(copy.deepcopy(one), shuffled(), SHUFFLED)
