"""A tokenizer has to match its model, and to begin texts as those that the model was trained on."""

from __future__ import annotations

import copy
import gc
import logging
import re

import pytest
import torch
from helpers.worded import of_words
from tokenizers import processors
from transformers import (
    BertConfig,
    BertModel,
    BloomConfig,
    BloomForCausalLM,
    MptConfig,
    MptForCausalLM,
    WhisperConfig,
    WhisperForCausalLM,
)

import headroles as hr
from headroles.models.tokens import vocabulary
from headroles.tables import frame

WORDS = [f"w{number}" for number in range(196)]
CORPUS = hr.Corpus("words", (hr.Sentence("w1 w2 w3 w1"), hr.Sentence("w4 w2 w9")))
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def tokenizer(words=WORDS, special=SPECIAL):
    return of_words([*special, *words], "[UNK]", pad_token="[PAD]")


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
    refused(copy.deepcopy(one), shuffled(), SHUFFLED)  # which is compared with the folder
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


def test_tokens_beyond_the_embeddings_are_refused_and_embeddings_may_be_padded():
    refused(model(128), tokenizer(), "TokenizersBackend has tokens up to 199, BertModel has embeddings for 128")
    assert len(scored(model(1024), tokenizer())) == 2


@pytest.mark.parametrize("special", [SPECIAL, ["[UNK]", "[PAD]", "[CLS]", "[SEP]"]])
def test_a_folder_with_the_tokenizer_of_another_model(special, tmp_path):
    """Far fewer tokens than embeddings, whatever the special tokens are; MiniLM's folder with a Marian's tokenizer."""
    hr.save(model(4000), tokenizer(special=special), tmp_path)
    with pytest.raises(ValueError, match="TokenizersBackend has 200 tokens, BertModel has embeddings for 4000; load"):
        hr.load(tmp_path)


def test_added_tokens_and_those_of_the_models_own_tokenizer_have_embeddings(tmp_path):
    """Tokens of images or sound are often added ones; a tokenizer that was trained on less fits as far as it goes."""
    own = tokenizer()
    own.add_tokens([f"<image-{number}>" for number in range(3000)])
    hr.save(model(3200), own, tmp_path)
    one, loaded = hr.load(tmp_path)
    assert len(scored(one, loaded)) == len(scored(one, tokenizer())) == 2


SMALL = {"vocab_size": 200, "pad_token_id": 0}
MPT = MptConfig(d_model=32, n_heads=4, n_layers=2, expansion_ratio=2, max_seq_len=16, **SMALL)
WHISPER = WhisperConfig(
    d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=48, max_target_positions=16, **SMALL
)
BLOOM = BloomConfig(hidden_size=32, n_layer=2, n_head=4, **SMALL)


@pytest.mark.parametrize(
    ("make", "longest"),
    [
        (lambda: MptForCausalLM(MPT), 16),
        (lambda: WhisperForCausalLM(WHISPER), 16),
        (lambda: BloomForCausalLM(BLOOM), 30),  # reads texts of any length
    ],
)
def test_texts_that_a_model_does_not_read_are_left_out_whatever_its_config_calls_the_limit(make, longest):
    torch.manual_seed(0)
    one, sizes = make().eval(), [5, 30, 15, 16, 17, 9]
    rows = [" ".join(WORDS[place : place + size]) for place, size in enumerate(sizes)]
    for chosen in (rows, rows[:1] + rows[4:], rows[:1]):
        fits = [len(row.split()) <= longest for row in chosen]
        table = hr.score(one, tokenizer(), hr.Corpus.of(chosen), ["confidence"], n_resamples=0)
        fields = frame.fields(hr.provenance(table, "confidence"))
        assert dict(fields)["too_long"] == str(fits.count(False))
    assert hr.score(one, tokenizer(), hr.Corpus.of(rows[2:4]), ["confidence"], n_resamples=0).notna().all(axis=None)
    own = tokenizer()
    own.model_max_length = 9
    assert vocabulary.positions(own, one) == 9


