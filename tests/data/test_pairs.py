"""Minimal pairs: made ones differ in one word and agree where they say, read ones are those of the file."""

from __future__ import annotations

import gzip
import json
from typing import get_args

import pytest

import headroles as hr
from headroles.data import synthetic as lexicon
from headroles.data.pairs import Phenomenon

PLURALS = {lexicon.plural_of(noun) for noun in lexicon.PEOPLE}


def words(sentence):
    return sentence.text.removesuffix(".").split()


@pytest.mark.parametrize("phenomenon", get_args(Phenomenon))
def test_the_sentences_of_a_pair_differ_in_one_word(phenomenon):
    corpus = hr.minimal_pairs(50, phenomenon=phenomenon)
    assert [sentence.label for sentence in corpus] == ["good", "bad"] * 50
    for good, bad in zip(corpus.sentences[::2], corpus.sentences[1::2], strict=True):
        assert sum(a != b for a, b in zip(words(good), words(bad), strict=True)) == 1
    assert corpus[:20].sentences == hr.minimal_pairs(10, phenomenon=phenomenon).sentences
    assert corpus.sentences != hr.minimal_pairs(50, phenomenon=phenomenon, seed=1).sentences


@pytest.mark.parametrize("phenomenon", ["agreement", "attractor", "relative"])
def test_the_grammatical_verb_agrees_with_its_subject_and_not_with_the_noun_between(phenomenon):
    corpus = hr.minimal_pairs(80, phenomenon=phenomenon)
    place = {"agreement": 2, "attractor": 5, "relative": 6}[phenomenon]
    bases = {lexicon.forms_of(verb)[0] for verb in lexicon.VERBS}
    for good, bad in zip(corpus.sentences[::2], corpus.sentences[1::2], strict=True):
        plural = words(good)[1] in PLURALS
        assert (words(good)[place] in bases) == plural
        assert (words(bad)[place] in bases) != plural
        if phenomenon != "agreement":
            assert (words(good)[4] in PLURALS) != plural


def test_determiners_reflexives_and_licensors():
    made = {
        name: hr.minimal_pairs(60, phenomenon=name).sentences[::2] for name in ("determiner", "reflexive", "licensing")
    }
    assert {(words(good)[0], words(good)[1] in PLURALS) for good in made["determiner"]} == {
        ("This", False),
        ("These", True),
    }
    found = {(words(good)[1] in PLURALS, words(good)[-1]) for good in made["reflexive"]}
    assert found == {(True, "themselves"), (False, "himself"), (False, "herself")}
    assert {words(good)[0] for good in made["licensing"]} == {"No"}


def test_translated_pairs_differ_in_the_number_of_the_main_verb():
    corpus, whole = hr.minimal_pairs(40, translated=True), hr.synthetic_corpus(40, translated=True)
    for good, bad, sentence in zip(corpus.sentences[::2], corpus.sentences[1::2], whole, strict=True):
        assert (good.text, good.target.text) == (sentence.text, sentence.target.text)
        assert bad.text == good.text
        root = sentence.target.heads.index(-1)
        start, end = sentence.target.spans[root]
        changed = bad.target.text[start : len(bad.target.text) - (len(sentence.target.text) - end)]
        assert {changed, good.target.text[start:end]} in [
            {f"{changed.rpartition('-')[0]}-{form}" for form in forms} for forms in (("el", "eln"), ("or", "orn"))
        ]


def test_pairs_are_read_from_json_lines_and_tables(tmp_path):
    rows = [
        {"sentence_good": "The cat sees.", "sentence_bad": "The cat see.", "UID": "agreement", "pairID": 0},
        {"sentence_good": "Dogs bark .", "sentence_bad": " Dogs barks .", "UID": "agreement", "pairID": 1},
    ]
    lines = "\n".join(map(json.dumps, rows)) + "\n"
    (tmp_path / "blimp.jsonl").write_text(lines)
    (tmp_path / "blimp.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    table = "UID\tsentence_good\tsentence_bad\n" + "".join(
        f"{row['UID']}\t{row['sentence_good']}\t{row['sentence_bad']}\n" for row in rows
    )
    (tmp_path / "blimp.tsv").write_text(table)
    for name in ("blimp.jsonl", "blimp.jsonl.gz", "blimp.tsv"):
        corpus = hr.read(tmp_path / name)
        assert [(sentence.text, sentence.label) for sentence in corpus] == [
            ("The cat sees.", "good"),
            ("The cat see.", "bad"),
            ("Dogs bark .", "good"),
            ("Dogs barks .", "bad"),
        ]
    assert len(hr.read(tmp_path / "blimp.tsv", limit=2)) == 2
    (tmp_path / "other.txt").write_text("source\tsentence_good\tsentence_bad\nZwei\tTwo\tOne\n\tx\ty\n")
    translated = hr.read(tmp_path / "other.txt", form="pairs")
    assert [(sentence.text, sentence.target.text, sentence.label) for sentence in translated] == [
        ("Zwei", "Two", "good"),
        ("Zwei", "One", "bad"),
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.jsonl",
            '{"sentence_good": "x"}\n',
            "a.jsonl, pair 1 has no 'sentence_bad': got the fields sentence_good; e",
        ),
        (
            "a.jsonl",
            '{"sentence_good": "x", "sentence_bad": 3}\n',
            "a.jsonl, pair 1 has no text in 'sentence_bad': got 3; expected texts sentence_good and sentence_bad",
        ),
        (
            "a.jsonl",
            '{"text": "x", "answer": null}\n',
            "a.jsonl, text 1 has no text in 'answer': got None; expected te",
        ),
        ("a.jsonl", "x\n", "a.jsonl, line 1 is not JSON: Expecting value"),
        ("a.jsonl", "[1]\n", r"a.jsonl, line 1 is no object: got '\[1\]'; expected fields and values"),
        ("a.jsonl", '{"sentence_good": "", "sentence_bad": "x"}\n', "all 1 entries have a blank text"),
    ],
)
def test_malformed_files_are_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        hr.read(tmp_path / name)


@pytest.mark.parametrize(
    "options", [{"count": -1}, {"phenomenon": "binding"}, {"phenomenon": "relative", "translated": True}]
)
def test_impossible_pairs_are_refused(options):
    with pytest.raises(ValueError, match="unknown phenomenon: got 'binding'; expected|no such pairs: got count="):
        hr.minimal_pairs(**options)
