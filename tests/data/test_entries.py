"""Entries of files: lines, parallel lines, tables and trees, and what is damaged in them."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections import Counter

import pandas as pd
import pytest
from helpers.fuzzing import FILES, NAMES, ODD, fuzz, holds
from helpers.messages import whole
from helpers.treebanks import GERMAN, ZUM
from scipy import stats

import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.data.readers import read

HI = "# text = Hi!\n1\tHi\t_\tINTJ\t_\t_\t0\troot\t_\tSpaceAfter=No\n2\t!\t_\tPUNCT\t_\t_\t1\tpunct\t_\t_\n\n"


# plain and parallel text, tables
def test_plain_text_splits_at_line_feeds_only_and_skips_blank_lines(file):
    corpus = read(file("a.txt", "one\u2028two\n\n  \n three \n"))
    assert corpus == Corpus("a", (Sentence("one\u2028two"), Sentence("three")))


def test_limit_and_name(file):
    path = file("a.en.gz", gzip.compress(b"1\n2\n3"))
    assert read(path) == Corpus("a.en", (Sentence("1"), Sentence("2"), Sentence("3")))
    assert read(path, limit=2, name="two") == Corpus("two", (Sentence("1"), Sentence("2")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "line"),
    [("x.txt.gz", "{0} a\n"), ("x.tsv.gz", "{0}\tb\n"), ("x.conllu.gz", HI), ("labels.tsv.gz", "x {0}\t1\tc\n")],
)
def test_read_limit_leaves_the_rest_of_a_file_unread(file, name, line):
    """What is behind the limit is damaged, and nobody notices."""
    header = "label\tsentence\tc\n" * name.startswith("labels")
    packed = gzip.compress((header + "".join(line.format(i) for i in range(15_000))).encode(), compresslevel=1)
    path = file(name, packed[: len(packed) * 3 // 4])
    assert len(read(path, limit=3)) == 3
    with pytest.raises(ValueError, match="is not gzip, or is damaged"):
        read(path)


FORMS = {
    "x.txt": "".join(f"line {i}\n" for i in range(20)),
    "x.tsv": "".join(f"line {i}\tZeile {i}\n" for i in range(20)),
    "x.conllu": "".join(HI.replace("Hi", f"Hi{i}") for i in range(20)),
}


@pytest.mark.parametrize("name", [*FORMS, *(f"{name}.gz" for name in FORMS)])
def test_read_sample_draws_sentences_in_their_order(file, name):
    content = FORMS[name.removesuffix(".gz")].encode()
    path = file(name, gzip.compress(content) if name.endswith(".gz") else content)
    everything, drawn = read(path), read(path, sample=5, seed=1)
    places = [everything.sentences.index(sentence) for sentence in drawn]
    assert len(places) == 5
    assert places == sorted(set(places))
    assert read(path, sample=5, seed=1) == drawn != read(path, sample=5, seed=2)
    assert read(path, sample=20) == read(path, sample=99) == everything
    assert {sentence in everything[:10].sentences for sentence in read(path, sample=8, limit=10)} == {True}


def test_read_sample_draws_each_sentence_equally_often(file):
    path = file("x.txt", FORMS["x.txt"])
    counts = Counter(sentence.text for seed in range(1000) for sentence in read(path, sample=5, seed=seed))
    assert len(counts) == 20
    assert stats.chisquare([*counts.values()]).pvalue > 0.001  # 250 times each


def test_read_sample_holds_no_more_than_it_draws(file):
    path = file("x.txt.gz", gzip.compress(b"a sentence of nine words or so, and again\n" * 20_000))
    tracemalloc.start()
    try:
        assert len(read(path, sample=10)) == 10
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**20


def test_two_files(file, caplog):
    left, right = file("a.en", "one\n\ntwo\n"), file("a.de", "eins\nx\nzwei")
    pairs = (Sentence("one", target=Sentence("eins")), Sentence("two", target=Sentence("zwei")))
    assert read(left, right) == Corpus("a.en+a.de", pairs)
    assert caplog.messages == [f"{left}, {right}: left out 1 of 3 entries, which have a blank text"]


def test_word_links(file, caplog):
    """A line for each pair, blank ones included; words are those of a tree, or those between spaces."""
    left, right = file("a.en", "a big  dog\n\nno\n"), file("a.de", "ein Hund.\nx\nnein\n")
    links = file("links.txt", "0-0 2-1 1-1 2-1\n0-7\n\n")
    pair, other = read(left, right, links=links)
    assert (pair.links, other.links) == (((0, 0), (2, 1), (1, 1)), ())
    assert [pair.text[slice(*span)] for span in pair.spans] == ["a", "big", "dog"]
    assert [pair.target.text[slice(*span)] for span in pair.target.spans] == ["ein", "Hund."]
    assert caplog.messages == [f"{left}, {right}: left out 1 of 3 entries, which have a blank text"]
    linked = (read(left, right, links=file("l", f"{at}-0\n\n\n")).hash for at in "01")
    assert len({read(left, right).hash, *linked}) == 3
    table = file("a.tsv", "a dog\tein Hund\n")
    assert read(table, links=file("b", "1-1\n"))[0].links == ((1, 1),)
    treed = read(file("a.conllu", HI), file("b.en", "Hallo !\n"), links=file("c", "1-1\n"))[0]
    assert (treed.spans, treed.heads, treed.links) == (((0, 2), (2, 3)), (-1, 0), ((1, 1),))


def test_trees_and_plain_text_mix(file):
    trees, plain = file("a.conllu", GERMAN + "\n" + HI), file("a.en", "He sees the doctor.\nHi!\n")
    greeting = Sentence("Hi!", ((0, 2), (2, 3)), (-1, 0), ("root", "punct"))
    mixed = read(trees, plain).sentences
    assert [one.target for one in mixed] == [Sentence("He sees the doctor."), Sentence("Hi!")]
    assert [one.heads for one in mixed] == [ZUM.heads, greeting.heads]
    assert [one.target for one in read(plain, trees)] == [ZUM, greeting]
    assert [one.target for one in read(trees, trees)] == [ZUM, greeting]
    bare = file("trees", GERMAN + "\n" + HI)
    assert read(bare, plain, form="conllu").sentences == mixed
    assert read(bare, form="conllu").sentences == (ZUM, greeting)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize(
    ("path", "size", "first", "label", "second"),
    [
        ("SST-2/dev", 872, "it 's a charming and often affecting journey .", "1", None),
        ("SST-2/test_labeled", 1821, "uneasy mishmash of styles and genres .", "0", None),
        ("CoLA/train", 8551, "Our friends won't buy this analysis,", "1", None),
        ("CoLA/dev", 1043, "The sailors rode the breeze clear of the rocks.", "1", None),
        ("RTE/train", 2490, "No Weapons of Mass Destruction Found in Iraq Yet.", "not_entailment", "Weapons of Mass"),
        ("RTE/dev", 277, "Dana Reeve, the widow of", "not_entailment", "Christopher Reeve had an accident."),
        ("MRPC/msr_paraphrase_train", 4076, 'Amrozi accused his brother, whom he called "', "1", "Referring to him"),
        ("MRPC/msr_paraphrase_test", 1725, "PCCW's chief operating officer", "1", "Current Chief Operating Officer"),
        ("QNLI/dev", 5463, "What came into force after", "entailment", "As of that day, the new constitution"),
        ("MNLI/dev_matched_with_bert_correct_counts", 9815, "The new rights", "neutral", "Everyone really likes the"),
    ],
)
def test_glue_reads_without_arguments(shared, path, size, first, label, second):
    corpus = read(shared / "data" / "glue" / f"{path}.tsv.gz")
    assert len(corpus) == size
    assert corpus[0].text.startswith(first)
    assert corpus[0].label == label
    assert (corpus[0].second or "").startswith(second or "")
    assert {one.second is None for one in corpus} == {second is None}
    assert len({one.label for one in corpus}) == (3 if path.startswith("MNLI") else 2)


@pytest.mark.shared
def test_the_whole_cola_by_index_is_the_same(shared):
    path = shared / "data" / "glue" / "CoLA" / "dev.tsv.gz"
    assert read(path, label=1) == read(path, label=1, text=3) == read(path)


def test_columns_by_name_and_index(file):
    path = file("x.tsv", 'id\tone\ttwo\tmood\n7\t"a\tb"\tgood\n8\tc\td\tbad\n')
    named = read(path, text=("one", "two"), label="mood")
    assert named.sentences == (Sentence('"a', label="good", second='b"'), Sentence("c", label="bad", second="d"))
    assert [one.text for one in read(path, text=2, label="mood")] == ['b"', "d"]
    assert [one.label for one in read(path, text="one", label=0)] == ["7", "8"]
    plain = file("y.tsv", "good\ta\nbad\tb\n")
    assert read(plain, label=0).sentences == (Sentence("a", label="good"), Sentence("b", label="bad"))
    assert read(plain).sentences == (Sentence("good", target=Sentence("a")), Sentence("bad", target=Sentence("b")))
    headed = file("z.tsv", "sentence\tlabel\na\t1\n")
    assert read(headed).sentences == read(headed, label=1).sentences == (Sentence("a", label="1"),)
    assert read(headed, form="parallel")[1] == Sentence("a", target=Sentence("1"))


def test_two_texts_without_a_label(file, caplog):
    path = file("x.tsv", "sentence2\tsentence1\nb\ta\n \tc\n")
    assert read(path).sentences == (Sentence("a", second="b"),)
    assert caplog.messages == [f"{path}: left out 1 of 2 entries, which have a blank text"]
    assert read(path, form="parallel")[0] == Sentence("sentence2", target=Sentence("sentence1"))
    for name in ("sentence", "text"):
        assert read(file(f"{name}.tsv", f"{name}\na\n")).sentences == (Sentence("a"),)


@pytest.mark.parametrize("name", ["x.csv", "x.json", "x.parquet", "x.csv.gz"])
def test_a_file_that_is_not_read_line_by_line(file, name):
    path = file(name, gzip.compress(b"text,label\n") if name.endswith("gz") else "text,label\n")
    assert read(path, form="text").sentences == (Sentence("text,label"),)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=whole(f"no file at {path}")):
        read(path)


def test_files_of_different_length(file):
    left, right = file("a.en", "1\n2\n"), file("a.de", "1\n2\n3\n")
    assert len(read(left, right, limit=2)) == 2  # as far as they are read


def test_pairs_are_read_from_json_lines_and_tables(tmp_path):
    rows = [
        {"sentence_good": "The cat sees.", "sentence_bad": "The cat see.", "UID": "agreement", "pairID": 0},
        {"sentence_good": "Dogs bark .", "sentence_bad": " Dogs barks .", "UID": "agreement", "pairID": 1},
    ]
    lines = "\n".join(map(json.dumps, rows)) + "\n"
    (tmp_path / "blimp.jsonl").write_text(lines)
    (tmp_path / "blimp.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    names = ("UID", "sentence_good", "sentence_bad")
    table = [names, *([row[name] for name in names] for row in rows)]
    (tmp_path / "blimp.tsv").write_text("".join("\t".join(cells) + "\n" for cells in table))
    for name in ("blimp.jsonl", "blimp.jsonl.gz", "blimp.tsv"):
        corpus = hr.read(tmp_path / name)
        assert [one.text for one in corpus] == ["The cat sees.", "The cat see.", "Dogs bark .", "Dogs barks ."]
        assert [one.label for one in corpus] == ["good", "bad"] * 2
    assert len(hr.read(tmp_path / "blimp.tsv", limit=2)) == 2
    (tmp_path / "other.txt").write_text("source\tsentence_good\tsentence_bad\nZwei\tTwo\tOne\n\tx\ty\n")
    translated = [(one.text, one.target.text, one.label) for one in hr.read(tmp_path / "other.txt", form="pairs")]
    assert translated == [("Zwei", "Two", "good"), ("Zwei", "One", "bad")]


def test_fields_that_the_first_row_lacks(file):
    rows = [{"text": "a"}, {"label": "x", "text": "b"}]
    read = hr.read(file("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    for corpus in (read, hr.Corpus.of(rows), hr.Corpus.of(pd.DataFrame(rows))):
        assert corpus.sentences == (Sentence("a"), Sentence("b", label="x"))


def test_chats_without_an_answer_beside_others_are_said(file, caplog):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    text = "".join(json.dumps({"messages": turns[:size]}) + "\n" for size in (2, 3, 2))
    path = file("x.jsonl", text)
    assert [chat.answer for chat in read(path)] == ["b", None, "b"]
    told = f"{path}: 1 of 3 texts have no answer, so that their loss is of the text itself; try answer_only=False"
    assert caplog.messages == [told]


def test_a_table_without_text(file, caplog):
    path = file("x.tsv", "sentence\tlabel\n \t1\na\t0\n")
    assert read(path).sentences == (Sentence("a", label="0"),)
    assert caplog.messages == [f"{path}: left out 1 of 2 entries, which have a blank text"]


ODD += ["#", "# text = ", "-", ".", "0", "1-2", "3.1", "٣", "²", "-1", "NaN", "_", '"', "label"]
ODD += ["9" * 5000, "a" * 99_999, "\t" * 9_999, "\n" * 9_999, "1\t" * 9_999]


@pytest.mark.slow
def test_a_damaged_file_is_an_error_or_read_as_it_is():
    numbers = fuzz(200)
    assert numbers["files"] >= 200
    assert 0.05 < numbers["read"] / numbers["files"] < 0.95


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_file_is_read(name, tmp_path):
    content = FILES[name.removesuffix(".gz")].encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert holds(tmp_path / name)
