"""The toy translator is trained once for real, kept, learns, and its heads can be scored, gated and told apart."""

from __future__ import annotations

import pytest
import torch
import transformers
from marian import pieced
from toy_translator import Settings, pairs, translator

import headroles as hr
from headroles.data import synthetic
from headroles.data.corpus import Corpus

SETTINGS = Settings(layers=1, width=48, heads=4, steps=400, pairs=10_000, longest=6, vocabulary=500, rate=1e-2)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache") / "translator"
    return folder, *translator(folder, SETTINGS)


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
def test_it_learns_and_is_kept(kept):
    folder, model, tokenizer = kept
    assert accuracy(model, tokenizer, held_out()) > 0.5  # untrained: below 0.02
    assert {path.name for path in folder.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    again, _ = translator(folder, SETTINGS)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_every_kind_of_head_is_scored_on_gold_trees_of_both_languages(kept):
    _, model, tokenizer = kept
    heads = hr.score(model, tokenizer, held_out(), n_resamples=50)
    assert list(heads.index.unique("kind")) == ["enc-self", "dec-self", "cross"]
    for kind, column in [
        ("enc-self", "syntax[nsubj dep>head]"),
        ("dec-self", "syntax[nsubj head>dep]"),  # the verb is last: it sees its subject, not the other way round
        ("cross", "alignment[monotone]"),
    ]:
        assert heads.loc[kind, column].between(-1, 1).all()
    assert heads.loc["dec-self", "syntax[nsubj dep>head]"].isna().all()
    assert "decoder:reference" in hr.provenance(heads, "confidence")
    assert "unaligned:0" in hr.provenance(heads, "confidence")
    assert set(hr.roles(heads)["alignment[monotone]"]) <= {True, False}


@pytest.mark.slow
def test_masking_all_cross_heads_ruins_the_translation(kept):
    _, model, tokenizer = kept
    whole = accuracy(model, tokenizer, held_out())
    cross = [head for head in hr.models.head_index(model) if head[0] == "cross"]
    with hr.mask_heads(model, hr.head_mask(model, cross)):
        assert accuracy(model, tokenizer, held_out()) < whole - 0.1


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
