"""Batches hold ids as they are, and what a decoder writes ends where it should."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from helpers import planted, zoo
from helpers.errors import given_corpus
from helpers.letters import bare, corpus, tokenizer, tokens_of, with_repeats
from tokenizers import Tokenizer, models, pre_tokenizers

import headroles as hr
from headroles.data.corpus import Corpus, Sentence, Tokens
from headroles.models import batching
from headroles.models.batching import encode
from headroles.models.tokens import vocabulary


def test_what_is_given_as_ids_is_read_as_they_are_even_beside_text():
    model, tokenizer, twice = with_repeats()
    mixed = hr.Corpus("mixed", (*twice, *corpus(2)))
    encoded = encode(mixed, tokenizer, model)
    assert [tuple(one.ids) for one in encoded.source[:4]] == [sentence.ids for sentence in twice]
    assert all(isinstance(one.sentence, Tokens) == (i < 4) for i, one in enumerate(encoded.source))


def test_unknown_words_are_words_where_their_token_pads_too():
    model, own = zoo.tiny("bert"), tokens_of("bert")
    text = Corpus.of(["a ! b", "c"])  # "!" is no piece
    padded = type(own)(tokenizer_object=own.backend_tokenizer, **own.special_tokens_map | {"pad_token": "<unk>"})
    assert padded.pad_token_id == padded.unk_token_id
    assert padded.unk_token_id not in vocabulary.special(padded, model)
    assert {padded.bos_token_id, padded.eos_token_id} <= vocabulary.special(padded, model)
    (batch,) = batching.batches(batching.encode(text, padded, model), model)
    assert batch.source.content.tolist() == [[False, True, True, True, False], [False, True, False, False, False]]
    expected = hr.score(model, own, text, "confidence", n_resamples=0)
    found = hr.score(model, padded, text, "confidence", n_resamples=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_decoders_start_is_no_word_whatever_its_id_stands_for():
    model = zoo.tiny("marian")
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = tokenizer().unk_token_id
    assert tokenizer().unk_token_id not in vocabulary.special(tokenizer(), model)
    for given in (corpus(3), bare(3)):
        for batch in batching.batches(batching.encode(given, tokenizer(), model), model):
            assert (batch.target.ids[:, 0] == tokenizer().unk_token_id).all()
            assert not batch.target.content[:, 0].any()


def test_the_models_own_output_is_not_truncated_at_the_default_of_generate(recwarn):
    model = zoo.tiny("marian")
    with torch.no_grad():
        model.final_logits_bias[0, zoo.EOS] = -1e9  # it never ends
    written = encode(given_corpus(Sentence("the a .")), _small(), model)
    (batch,) = batching.batches(written, model)
    assert batch.target is not None
    assert batch.target.ids.shape == (1, 40)  # its positions
    model.generation_config.max_length = 7
    (batch,) = batching.batches(written, model)
    assert batch.target is not None
    assert batch.target.ids.shape == (1, 7)
    assert not recwarn.list


def _small() -> Any:
    """The planted tokenizer with the first 64 of its pieces."""
    made = json.loads(planted.tokenizer().backend_tokenizer.to_str())
    vocabulary = made["model"]["vocab"]
    made["model"]["vocab"] = {piece: number for piece, number in vocabulary.items() if number < zoo.VOCABULARY}
    backend = transformers.tokenization_utils_tokenizers.TokenizerFast.from_str(json.dumps(made))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]"
    )


def test_a_large_vocabulary_makes_small_batches(monkeypatch):
    for name in ("gpt2", "marian", "bert"):
        model, own = zoo.tiny(name), tokens_of(name)
        size, text = model.get_output_embeddings().weight.shape[0], corpus(6)
        expected = hr.score(model, own, text, "importance", n_resamples=0)
        shapes: list[torch.Size] = []

        def keep(_: object, __: object, output: torch.Tensor, shapes: list[torch.Size] = shapes) -> None:
            shapes.append(output.shape)

        with model.get_output_embeddings().register_forward_hook(keep):
            hr.score(model, own, text, "importance", n_resamples=0)
            assert max(shape.numel() for shape in shapes) > 20 * size, "the bound would change nothing"
            shapes.clear()
            monkeypatch.setattr(batching, "LOGITS", 20 * size)
            found = hr.score(model, own, text, "importance", n_resamples=0)
        assert all(shape.numel() <= 20 * size or shape[0] == 1 for shape in shapes), shapes
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("encoder", "decoder", "said"), [(20, 32, "20 (targets: 32)"), (32, 20, "32 (targets: 20)"), (20, 20, "20")]
)
def test_texts_past_the_positions_of_either_part_of_a_model_are_left_out(encoder, decoder, said, caplog):
    shape = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    parts = [
        transformers.BertConfig(**shape, intermediate_size=48, max_position_embeddings=n) for n in (encoder, decoder)
    ]
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*parts)
    config.pad_token_id, config.decoder_start_token_id = 0, 1
    torch.manual_seed(0)
    model = transformers.EncoderDecoderModel(config=config).eval()
    inner = Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w3"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="w0")
    text = " ".join(["w5"] * min(encoder, decoder))
    fits, longer = Sentence(text, target=Sentence(text)), Sentence(f"{text} w5", target=Sentence(f"{text} w5"))
    found = [
        hr.score(model, tokenizer, Corpus("c", sentences), ["confidence"], n_resamples=0)["confidence"].tolist()
        for sentences in ((fits,), (fits, longer))
    ]
    assert found[0] == found[1]
    assert f"1 of 2 sentences left out: longer than {said} tokens" in caplog.text
