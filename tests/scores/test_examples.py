"""Attention on example sentences is the model's own."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.attentions import own_attentions
from helpers.close import bound
from helpers.letters import PIECES, batches_of, corpus, tokenizer, tokens_of, writing

import headroles as hr
from headroles.models.identity import weights_digest
from headroles.tables import frame
from headroles.tables.study import Study


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, "dec-self") for name in ("gpt2", "bloom", "marian")]
    + [(name, "enc-self") for name in ("bert", "marian")]
    + [("marian", "cross")],
)
def test_the_attention_of_one_head_is_the_models_own(name, kind):
    model, sentence = zoo.tiny(name), corpus()[0]
    found = hr.attention_matrix(model, tokens_of(name), sentence, (kind, 1, 2))
    batch = batches_of(model, tokens_of(name), corpus()[:1])[0]
    own = own_attentions(model, batch.inputs)[kind, 1][0, 2]
    np.testing.assert_allclose(found, own, atol=bound(1))
    sides = [batch.queries(kind).ids[0], batch.keys(kind).ids[0]]
    assert [list(found.index), list(found.columns)] == [[PIECES[i] for i in ids] for ids in sides]


def test_the_attention_of_a_bare_text():
    model = writing("marian").train()
    found = hr.attention_matrix(model, tokenizer(), "ab c", ("enc-self", 0, 0))
    assert list(found.columns) == ["a", "##b", "c", "</s>"]
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=bound(1))
    assert model.training
    assert hr.attention_matrix(model, tokenizer(), "ab c", ("cross", 0, 0)).index[0] == "</s>"  # the decoder's start
    half = hr.attention_matrix(model.bfloat16(), tokenizer(), "ab c", ("enc-self", 0, 0))
    np.testing.assert_allclose(half, found, atol=0.02)


def greedy(name: str) -> Any:
    return corpus(5, trees=False, translated=name == "marian")


@pytest.mark.parametrize("name", ["marian", "bert", "gpt2"])
def test_attend_keeps_what_attention_gives(tmp_path, name):
    model, tokenizer, sentences = zoo.tiny(name), tokens_of(name), greedy(name)
    table = hr.attention_examples(model, tokenizer, sentences, limit=3, study=Study(tmp_path))
    assert list(table.groupby("sentence", sort=False).groups) == [0, 1, 2]
    assert [tuple(head) for head in table[table["sentence"] == 1][frame.LEVELS].to_numpy()] == list(
        hr.models.head_index(model)
    )
    fields = dict(frame.fields(frame.provenance(table, "weights")))
    assert (fields["weights"], fields["corpus"]) == (weights_digest(model), "letters")
    for row in table.iloc[::5].itertuples():
        whole_one = hr.attention_matrix(model, tokenizer, sentences[row.sentence], (row.kind, row.layer, row.head))
        assert (list(row.queries), list(row.keys)) == (list(whole_one.index), list(whole_one.columns))
        np.testing.assert_allclose(row.weights, whole_one.to_numpy().ravel(), atol=0.00051)
    again = Study(tmp_path).load("attention")
    assert [list(one) for one in again["queries"]] == [list(one) for one in table["queries"]]
    np.testing.assert_array_equal(np.concatenate(again["weights"]), np.concatenate(table["weights"]))


def test_without_translations_the_decoder_reads_its_own_output(tmp_path):
    table = hr.attention_examples(
        zoo.tiny("marian"), tokens_of("marian"), corpus(2, trees=False, translated=False), study=Study(tmp_path)
    )
    assert "|decoder:greedy|" in frame.provenance(table, "weights")
    assert table.loc[table["kind"] == "cross", "queries"].map(len).min() > 0
    assert table["target"].notna().all()
    assert table["sentence"].nunique() == 2


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped"])
def test_attention_on_what_a_decoder_writes_is_that_of_a_plain_loop(name, tmp_path):
    model, letters, text = deepcopy(zoo.tiny(name)), tokens_of(name), "a b c"
    ids = letters(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        for _ in range(5):
            ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], dim=1)
        model.set_attn_implementation("eager")
        expected = model(input_ids=ids, output_attentions=True).attentions
    model = zoo.tiny(name)
    given = hr.Corpus.of([text])
    table = hr.attention_examples(model, letters, given, generate=5, study=tmp_path)
    before = len(letters(text)["input_ids"])
    assert set(table["written"]) == {5}
    assert set(table["target"]) == {letters.decode(ids[0, before:].tolist())}
    for row in table.itertuples():
        assert list(row.queries) == list(row.keys) == letters.convert_ids_to_tokens(ids[0].tolist())
        np.testing.assert_allclose(row.weights, expected[row.layer][0, row.head].flatten(), atol=0.00051)
    assert "|generate:5|" in f"{frame.provenance(table, 'weights')}|"
    plain = hr.attention_examples(model, letters, given, study=tmp_path)  # what is kept is of another text
    assert set(plain["written"]) == {0}
    assert plain["queries"].map(len).max() == before


def test_attention_on_what_an_encoder_decoder_writes():
    table = hr.attention_examples(zoo.tiny("marian"), tokens_of("marian"), hr.Corpus.of(["a b c"]), generate=4)
    for kind, rows in table.groupby("kind"):
        assert set(rows["written"]) == ({0} if kind == "enc-self" else {len(rows["queries"].iloc[0]) - 1})
    with pytest.raises(ValueError, match="needs a model that writes text, got BertForMaskedLM"):
        hr.attention_examples(zoo.tiny("bert"), tokens_of("bert"), hr.Corpus.of(["a b c"]), generate=4)
