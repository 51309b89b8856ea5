"""Readers and the CoNLL-U writer: real treebanks and tables, laws, each error; what a corpus may be given as."""

from __future__ import annotations

import tempfile
from pathlib import Path

import datasets
import pandas as pd
import pytest
from helpers.letters import corpus as letters
from helpers.letters import tokens_of, writing
from helpers.treebanks import ZUM
from hypothesis import given, settings
from hypothesis import strategies as st

import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.data.readers import as_corpus, read, write

HI = "# text = Hi!\n1\tHi\t_\tINTJ\t_\t_\t0\troot\t_\tSpaceAfter=No\n2\t!\t_\tPUNCT\t_\t_\t1\tpunct\t_\t_\n\n"

# the writer
_CHARACTERS = st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]) | st.sampled_from('_-#="')
_FORM = st.lists(st.text(_CHARACTERS, min_size=1, max_size=5), min_size=1, max_size=2).map(" ".join)
_SPACE = st.sampled_from(["", " ", "  ", "\u00a0", "\u2028"])


@st.composite
def sentences(draw: st.DrawFn) -> Sentence:
    """Words and multiword tokens with any spacing, under a random tree."""
    text, found = draw(_SPACE), []
    for form, lost, space in draw(st.lists(st.tuples(_FORM, st.integers(0, 3), _SPACE), min_size=1, max_size=6)):
        found += [None] * lost if lost else [(len(text), len(text) + len(form))]
        text += form + space
    order = draw(st.permutations(range(len(found))))
    heads = dict.fromkeys(found and order[:1], -1)
    for place, word in enumerate(order[1:], 1):
        heads[word] = order[draw(st.integers(0, place - 1))]
    relations = draw(st.tuples(*[st.sampled_from(["nsubj", "nsubj:pass", "obj", "dep"])] * len(found)))
    return Sentence(text, tuple(found), tuple(heads[word] for word in range(len(found))), relations)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(sentences(), min_size=1, max_size=3), st.sampled_from(["x.conllu", "x.conllu.gz"]))
def test_written_and_read_is_the_same(found, name):
    with tempfile.TemporaryDirectory() as folder:
        path = write(Corpus("x", tuple(found)), Path(folder) / name)
        assert read(path) == Corpus("x", tuple(found))


def test_a_tab_between_words_is_kept(tmp_path):
    corpus = Corpus("x", (Sentence("a\tb ", ((0, 1), (2, 3)), (1, -1), ("dep", "root")),))
    assert read(write(corpus, tmp_path / "x.conllu")) == corpus


