"""Batches hold ids as they are, and what a decoder writes ends where it should."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from helpers import zoo
from helpers.letters import bare, batches_of, corpus, tokenizer, tokens_of, with_repeats, writing
from helpers.worded import of_words

import headroles as hr
from headroles.data.corpus import Corpus, Sentence, Tokens
from headroles.models import batching
from headroles.models.head_model import HeadModel
from headroles.models.tokens import vocabulary


def test_what_is_given_as_ids_is_read_as_they_are_even_beside_text():
    model, tokenizer, twice = with_repeats()
    mixed = hr.Corpus("mixed", (*twice, *corpus(2)))
    encoded = HeadModel(model, tokenizer).encode(mixed)
    assert [tuple(one.ids) for one in encoded.source[:4]] == [sentence.ids for sentence in twice]
    assert all(isinstance(one.sentence, Tokens) == (i < 4) for i, one in enumerate(encoded.source))


def test_unknown_words_are_words_where_their_token_pads_too():
    model, own = zoo.tiny("bert"), tokens_of("bert")
    text = Corpus.of(["a ! b", "c"])  # "!" is no piece
    padded = type(own)(tokenizer_object=own.backend_tokenizer, **own.special_tokens_map | {"pad_token": "<unk>"})
    assert padded.pad_token_id == padded.unk_token_id
    assert padded.unk_token_id not in vocabulary.special(padded, model)
    assert {padded.bos_token_id, padded.eos_token_id} <= vocabulary.special(padded, model)
    (batch,) = batches_of(model, padded, text)
    assert batch.source.content.tolist() == [[False, True, True, True, False], [False, True, False, False, False]]
    expected = hr.score(model, own, text, "confidence", n_resamples=0)
    found = hr.score(model, padded, text, "confidence", n_resamples=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_decoders_start_is_no_word_whatever_its_id_stands_for():
    model = zoo.tiny("marian")
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = tokenizer().unk_token_id
    assert tokenizer().unk_token_id not in vocabulary.special(tokenizer(), model)
    for given in (corpus(3), bare(3)):
        for batch in batches_of(model, tokenizer(), given):
            assert (batch.target.ids[:, 0] == tokenizer().unk_token_id).all()
            assert not batch.target.content[:, 0].any()


def test_the_models_own_output_is_not_truncated_at_the_default_of_generate(recwarn):
    model = zoo.tiny("marian")
    with torch.no_grad():
        model.final_logits_bias[0, zoo.EOS] = -1e9  # it never ends
    handle = HeadModel(model, tokenizer())
    written = handle.encode(Corpus.of(["a b"]))
    (batch,) = handle.batches(written)
    assert batch.target is not None
    assert batch.target.ids.shape == (1, 40)  # its positions
    model.generation_config.max_length = 7
    (batch,) = handle.batches(written)
    assert batch.target is not None
    assert batch.target.ids.shape == (1, 7)
    assert not recwarn.list


def test_a_large_vocabulary_makes_small_batches(monkeypatch):
    for name in ("gpt2", "marian", "bert"):
        model, own = zoo.tiny(name), tokens_of(name)
        size, text = model.get_output_embeddings().weight.shape[0], corpus(6)
        expected = hr.score(model, own, text, "importance", n_resamples=0)
        shapes: list[torch.Size] = []

        with model.get_output_embeddings().register_forward_hook(lambda *call, to=shapes: to.append(call[-1].shape)):
            hr.score(model, own, text, "importance", n_resamples=0)
            assert max(shape.numel() for shape in shapes) > 20 * size, "the bound would change nothing"
            shapes.clear()
            monkeypatch.setattr(batching, "LOGITS", 20 * size)
            found = hr.score(model, own, text, "importance", n_resamples=0)
        assert all(shape.numel() <= 20 * size or shape[0] == 1 for shape in shapes), shapes
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        monkeypatch.undo()


def combined(encoder, decoder, kind="Bert"):
    """An EncoderDecoderModel with these numbers of positions."""
    shape = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "pad_token_id": 0}
    cls = getattr(transformers, f"{kind}Config")
    parts = [cls(**shape, intermediate_size=48, max_position_embeddings=n) for n in (encoder, decoder)]
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*parts)
    config.pad_token_id, config.decoder_start_token_id = 0, 1
    torch.manual_seed(0)
    return transformers.EncoderDecoderModel(config=config).eval()


def pairs(*sizes):
    """Sentence pairs of so many words on each side."""
    rows = (Sentence(" ".join(WORDS[:a]), target=Sentence(" ".join(WORDS[:b]))) for a, b in sizes)
    return Corpus("pairs", tuple(rows))


WORDS = [f"w{number}" for number in range(60)]


@pytest.mark.parametrize(
    ("kind", "encoder", "decoder", "said"),
    [("Bert", 20, 8, "20 (targets: 8)"), ("Bert", 8, 20, "8 (targets: 20)"), ("Bert", 20, 20, "20"),
     ("Roberta", 20, 8, "20 (targets: 8)")]
)  # fmt: skip
def test_texts_past_the_positions_of_either_part_of_a_model_are_left_out(kind, encoder, decoder, said, caplog):
    more = int(kind == "Roberta")  # it counts from the id of padding
    model, tokenizer = combined(encoder + more, decoder + more, kind), of_words(["<pad>", *WORDS], "<pad>")
    fits = [(encoder, 4), (4, decoder)]
    longer = [(encoder + 1, 4), (4, decoder + 1)]
    found = [
        hr.score(model, tokenizer, pairs(*sizes), ["confidence"], n_resamples=0) for sizes in (fits, fits + longer)
    ]
    assert found[0]["confidence"].tolist() == found[1]["confidence"].tolist()
    assert found[1]["confidence"].notna().all()
    assert "too_long:2" in hr.provenance(found[1], "confidence")
    assert f"2 of 4 sentences left out: longer than {said} tokens" in caplog.text


def test_own_output_ends_at_the_positions_of_the_decoder():
    model, tokenizer = combined(20, 8), of_words(["<pad>", *WORDS], "<pad>", pad_token="<pad>")
    model.generation_config.max_length = 12
    model.generation_config.pad_token_id = 0
    given = pairs((5, 2), (20, 2))
    bare = Corpus.of([sentence.text for sentence in given])
    assert hr.score(model, tokenizer, bare, ["confidence"], n_resamples=0)["confidence"].notna().all()
    assert hr.evaluate(model, tokenizer, given, ["bleu"], n_resamples=0)["value"].notna().all()


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("led", "max_encoder_position_embeddings", "max_decoder_position_embeddings"),
        ("llava", "max_position_embeddings", "max_position_embeddings"),
        ("marian", "max_position_embeddings", "max_position_embeddings"),
        ("llama", "max_position_embeddings", "max_position_embeddings"),
        ("t5", None, None),  # relative positions
    ],
)
def test_positions_are_those_of_the_config(name, source, target):
    model = hr.tiny_model(name)
    config = getattr(model.config, "text_config", model.config)
    found = tuple(vocabulary.positions(tokens_of(name), model, target=target) for target in (False, True))
    assert found == tuple(getattr(config, part) if part else 10**9 for part in (source, target))


def test_targets_without_tokens_have_the_end_alone():
    sentences = (Sentence(text, target=Sentence(" ")) for text in ("a b c", "a b"))
    given = writing("marian"), tokens_of("marian"), Corpus("empty", tuple(sentences))
    scores = hr.score(*given, ["confidence", "importance"], n_resamples=0)
    assert scores.loc["enc-self"].notna().all(axis=None)
    assert hr.ablate(*given, n_resamples=0)["ablation[loss]"].notna().all()


FAULTS = """
import resource, torch
from headroles.models.batching import keep_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        pieces = [torch.ones(12 * 2**20) for _ in range(2)]  # of 48 MiB: glibc adapts to 32
        del pieces
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
first = faults()
keep_memory()
faults()
print(first, faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other systems keep memory by rules of their own")
def test_keep_memory_keeps_the_memory_of_a_batch_for_the_next():
    pages = 10 * 2 * 48 * 2**20 // resource.getpagesize()
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    first, then = map(int, done.stdout.split())
    assert then < pages / 10 < first
