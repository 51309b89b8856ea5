"""Corpora that Hugging Face's `datasets` reads: names, folders, their columns and splits."""

import json
import logging

import pandas as pd
import pytest
from helpers import zoo
from helpers.commands import run
from helpers.letters import tokens_of
from helpers.messages import whole

import headroles as hr
from headroles.data import hf_datasets
from headroles.data.corpus import Sentence
from headroles.data.readers import as_corpus
from headroles.data.sentences import RENAMED, Chat, Prompt, Tagged


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Makes a folder of parquet files, one for each split, beside which a cache of its own is kept."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def make(name, **splits):
        place = tmp_path / name
        place.mkdir()
        for split, rows in splits.items():
            pd.DataFrame(rows).to_parquet(place / f"{split}-00000-of-00001.parquet")
        return place

    return make


ONE = [{"sentence": "good film ", "label": 1}, {"sentence": " ", "label": 0}, {"sentence": "bad film", "label": 0}]


def test_labelled_text_is_found_by_the_names_of_glue(folder, caplog):
    place = folder("sst2", train=ONE[:1], validation=ONE)
    read = hr.read(place)
    assert read.sentences == (Sentence("good film", label="1"), Sentence("bad film", label="0"))
    assert read.name == str(place)
    assert caplog.messages == [f"{place}: left out 1 of 3 entries, which have a blank text"]
    assert hr.read(f"{place}:train", name="mine") == hr.Corpus("mine", (Sentence("good film", label="1"),))
    assert hr.read(place, limit=1).sentences == read.sentences[:1]


def test_pairs_of_sentences_and_columns_that_are_named(folder):
    rows = [{"premise": "a", "hypothesis": "b", "label": 2, "genre": "news"}]
    place = folder("mnli", test=rows)
    assert hr.read(place).sentences == (Sentence("a", second="b", label="2"),)
    assert hr.read(place, text="hypothesis", label="genre").sentences == (Sentence("b", label="news"),)
    known = "premise, hypothesis, label, genre"
    said = f"dataset {place} has no column body: got {known}; give text= and label= from these"
    with pytest.raises(ValueError, match=whole(said)):
        hr.read(place, text="body")
    other = folder("other", test=[{"body": "a"}])
    said = f"dataset {other} has no known text column: got body; give text= and label= from these{RENAMED}"
    with pytest.raises(ValueError, match=whole(said)):
        hr.read(other)


def test_translations_go_in_the_direction_of_the_name(folder):
    rows = [{"translation": {"de": "Hund", "en": "dog"}}, {"translation": {"de": "", "en": "cat"}}]
    assert hr.read(folder("pairs", test=rows)).sentences == (Sentence("Hund", target=Sentence("dog")),)
    assert hr.read(folder("my-set", test=rows)).sentences == (Sentence("Hund", target=Sentence("dog")),)
    assert hr.read(folder("en-de", test=rows)).sentences == (Sentence("dog", target=Sentence("Hund")),)


def test_what_is_empty_is_no_text_and_not_counted_by_a_limit(folder):
    rows = [{"text": "a", "label": None}, {"text": None, "label": 1.0}]
    assert hr.read(folder("holes", test=rows)).sentences == (Sentence("a"),)
    pairs = [{"translation": {"de": "Hund", "en": None}}, {"translation": {"de": "Katze", "en": "cat"}}]
    assert hr.read(folder("pairs", test=pairs)).sentences == (Sentence("Katze", target=Sentence("cat")),)
    assert [sentence.text for sentence in hr.read(folder("sst2", test=ONE), limit=2)] == ["good film", "bad film"]


def test_json_lines_are_read_too(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in "ab"))
    assert hr.read(tmp_path / "lines").sentences == (Sentence("a"), Sentence("b"))


def test_which_split_is_taken_is_said_and_one_that_is_not_there_refused(folder, caplog):
    place = folder("some", train=ONE, test=ONE)
    caplog.set_level(logging.INFO, "headroles.data.hf_datasets")
    hr.read(place)
    assert f"{place}: split test" in caplog.messages
    said = f"dataset {place} has no split 'dev'; it has "
    with pytest.raises(ValueError, match=rf"\A{hf_datasets.re.escape(said)}(test, train|train, test)\Z"):
        hr.read(f"{place}:dev")


@pytest.mark.parametrize(
    ("source", "expected"),
    [("wmt14/de-en", True), ("glue/sst2:validation", True), ("nyu-mll/glue/sst2", True), ("imdb", False),
     ("corpus.txt", False), ("folder/corpus.txt", False), ("../corpus", False), ("/data/corpus", False),
     ("tests/corpus", False)],
)  # fmt: skip
def test_what_is_a_name(source, expected, tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path)
    assert hf_datasets.named(source) == expected


@pytest.mark.slow
def test_the_command_reads_a_folder(folder, tmp_path):
    model = zoo.tiny("bert")
    model.save_pretrained(tmp_path / "model")
    tokens_of(model).save_pretrained(tmp_path / "model")
    place = folder("some", validation=ONE)
    done = run("score", tmp_path / "model", f"{place}:validation", "--resamples", 0, "--study", tmp_path / "study")
    assert done.code == 0
    assert f"corpus:{place}:validation" in hr.provenance(hr.Study(tmp_path / "study").load("heads"), "confidence")


TREE = {"spans": ((0, 3), (4, 9), None), "heads": (1, -1, 1), "relations": ("det", "root", "obj")}
CORPORA = {
    "labelled": (Sentence("one", label="yes"), Sentence("two", label="no")),
    "labelled words": (Tagged("one two", ((0, 3), (4, 7)), labels=("O", "B")), Tagged("it", ((0, 2),), labels=("O",))),
    "two texts": (Sentence("one", second="1", label="yes"), Sentence("two", second="2", label="no")),
    "pairs": (Sentence("one", target=Sentence("eins")), Sentence("two", target=Sentence("zwei"))),
    "trees": (Sentence("the sheep", **TREE), Sentence("no tree")),
    "trees and translations": (Sentence("the sheep", target=Sentence("das Schaf"), **TREE),),
    "trees and answers": (Prompt("the sheep", target=Sentence("das Schaf"), **TREE),),
    "a tree in a chat": (Chat("the sheep", **TREE),),
}


@pytest.mark.parametrize("kind", CORPORA)
def test_a_corpus_becomes_a_dataset_and_is_read_again(kind, folder):
    place = folder("out")
    assert hr.to_dataset(hr.Corpus("mine", CORPORA[kind])).to_parquet(place / "train.parquet") > 0
    assert hr.read(place).sentences == CORPORA[kind]
    frame = pd.read_parquet(place / "train.parquet")  # its cells are arrays
    assert as_corpus(frame).sentences == CORPORA[kind]