TEXTS = hr.Corpus.of(["a b", "b a a"])


def tokenizer_of(template="$A", *, bos=True, **options):
    """Words a and b, after a beginning token where the template has it."""
    roles = {"pad_token": "<pad>"} | ({"bos_token": "<s>"} if bos else {}) | options
    made, special = of_words(["<pad>", "<s>", "<u>", "a", "b", "<x>"], "<u>", **roles), [("<s>", 1), ("<x>", 5)]
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    return made


def model_of(kind="llama", **options):
    return hr.tiny_model(kind, vocab_size=6, **({"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0} | options))


def warned(caplog, model, tokenizer):
    caplog.clear()
    with caplog.at_level(logging.WARNING, "headroles"):
        for _ in range(2):
            hr.score(model, tokenizer, TEXTS, ["confidence"], n_resamples=0)
    return [record.getMessage() for record in caplog.records if record.name.endswith("vocabulary")]


@pytest.mark.parametrize("begins", [True, False])
def test_another_beginning_than_that_of_the_checkpoint_is_warned_of_once(begins, caplog, tmp_path):
    own, other = tokenizer_of("<s> $A"), tokenizer_of("$A")
    own, other = (own, other) if begins else (other, own)
    hr.save(model_of(), own, tmp_path)
    model, loaded = hr.load(tmp_path)
    assert warned(caplog, model, loaded) == []
    (message,) = warned(caplog, model, other)
    assert f"was trained {'with' if begins else 'without'} it: the tokenizer of its checkpoint does so" in message
    assert message.endswith(f"or set add_bos_token={begins}")


def test_a_chat_template_with_a_beginning_token_says_it(caplog):
    template = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    (message,) = warned(caplog, model_of(), tokenizer_of("$A", chat_template=template))
    assert "does not begin a text with its token <s>, and LlamaForCausalLM was trained with it" in message
    assert "its chat template begins with it" in message


def test_nothing_is_said_of_texts_that_have_their_beginning(caplog):
    """A template that writes the token itself, and texts that were rendered before."""
    template = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    model, tokens = model_of(), tokenizer_of("$A", chat_template=template)
    for corpus in (hr.Corpus.of(["a b"], chat=True), ["<s> a b", "<s> b"]):
        hr.score(model, tokens, corpus, ["confidence"], n_resamples=0)
        assert caplog.messages == []
    assert len(warned(caplog, model, tokens)) == 1  # texts without it


def test_another_token_than_that_of_the_config_is_warned_of(caplog):
    (message,) = warned(caplog, model_of(), tokenizer_of("<x> $A", bos_token="<x>"))
    assert "begins a text with token 5 (<x>), and the config of LlamaForCausalLM names token 1" in message


def test_nothing_is_said_where_nothing_is_known(caplog):
    silent = [
        (model_of(), tokenizer_of("$A")),  # GPT-2, SmolLM2: a token with a name that never begins a text
        (model_of(), tokenizer_of("$A", bos=False)),  # Qwen2: a config with a token that the tokenizer lacks
        (model_of(), tokenizer_of("<s> $A")),  # Gemma, Llama
        (model_of(), tokenizer_of("$A", add_bos_token=False, chat_template="{{ bos_token }}")),
        (model_of("bert"), tokenizer_of("$A", add_bos_token=True)),  # does not generate
    ]
    assert [warned(caplog, *pair) for pair in silent] == [[]] * len(silent)


def test_what_was_warned_of_is_forgotten_with_its_tokenizer(caplog):
    """Another tokenizer may take the place of a freed one in memory."""
    model, template = model_of(), "{{ bos_token }}"
    assert [len(warned(caplog, model, tokenizer_of("$A", chat_template=template))) for _ in range(3)] == [1] * 3
    gc.collect()
    assert len(vocabulary._checked[model]) == 0
