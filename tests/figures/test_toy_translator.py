"""The toy translator is trained once for real, learns and is kept."""

from __future__ import annotations

import pytest
import torch
import transformers
from marian import pieced
from toy_translator import Settings, pairs, translator

from headroles.data import synthetic
from headroles.data.corpus import Corpus

SETTINGS = Settings(layers=1, width=48, heads=4, steps=300, pairs=6_000, longest=6, vocabulary=500, rate=1e-2)


def held_out() -> Corpus:
    made = synthetic.synthetic_corpus(400, translated=True)
    return Corpus("held out", tuple(one for one in made if len(one.heads) <= SETTINGS.longest))


@torch.inference_mode()
def accuracy(model, tokenizer, corpus) -> float:
    """Teacher-forced accuracy of target tokens, end token included."""
    right, tokens = 0, 0
    collate = transformers.DataCollatorForSeq2Seq(tokenizer, model=model)
    rows = [{"input_ids": tokenizer(one.text)["input_ids"], "labels": tokenizer(one.target.text)["input_ids"]}
            for one in corpus]  # fmt: skip
    for start in range(0, len(rows), 64):
        batch = collate(rows[start : start + 64])
        counted = batch["labels"] != -100
        predicted = model(**batch).logits.argmax(-1)
        right += int((predicted == batch["labels"])[counted].sum())
        tokens += int(counted.sum())
    return right / tokens


@pytest.mark.slow
def test_it_learns_and_is_kept(tmp_path):
    model, tokenizer = translator(tmp_path, SETTINGS)
    assert accuracy(model, tokenizer, held_out()) > 0.5  # untrained: below 0.02
    assert {path.name for path in tmp_path.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    again, _ = translator(tmp_path, SETTINGS)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_what_it_learns_from_is_not_what_it_is_shown():
    small = Settings(layers=1, width=8, heads=1, steps=1, pairs=300, longest=25)
    learnt = {one.text for one in pairs(small)}
    assert len(learnt & {one.text for one in synthetic.synthetic_corpus(300)}) < 3


def test_punctuation_is_never_part_of_a_word():
    tokenizer = pieced(['"Well," said Tom. "Don\'t (ever) go!"'] * 9, 400)
    found = tokenizer.tokenize('"Well," said Tom.')
    assert [one for one in found if not one.strip("▁").isalpha()] == ["▁", '"', ",", '"', "."]
    ids = tokenizer('"Well," said Tom.')["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == '"Well," said Tom.'