def test_what_is_written(tmp_path):
    lines = write(Corpus("x", (ZUM,)), tmp_path / "x.conllu").read_text().split("\n")
    assert lines == [
        "# text = Er geht zum Arzt.", "1\tEr\t_\t_\t_\t_\t2\tnsubj\t_\t_", "2\tgeht\t_\t_\t_\t_\t0\troot\t_\t_",
        "3-4\tzum\t_\t_\t_\t_\t_\t_\t_\t_", "3\t_\t_\t_\t_\t_\t5\tcase\t_\t_", "4\t_\t_\t_\t_\t_\t5\tdet\t_\t_",
        "5\tArzt\t_\t_\t_\t_\t2\tobl\t_\tSpaceAfter=No", "6\t.\t_\t_\t_\t_\t2\tpunct\t_\t_", "", ""
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.shared
def test_parallel_trees_of_a_real_treebank(shared):
    pud = shared / "data" / "ud" / "pud"
    corpus = read(pud / "en_pud-ud-test.conllu.gz", pud / "de_pud-ud-test.conllu.gz")
    assert corpus.name == "en_pud-ud-test+de_pud-ud-test"
    assert sum(one.has_tree and one.target is not None and one.target.has_tree for one in corpus) == 1000


@pytest.mark.shared
@pytest.mark.parametrize(
    ("source", "target", "limit", "size"),
    [
        ("multi30k/val.en.gz", "multi30k/val.de.gz", None, 1014),
        pytest.param("tatoeba/eng-deu.tsv.gz", None, 50_000, 50_000, marks=pytest.mark.slow),
    ],
)
def test_real_parallel_text(shared, source, target, limit, size):
    data = shared / "data"
    corpus = read(data / source, None if target is None else data / target, limit=limit)
    assert len(corpus) == size
    assert all(one.text and one.target is not None and one.target.text and one.label is None for one in corpus)


TEXTS = ["The dog sleeps.", "It dreams."]


def test_a_corpus_is_itself_and_takes_another_name():
    corpus = Corpus("two", tuple(map(Sentence, TEXTS)))
    assert as_corpus(corpus) is corpus
    assert as_corpus(corpus, name="other") == Corpus("other", corpus.sentences)
    assert as_corpus(TEXTS) == Corpus("texts", corpus.sentences)
    assert as_corpus(corpus.sentences).hash == corpus.hash


def test_pairs_are_texts_with_translations():
    corpus = as_corpus([("a dog", "ein Hund"), ["a cat", "eine Katze"], "alone"])
    assert corpus[0] == Sentence("a dog", target=Sentence("ein Hund"))
    assert corpus[1] == Sentence("a cat", target=Sentence("eine Katze"))
    assert corpus[2] == Sentence("alone")


def test_a_path_is_read_as_by_read(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    for place in (path, str(path)):
        assert as_corpus(place) == hr.read(path) == Corpus("mine", tuple(map(Sentence, TEXTS)))
    assert as_corpus(path, name="other").name == "other"


def test_rows_of_a_data_set_are_read_by_their_columns():
    rows = [{"sentence1": text, "sentence2": "Why?", "label": number} for number, text in enumerate(TEXTS)]
    expected = tuple(Sentence(text, second="Why?", label=str(number)) for number, text in enumerate(TEXTS))
    for data in (datasets.Dataset.from_list(rows), pd.DataFrame(rows), rows):
        assert as_corpus(data).sentences == expected
    assert as_corpus([{"text": "one"}, {"text": " "}]).sentences == (Sentence("one"),)  # as of a file


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, pd.NaT])
def test_a_missing_cell_of_a_data_frame_is_blank(missing, caplog):
    frame = pd.DataFrame({"text": ["one", missing, "three"], "label": [1, 0, missing]})
    assert as_corpus(frame).sentences == (Sentence("one", label="1"), Sentence("three"))
    assert caplog.messages == ["texts: left out 1 of 3 entries, which have a blank text"]
    pairs = pd.DataFrame({"sentence1": ["a", "b"], "sentence2": ["c", missing]})
    assert as_corpus(pairs).sentences == (Sentence("a", second="c"),)
    minimal = pd.DataFrame({"sentence_good": ["a", "b"], "sentence_bad": ["c", missing]})
    assert as_corpus(minimal).sentences == (Sentence("a", label="good"), Sentence("c", label="bad"))


def test_labels_are_integers_beside_a_missing_one_and_fractions_on_a_scale():
    frame = pd.DataFrame({"text": ["one", "two"], "label": [1, None]})
    assert frame["label"].dtype == float
    assert [item.label for item in as_corpus(frame)] == ["1", None]
    rows = [{"text": "one", "label": 2.5}, {"text": "two", "label": True}]
    assert [item.label for item in as_corpus(rows)] == ["2.5", "True"]


def test_translations_of_rows_go_in_the_direction_of_the_first():
    rows = [{"translation": {"en": "yes", "de": "ja"}}, {"translation": {"de": "nein", "en": "no"}}]
    assert [(pair.text, pair.target.text) for pair in as_corpus(rows)] == [("yes", "ja"), ("no", "nein")]


ROLES = {("enc-self", 0, 0): hr.patterns.Offset(-1)}
CALLS = {
    "score": lambda *given: hr.score(*given, ["confidence"], n_resamples=0),
    "attribute": lambda *given: hr.attribute(*given, n_steps=2, n_resamples=0),
    "attention_examples": hr.attention_examples,
    "evaluate": hr.evaluate,
    "ablate": lambda *given: hr.ablate(*given, n_resamples=0),
    "ablation_curve": lambda *given: hr.ablation_curve(*given, {"first": [("enc-self", 0, 0)]}, n_resamples=0),
    "test_roles": lambda *given: hr.test_roles(*given, ROLES, n_resamples=2),
    "shapley_values": lambda *given: hr.shapley_values(*given, heads=[("cross", 0, 0), ("cross", 0, 1)], n_resamples=0),
    "prune": lambda *given: hr.prune(*given, "confidence", keep=0.5, remove=False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_functions_take_pairs_and_give_what_a_corpus_gives(name):
    model, tokenizer, corpus = writing("marian"), tokens_of("marian"), letters(4)
    pairs = [(sentence.text, sentence.target.text) for sentence in corpus]
    table = CALLS[name](model, tokenizer, pairs)
    assert len(table)
    pd.testing.assert_frame_equal(table, CALLS[name](model, tokenizer, Corpus("texts", corpus.sentences)))
