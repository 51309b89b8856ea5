"""CoNLL-U is read with its spans and trees, and what is none is refused."""

from __future__ import annotations

import gzip
import random
import re
import time
import tracemalloc

import pytest
from helpers.messages import whole
from helpers.treebanks import GERMAN, ZUM

import headroles as hr
from headroles.data.conllu import base, offsets, spans
from headroles.data.corpus import Corpus, Sentence
from headroles.data.readers import read

HI = "# text = Hi!\n1\tHi\t_\tINTJ\t_\t_\t0\troot\t_\tSpaceAfter=No\n2\t!\t_\tPUNCT\t_\t_\t1\tpunct\t_\t_\n\n"


# CoNLL-U
def test_words_ranges_and_empty_nodes(file):
    assert read(file("de.conllu", GERMAN)).sentences == (ZUM,)


def test_text_is_rebuilt_where_there_is_none_or_another(file):
    without = GERMAN.partition("\n")[2]
    for content in (without, "# text = Something else\n" + without, "# text =\n" + without):
        assert read(file("de.conllu", content)).sentences == (ZUM,)


@pytest.mark.parametrize("text", ["A dog and the dog", "Lo, the dog", "the (small) dog"])
def test_text_is_rebuilt_where_it_has_more_than_blanks_before_a_word(file, text):
    rows = "1\tthe\t_\t_\t_\t_\t2\tdet\t_\t_\n2\tdog\t_\t_\t_\t_\t0\troot\t_\t_\n"
    sentence = read(file("en.conllu", f"# text = {text}\n{rows}"))[0]
    assert (sentence.text, sentence.spans) == ("the dog", ((0, 3), (4, 7)))


def test_rebuilding_knows_the_space_after_a_multiword_token(file):
    tight = GERMAN.partition("\n")[2].replace(
        "3-4\tzum\t_\t_\t_\t_\t_\t_\t_\t_", "3-4\tzum\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No"
    )
    assert read(file("de.conllu", tight))[0].text == "Er geht zumArzt."


def test_words_that_spell_their_token_have_spans(file):
    rows = "1-2\tcan't\t_\t_\t_\t_\t_\t_\t_\t_\n1\tca\t_\t_\t_\t_\t0\troot\t_\t_\n2\tn't\t_\t_\t_\t_\t1\tadvmod\t_\t_\n"
    sentence = read(file("en.conllu", rows))[0]
    assert (sentence.text, sentence.spans) == ("can't", ((0, 2), (2, 5)))


def test_windows_line_ends_byte_order_mark_and_unicode_line_separators(file):
    strange = HI.replace("Hi", "H\u2028i\x85")
    content = "\ufeff" + strange.replace("\n", "\r\n")
    sentence = read(file("en.conllu", content))[0]
    assert (sentence.text, sentence.spans) == ("H\u2028i\x85!", ((0, 4), (4, 5)))


def test_spans_of_a_token():
    assert spans(3, "can't", ["ca", "n't"]) == [(3, 5), (5, 8)]
    assert spans(3, "zum", ["zu", "dem"]) == [None, None]
    assert spans(3, "zum", ["zum"]) == [(3, 6)]


def test_base():
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


# errors
TEN = "expected the 10 tab-separated columns of CoNLL-U"
HOW = "name a text without trees .txt (in Python form='text'), or parse it (headroles.parse)"
REST = "\t_\t_\t_\t_"


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("Just a sentence.", f"found 1 column: 'Just a sentence.'; {TEN}; {HOW}"),
        ("3\tx\ty", f"found 3 columns: '3', 'x', 'y'; {TEN}; {HOW}"),
        (f"x\ty{REST}\t1\tdep\t_\t_", "found ID 'x' and FORM 'y'; expected an ID such as 3, 3-4 or 3.1, and a word"),
        (f"3\t{REST}\t1\tdep\t_\t_", "found ID '3' and FORM ''; expected an ID such as 3, 3-4 or 3.1, and a word"),
        (
            f"4\ty{REST}\t1\tdep\t_\t_",
            "found ID '4'; expected word 3; words are numbered from 1, ranges do not overlap",
        ),
        (f"3-2\ty{REST}{REST}", "found ID '3-2'; expected word 3; words are numbered from 1, ranges do not overlap"),
        (
            f"3\ty{REST}{REST}",
            "found HEAD '_'; expected the number of a word, or 0 for the root; for trees use headroles.parse",
        ),
        (
            f"3\ty{REST}\t{'9' * 5000}\tdep\t_\t_",  # Python turns no more than 4,300 digits into a number
            f"found HEAD '{'9' * 40}'; expected the number of a word, or 0 for the root; for trees use headroles.parse",
        ),
        (
            f"{'9' * 5000}\t{'y' * 50}{REST}\t1\tdep\t_\t_",
            f"found ID '{'9' * 40}' and FORM '{'y' * 40}'; expected an ID such as 3, 3-4 or 3.1, and a word",
        ),
        ("\t".join("x" * 99), f"found 99 columns: {str(['x'] * 20)[1:-1]}, ...; {TEN}; {HOW}"),
        (
            f"3\ty{REST}\t-1\tdep\t_\t_",
            "found HEAD '-1'; expected the number of a word, or 0 for the root; for trees use headroles.parse",
        ),
    ],
)
def test_a_line_that_is_not_conllu(file, row, fault):
    path = file("x.conllu", GERMAN + "\n" + HI.rstrip("\n") + "\n" + row + "\n")
    with pytest.raises(ValueError, match=whole(f"{path}, line 14: {fault}")):
        read(path)


