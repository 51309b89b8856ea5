"""Continuations: written token by token in a plain loop with a cache, scored as the attention at each step."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.close import close
from helpers.commands import run
from helpers.letters import corpus, tokenizer, tokens_of
from transformers import DynamicCache

import headroles as hr
from headroles.data.corpus import Corpus
from headroles.data.sentences import Linked
from headroles.models.head_model import HeadModel
from headroles.scores import outputs
from headroles.tables import frame

NEW = 7
TEXTS = Corpus("letters", corpus(10, translated=False).sentences)  # of several lengths, with trees
SCORES = ["confidence", "position", "sink"]


@cache
def model_of(kind="llama"):
    options = {"num_key_value_heads": 2, "max_position_embeddings": 128} if kind == "llama" else {}
    model = hr.tiny_model(kind, **options)
    model.generation_config.eos_token_id = [int(ends()[0]), 2]
    return model


@cache
def ends():
    """A token that the model writes after the first text as its third one: its end token, so that lengths differ."""
    model = hr.tiny_model("llama", num_key_value_heads=2, max_position_embeddings=128)
    return written(model, tokenizer("<s> $A")(TEXTS[0].text)["input_ids"], ())[2:3]


@torch.no_grad()
def written(model, ids, ends):
    new = []
    while len(new) < NEW and not (new and new[-1] in ends):
        new.append(int(model(torch.tensor([[*ids, *new]])).logits[0, -1].argmax()))
    return new


@torch.no_grad()
def read_while_writing(model, ids, ends):
    """What a model writes after a text, and the attention [layer, head, key] of each written token, with a cache."""
    eager = deepcopy(model)
    eager.set_attn_implementation("eager")
    past = DynamicCache(config=model.config)
    output = eager(torch.tensor([ids]), cache=past, use_cache=True)
    new, rows = [], []
    while len(new) < NEW and not (new and new[-1] in ends):
        new.append(int(output.logits[0, -1].argmax()))
        output = eager(torch.tensor([new[-1:]]), cache=past, use_cache=True, output_attentions=True)
        rows.append(np.stack([layer[0, :, 0].numpy() for layer in output.attentions]))
    return new, rows


def test_scores_are_those_of_attention_while_the_model_writes():
    model, tokens = model_of(), tokenizer("<s> $A")
    table = hr.score(model, tokens, TEXTS, SCORES, n_resamples=0, generate=NEW, without_sink=True)
    stops, special = model.generation_config.eos_token_id, {0, 1, 2}
    largest, previous, first, queries, pairs, lengths = 0.0, 0.0, 0.0, 0, 0, set()
    off, counted = 0.0, 0.0  # the sink
    for sentence in TEXTS:
        ids = tokens(sentence.text)["input_ids"]
        new, rows = read_while_writing(model, ids, stops)
        content = np.array([token not in special for token in [*ids, *new]])
        for place, row in enumerate(rows, len(ids)):
            if not content[place]:
                continue
            on_content = row * content[: place + 1]
            largest = largest + on_content.max(-1)
            previous = previous + (on_content.argmax(-1) == place - 1) * content[place - 1]
            first = first + row[..., 0]
            others = row * content[: place + 1] * (np.arange(place + 1) > 0)
            left = others.sum(-1)  # [layer, head]
            off, counted = off + np.where(left >= 0.01, others.max(-1) / left, 0), counted + (left >= 0.01)
            queries, pairs = queries + 1, pairs + content[place - 1]
        lengths.add(len(new))
    assert len(lengths) > 1
    close(table["confidence"], (largest / queries).flatten())
    close(table["position[-1]"], (previous / pairs).flatten())
    close(table["sink[first]"], (first / queries).flatten())
    close(table["confidence-nosink"], (off / counted).flatten())


def test_nothing_depends_on_batches_and_the_provenance_names_the_number_of_tokens():
    model, tokens = model_of(), tokenizer("$A")
    tables = [hr.score(model, tokens, TEXTS, SCORES, n_resamples=0, generate=5, max_tokens=size) for size in (1, 4096)]
    for name in tables[0]:
        close(tables[0][name], tables[1][name], size=1)
    assert "|generate:5|" in frame.provenance(tables[0], "confidence")
    plain = hr.score(model, tokens, TEXTS, SCORES, n_resamples=0)
    assert "generate" not in frame.provenance(plain, "confidence")
    assert (plain["confidence"] - tables[0]["confidence"]).abs().max() > 0.01


def test_next_tokens_are_those_that_were_written_its_end_included():
    handle, tokens = HeadModel(model_of(), tokenizer("$A")), tokenizer("$A")
    (batch,) = handle.batches(handle.encode(TEXTS[:4], generate=NEW))
    labels = outputs.labels(handle, batch)
    for number, row in zip(batch.numbers, labels, strict=True):
        ids = tokens(TEXTS[number].text)["input_ids"]
        expected = written(model_of(), ids, model_of().generation_config.eos_token_id)
        assert row[len(ids) - 1 :].tolist()[: len(expected)] == expected
        assert (row[: len(ids) - 1] == -100).all()
        assert (row[len(ids) - 1 + len(expected) :] == -100).all()


def test_a_text_as_long_as_the_model_reads_is_not_continued():
    model = hr.tiny_model("llama", max_position_embeddings=8)
    handle = HeadModel(model, tokenizer("$A"))
    linked = Linked("ab", ((0, 1), (1, 2)), links=((0, 1),))  # which what is written has not
    encoded = handle.encode(Corpus.of(["abcdefgh", "abcdef", linked]), generate=20)
    assert [(len(row), row.prompt_length) for row in encoded.source] == [(8, 8), (8, 6), (8, 2)]


def test_trees_leave_and_a_study_keeps_another_table_for_another_number(tmp_path):
    model, tokens = model_of(), tokenizer("$A")
    with pytest.raises(ValueError, match="syntax"):
        hr.score(model, tokens, TEXTS, ["syntax"], n_resamples=0, generate=3)
    kept = [hr.score(model, tokens, TEXTS, SCORES, n_resamples=0, generate=n, study=tmp_path) for n in (3, 3)]
    assert kept[0].equals(kept[1])
    text = frame.provenance(hr.load_table(tmp_path / "heads.parquet"), "confidence")
    assert "|generate:3|" in text


def test_an_encoder_decoder_writes_its_targets_of_that_many_tokens():
    model, tokens = zoo.tiny("marian"), tokens_of("marian")
    table = hr.score(model, tokens, corpus(6), ["confidence"], n_resamples=0, generate=4)
    assert "|decoder:greedy|generate:4|" in frame.provenance(table, "confidence")
    handle = HeadModel(model, tokens)
    for batch in handle.batches(handle.encode(corpus(6), generate=4)):
        for row, number in enumerate(batch.numbers):
            ids = tokens(corpus(6)[number].text, return_tensors="pt", return_token_type_ids=False)
            out = model.generate(**ids, max_new_tokens=4, num_beams=1, do_sample=False)[0]
            mask = batch.target.attention_mask[row]
            assert batch.target.ids[row][mask].tolist() == out[: int(mask.sum())].tolist()
            assert int(mask.sum()) <= 5


@pytest.mark.slow
def test_the_command_line_scores_what_is_written(tmp_path):
    text, study = tmp_path / "text.txt", tmp_path / "study"
    text.write_text("a b c\nd e\n")
    hr.save(model_of(), tokenizer("$A"), tmp_path / "model")
    options = ["--generate", 6, "--scores", "confidence", "--study", study]
    done = run("score", tmp_path / "model", text, *options)
    assert done.code == 0, done.err
    expected = hr.score(model_of(), tokenizer("$A"), hr.read(text), ["confidence"], generate=6)
    close(hr.load_table(study / "heads.parquet")["confidence"], expected["confidence"])
