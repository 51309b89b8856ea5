"""Texts longer than a model's positions are left out: an encoder and a decoder may have different limits."""

from __future__ import annotations

import pytest
import torch
import transformers as tf
from helpers.letters import tokens_of

import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.models.head_model import HeadModel
from headroles.tables.frame import fields

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48
}  # fmt: skip


def combined(encoder: int, decoder: int, kind: str = "Bert"):
    """An EncoderDecoderModel with these numbers of positions."""
    cls = getattr(tf, f"{kind}Config")
    configs = [cls(**SIZES, max_position_embeddings=size, pad_token_id=0) for size in (encoder, decoder)]
    config = tf.EncoderDecoderConfig.from_encoder_decoder_configs(*configs)
    config.pad_token_id, config.decoder_start_token_id = 0, 1
    torch.manual_seed(0)
    return tf.EncoderDecoderModel(config=config).eval()


def tokenizer():
    """A tokenizer with the words w0, w1 ..."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: i for i, word in enumerate(["<pad>", *(f"w{i}" for i in range(60))])}
    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tf.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>")


def text(size):
    return " ".join(f"w{i}" for i in range(size))


@pytest.mark.parametrize(("kind", "padding"), [("Bert", 0), ("Roberta", 1)])
def test_each_side_has_its_own_limit(kind, padding, caplog):
    sizes = [(20, 4), (21, 4), (4, 8), (4, 9)]
    corpus = Corpus("long", tuple(Sentence(text(a), target=Sentence(text(b))) for a, b in sizes))
    model = combined(20 + padding, 8 + padding, kind)  # RoBERTa counts from the id of padding
    table = hr.score(model, tokenizer(), corpus, ["confidence"], n_resamples=0)
    assert dict(fields(hr.provenance(table, "confidence")))["too_long"] == "2"
    assert "2 of 4 sentences left out: longer than 20 (targets: 8) tokens" in caplog.text
    assert table["confidence"].notna().all()


def test_own_output_ends_at_the_positions_of_the_decoder():
    model = combined(20, 8)
    model.generation_config.max_length = 12
    model.generation_config.pad_token_id = 0
    corpus = Corpus.of([text(5), text(20)])
    assert hr.score(model, tokenizer(), corpus, ["confidence"], n_resamples=0)["confidence"].notna().all()
    pairs = Corpus("pairs", tuple(Sentence(one.text, target=Sentence("w1 w2")) for one in corpus))
    assert hr.evaluate(model, tokenizer(), pairs, ["bleu"], n_resamples=0)["value"].notna().all()


def test_limits_of_composed_configs():
    led = hr.tiny_model("led")
    handle = HeadModel(led, tokenizer())
    config = led.config
    assert handle.positions == config.max_encoder_position_embeddings
    assert handle.target_positions == config.max_decoder_position_embeddings
    llava = hr.tiny_model("llava")
    assert HeadModel(llava, tokenizer()).positions == llava.config.text_config.max_position_embeddings


@pytest.mark.parametrize("name", ["bert", "marian", "t5", "llama"])
def test_limits_of_other_models_are_what_they_were(name):
    model = hr.tiny_model(name)
    limit = getattr(model.config, "max_position_embeddings", None) or 10**9
    handle = HeadModel(model, tokens_of(name))
    assert {handle.positions, handle.target_positions} == {min(limit, handle.tokenizer.model_max_length)}