def test_ranges_that_overlap(file):
    rows = HI.replace("1\tHi", "1-2\tHi!" + "\t_" * 8 + "\n1\tHi").replace("2\t!", "2-2\t!" + "\t_" * 8 + "\n2\t!")
    path = file("x.conllu", rows)
    fault = "found ID '2-2'; expected word 2; words are numbered from 1, ranges do not overlap"
    with pytest.raises(ValueError, match=whole(f"{path}, line 4: {fault}")):
        read(path)


@pytest.mark.parametrize(
    ("heads", "fault"),
    [
        ("2 9 0", "word 2 has HEAD 9; expected 0 to 3"),
        ("2 3 1", "found 0 words with HEAD 0; expected exactly one, the root"),
        ("0 0 1", "found 2 words with HEAD 0; expected exactly one, the root"),
        ("0 3 2", "word 2 governs itself, by way of its heads; expected a tree"),
        ("0 1 3", "word 3 governs itself, by way of its heads; expected a tree"),
        ("", "found 0 words; expected at least 1"),
    ],
)
def test_heads_that_are_no_tree(file, heads, fault):
    rows = "".join(f"{n}\tw\t_\t_\t_\t_\t{head}\tdep\t_\t_\n" for n, head in enumerate(heads.split(), 1))
    path = file("x.conllu", HI + "# sent_id = 2\n" + rows)
    with pytest.raises(ValueError, match=whole(f"{path}, line 5: {fault}, in the sentence that starts here")):
        read(path)


def test_a_sentence_of_many_words_is_read_at_once(file):
    """A chain of words, and one token of all of them: neither takes time that grows with the square."""
    count, rest = 30_000, "\t_" * 7
    words = "".join(f"{n}\tw\t_\t_\t_\t_\t{(n + 1) % (count + 1)}\tdep\t_\t_\n" for n in range(1, count + 1))
    start = time.process_time()
    (sentence,) = read(file("x.conllu", f"1-{count}\t{'w' * count}{rest}\t_\n{words}"))
    assert time.process_time() - start < 5
    assert sentence.spans[-1] == (count - 1, count)


def test_trees_without_a_blank_line_between_them_are_not_held(file, monkeypatch):
    monkeypatch.setattr("headroles.data.conllu.LONGEST", 100)
    path = file("x.conllu", "".join(f"{i}\ta\t_\t_\t_\t_\t{i - 1}\tdep\t_\t_\n" for i in range(1, 5_000)))
    message = (
        f"{path}, line 1: the sentence that starts here is too long: got more than 100 lines; expected a blank line "
        f"after each sentence"
    )
    for limit in (None, 1):
        with pytest.raises(ValueError, match=whole(message)):
            read(path, limit=limit)


def test_a_range_beyond_the_last_word(file):
    path = file("x.conllu", HI.replace("1\tHi", "1-3\tHi!" + "\t_" * 8 + "\n1\tHi"))
    fault = "found 2 words; expected 3, the end of the last range, in the sentence that starts here"
    with pytest.raises(ValueError, match=whole(f"{path}, line 1: {fault}")):
        read(path)


# how far heads are
def test_offsets_of_two_sentences():
    one = Sentence("a b c", ((0, 1), (2, 3), (4, 5)), (2, 2, -1), ("nsubj", "amod", "root"))
    two = Sentence("a b c", ((0, 1), (2, 3), (4, 5)), (-1, 0, 1), ("root", "nsubj:pass", "nsubj"))
    rows = offsets(Corpus("x", (one, two)), ("nsubj", "amod"))
    assert rows.to_dict("list") == {
        "relation": ["nsubj", "nsubj", "amod"],
        "offset": [-1, 2, 1],
        "count": [1, 1, 1],
        "share": [0.5, 0.5, 1.0],
    }
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


