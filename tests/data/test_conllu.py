"""CoNLL-U is read with its spans and trees."""

from __future__ import annotations

import gzip
import re
import time

import pytest
from helpers.treebanks import GERMAN, ZUM

import headroles as hr
from headroles.data.conllu import base, offsets, spans
from headroles.data.corpus import Corpus, Sentence
from headroles.data.readers import read

HI = "# text = Hi!\n1\tHi\t_\tINTJ\t_\t_\t0\troot\t_\tSpaceAfter=No\n2\t!\t_\tPUNCT\t_\t_\t1\tpunct\t_\t_\n\n"


# CoNLL-U
def test_words_ranges_and_empty_nodes_and_text_that_is_rebuilt_where_there_is_none_or_another(file):
    assert read(file("de.conllu", GERMAN)).sentences == (ZUM,)
    without = GERMAN.partition("\n")[2]
    for content in (without, "# text = Something else\n" + without, "# text =\n" + without):
        assert read(file("de.conllu", content)).sentences == (ZUM,)


@pytest.mark.parametrize("text", ["A dog and the dog", "Lo, the dog", "the (small) dog"])
def test_text_is_rebuilt_where_it_has_more_than_blanks_before_a_word(file, text):
    rows = "1\tthe\t_\t_\t_\t_\t2\tdet\t_\t_\n2\tdog\t_\t_\t_\t_\t0\troot\t_\t_\n"
    sentence = read(file("en.conllu", f"# text = {text}\n{rows}"))[0]
    assert (sentence.text, sentence.spans) == ("the dog", ((0, 3), (4, 7)))


def test_a_multiword_token_has_the_space_after_it_and_spans_of_words_that_spell_it(file):
    row = "3-4\tzum\t_\t_\t_\t_\t_\t_\t_\t"
    tight = GERMAN.partition("\n")[2].replace(f"{row}_", f"{row}SpaceAfter=No")
    assert read(file("de.conllu", tight))[0].text == "Er geht zumArzt."
    rows = "1-2\tcan't\t_\t_\t_\t_\t_\t_\t_\t_\n1\tca\t_\t_\t_\t_\t0\troot\t_\t_\n2\tn't\t_\t_\t_\t_\t1\tadvmod\t_\t_\n"
    sentence = read(file("en.conllu", rows))[0]
    assert (sentence.text, sentence.spans) == ("can't", ((0, 2), (2, 5)))


def test_windows_line_ends_byte_order_mark_and_unicode_line_separators(file):
    strange = HI.replace("Hi", "H\u2028i\x85")
    content = "\ufeff" + strange.replace("\n", "\r\n")
    sentence = read(file("en.conllu", content))[0]
    assert (sentence.text, sentence.spans) == ("H\u2028i\x85!", ((0, 4), (4, 5)))


def test_spans_of_a_token_and_base_of_a_relation():
    assert spans(3, "can't", ["ca", "n't"]) == [(3, 5), (5, 8)]
    assert spans(3, "zum", ["zu", "dem"]) == [None, None]
    assert spans(3, "zum", ["zum"]) == [(3, 6)]
    assert (base("nsubj:pass"), base("obj")) == ("nsubj", "obj")


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize(
    ("path", "size", "lost"),
    [("pud/de_pud-ud-test", 1000, 662), ("pud/ru_pud-ud-test", 1000, 0), ("ewt/en_ewt-ud-dev", 2001, 0)],
)
def test_every_span_is_its_form(shared, path, size, lost):
    treebank = shared / "data" / "ud" / f"{path}.conllu.gz"
    corpus = read(treebank)
    blocks = gzip.decompress(treebank.read_bytes()).decode().strip("\n").split("\n\n")
    assert len(corpus) == len(blocks) == size
    absent = 0
    for sentence, block in zip(corpus, blocks, strict=True):
        rows = [line.split("\t") for line in block.split("\n") if line[0] != "#"]
        words = [row for row in rows if row[0].isdigit()]
        inside = {n for r in rows if "-" in r[0] for n in range(int(r[0].split("-")[0]), int(r[0].split("-")[1]) + 1)}
        assert f"\n# text = {sentence.text}\n" in block
        assert sentence.heads == tuple(int(row[6]) - 1 for row in words)
        assert sentence.relations == tuple(row[7] for row in words)
        for number, (span, row) in enumerate(zip(sentence.spans, words, strict=True), 1):
            if span is None:
                assert number in inside
                absent += 1
            else:
                assert sentence.text[slice(*span)] == row[1]
    assert absent == lost


def test_a_sentence_of_many_words_is_read_at_once(file):
    """A chain of words, and one token of all of them: neither takes time that grows with the square."""
    count, rest = 30_000, "\t_" * 7
    words = "".join(f"{n}\tw\t_\t_\t_\t_\t{(n + 1) % (count + 1)}\tdep\t_\t_\n" for n in range(1, count + 1))
    start = time.process_time()
    (sentence,) = read(file("x.conllu", f"1-{count}\t{'w' * count}{rest}\t_\n{words}"))
    assert time.process_time() - start < 5
    assert sentence.spans[-1] == (count - 1, count)


# how far heads are
def test_offsets_of_two_sentences():
    one = Sentence("a b c", ((0, 1), (2, 3), (4, 5)), (2, 2, -1), ("nsubj", "amod", "root"))
    two = Sentence("a b c", ((0, 1), (2, 3), (4, 5)), (-1, 0, 1), ("root", "nsubj:pass", "nsubj"))
    rows = offsets(Corpus("x", (one, two)), ("nsubj", "amod"))
    columns = {"relation": ["nsubj", "nsubj", "amod"], "offset": [-1, 2, 1], "count": [1, 1, 1]}
    assert rows.to_dict("list") == columns | {"share": [0.5, 0.5, 1.0]}
    passive = offsets(Corpus("x", (one, two)), ("nsubj",), subtypes=True)
    assert passive[["offset", "count"]].values.tolist() == [[-1, 2], [2, 1]]


@pytest.mark.slow
@pytest.mark.shared
def test_offsets_of_a_real_treebank(shared):
    path = shared / "data" / "ud" / "ewt" / "en_ewt-ud-dev.conllu.gz"
    rows = offsets(read(path))
    raw = gzip.decompress(path.read_bytes()).decode()
    for relation, group in rows.groupby("relation", sort=False):
        assert group["count"].sum() == len(re.findall(rf"^\d+\t(?:[^\t]*\t){{6}}{relation}\t", raw, re.MULTILINE))
        assert group["share"].sum() == pytest.approx(1)
    assert list(rows["relation"].unique()) == ["nsubj", "obj", "amod", "advmod"]
    top = rows.loc[rows.groupby("relation")["count"].idxmax()].set_index("relation")["offset"]
    assert top["nsubj"] == top["amod"] == 1  # an English subject or adjective stands right before its head


ROW = "{0}\t{1}\t_\tNOUN\t_\t_\t{2}\t{3}\t_\t_\n"


def test_multiword_tokens_of_words_that_are_not_spelt_are_read(tmp_path):
    path = tmp_path / "du.conllu"
    range_line = "1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_\n"
    path.write_text(range_line + ROW.format(1, "_", 0, "root") + ROW.format(2, "_", 1, "dep"))
    assert hr.read(path)[0].text == "du"
    path.write_text(ROW.format(1, "_", 0, "root") + "\n")  # an underscore may be a word
    assert hr.read(path)[0].text == "_"
    path.write_text(ROW.format(1, "_", 2, "nsubj") + ROW.format(2, "sleeps", 0, "root") + "\n")
    assert hr.read(path)[0].text == "_ sleeps"