def test_offsets_without_trees_or_relations():
    message = "corpus 'x' has no trees; read a CoNLL-U file, or parse the text with headroles.parse"
    with pytest.raises(ValueError, match=whole(message)):
        offsets(Corpus("x", (Sentence("a"),)))
    with pytest.raises(
        ValueError, match=whole("none of dobj in corpus 'x'; its relations: case, det, nsubj, obl, punct")
    ):
        offsets(Corpus("x", (ZUM,)), ("dobj",))


def test_what_is_not_utf8(file):
    path = file("x.txt", "gut\nschön\n".encode("latin1"))
    message = f"{path}, line 2: byte 0xf6 is not UTF-8; convert it: iconv -f latin1 -t utf-8"
    with pytest.raises(ValueError, match=whole(message)):
        read(path)
    path = file("y.txt", gzip.compress(b"good", mtime=0))
    with pytest.raises(
        ValueError, match=whole(f"{path}, line 1: byte 0x8b is not UTF-8; it is gzip: end its name in .gz")
    ):
        read(path)


def test_what_is_not_gzip(file):
    path, cut = (
        file("x.gz", "good\n"),
        file("y.gz", gzip.compress(random.Random(0).randbytes(999).hex().encode())[:500]),
    )
    reasons = {
        path: "Not a gzipped file (b'go')",
        cut: "Compressed file ended before the end-of-stream marker was reached",
    }
    for one, reason in reasons.items():
        message = f"{one} is not gzip, or not all of it, though its name ends in .gz; after line 0: {reason}"
        with pytest.raises(ValueError, match=whole(message)):
            read(one)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("name", ["one.txt", "one.txt.gz", "one.conllu", "one.tsv.gz"])
def test_an_endless_line_is_not_held(name, limit, tmp_path):
    """24 MB without an end of line: it was held whole, several times over."""
    path, size = tmp_path / name, 24 * 2**20
    with gzip.open(path, "wb", compresslevel=1) if path.suffix == ".gz" else path.open("wb") as content:
        for _ in range(size // 2**20):
            content.write(b"a" * 2**20)
    message = (
        f"{path}, line 1 is too long: got more than 1048576 bytes; expected a sentence or a row of a table; try to "
        f"split the text into lines"
    )
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=whole(message)):
            read(path, limit=limit)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**23


def test_a_line_as_long_as_may_be_is_read(file):
    path = file("one.txt", b"a" * (2**20 - 1) + b"\nb\n")
    assert [len(one.text) for one in read(path)] == [2**20 - 1, 1]


ROW = "{0}\t{1}\t_\tNOUN\t_\t_\t{2}\t{3}\t_\t_\n"


GOOD = ROW.format(1, "dogs", 2, "nsubj") + ROW.format(2, "sleep", 0, "root") + "\n"


def withheld(size, text="# text = _\n"):
    """A sentence of a treebank that comes without its text."""
    return text + "".join(ROW.format(i, "_", i - 1, "dep" if i > 1 else "root") for i in range(1, size + 1)) + "\n"


@pytest.mark.parametrize("text", ["", "# text = _ _ _\n", "# text = withheld\n"])
def test_treebanks_without_their_text_are_refused(tmp_path, text):
    path = tmp_path / "withheld.conllu"
    path.write_text(GOOD + withheld(3, text))
    message = (
        f"{path}, line 4: all 3 words of the sentence that starts here are '_': its licence withholds the text; "
        "expected words; try the script in the treebank's repository that adds them"
    )
    with pytest.raises(ValueError, match=whole(message)):
        hr.read(path)


def test_multiword_tokens_of_words_that_are_not_spelt_are_read(tmp_path):
    path = tmp_path / "du.conllu"
    range_line = "1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_\n"
    path.write_text(range_line + withheld(2, ""))
    assert hr.read(path)[0].text == "du"
    path.write_text(ROW.format(1, "_", 0, "root") + "\n")  # an underscore may be a word
    assert hr.read(path)[0].text == "_"
    path.write_text(ROW.format(1, "_", 2, "nsubj") + ROW.format(2, "sleeps", 0, "root") + "\n")
    assert hr.read(path)[0].text == "_ sleeps"


def test_a_small_file_that_unpacks_to_one_huge_sentence_is_refused_in_bounded_memory(tmp_path):
    path = tmp_path / "bomb.conllu.gz"
    line = b"# " + b"x" * 2**19 + b"\n"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(GOOD.encode())
        for _ in range(256):  # 128 MiB, of a sentence that would have 50 GiB within its 100,000 lines
            file.write(line)
    assert path.stat().st_size < 2**20
    message = (
        f"{path}, line 4: the sentence that starts here is too long: got more than 8388608 characters; expected a "
        "blank line after each sentence"
    )
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=whole(message)):
            hr.read(path)
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()
