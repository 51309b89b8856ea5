"""Readers and the CoNLL-U writer: real treebanks and tables, laws, and each error message whole."""

from __future__ import annotations

import gzip
import random
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headroles.data.conllu import base, offsets, spans
from headroles.data.corpus import Corpus, Sentence
from headroles.data.readers import read, write

GERMAN = """# text = Er geht zum Arzt.
1	Er	er	PRON	_	_	2	nsubj	_	_
2	geht	gehen	VERB	_	_	0	root	_	_
3-4	zum	_	_	_	_	_	_	_	_
3	zu	zu	ADP	_	_	5	case	_	_
4	dem	der	DET	_	_	5	det	_	_
5	Arzt	Arzt	NOUN	_	_	2	obl	_	SpaceAfter=No
5.1	ging	gehen	VERB	_	_	_	_	_	_
6	.	.	PUNCT	_	_	2	punct	_	_
"""
ZUM = Sentence(
    "Er geht zum Arzt.",
    spans=((0, 2), (3, 7), None, None, (12, 16), (16, 17)),
    heads=(1, -1, 4, 4, 1, 1),
    relations=("nsubj", "root", "case", "det", "obl", "punct"),
)
HI = "# text = Hi!\n1\tHi\t_\tINTJ\t_\t_\t0\troot\t_\tSpaceAfter=No\n2\t!\t_\tPUNCT\t_\t_\t1\tpunct\t_\t_\n\n"


def whole(message: str) -> str:
    """The pattern that matches this message and no longer or shorter one."""
    return rf"\A{re.escape(message)}\Z"


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of the test and gives its path."""

    def make(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


# CoNLL-U


def test_words_ranges_and_empty_nodes(file):
    assert read(file("de.conllu", GERMAN)).sentences == (ZUM,)


def test_text_is_rebuilt_where_there_is_none_or_another(file):
    without = GERMAN.partition("\n")[2]
    for content in (without, "# text = Something else\n" + without, "# text =\n" + without):
        assert read(file("de.conllu", content)).sentences == (ZUM,)


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
    [
        ("pud/de_pud-ud-test", 1000, 662),
        ("pud/ru_pud-ud-test", 1000, 0),
        ("ewt/en_ewt-ud-dev", 2001, 0),
    ],
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


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("language", ["de", "ru"])
def test_a_treebank_written_and_read_is_the_same(shared, tmp_path, language):
    corpus = read(shared / "data" / "ud" / "pud" / f"{language}_pud-ud-test.conllu.gz", limit=500)
    assert read(write(corpus, tmp_path / "x.conllu")).sentences == corpus.sentences


def test_a_tab_between_words_is_kept(tmp_path):
    corpus = Corpus("x", (Sentence("a\tb ", ((0, 1), (2, 3)), (1, -1), ("dep", "root")),))
    assert read(write(corpus, tmp_path / "x.conllu")) == corpus


def test_what_is_written(tmp_path):
    lines = write(Corpus("x", (ZUM,)), tmp_path / "x.conllu").read_text().split("\n")
    assert lines == [
        "# text = Er geht zum Arzt.",
        "1\tEr\t_\t_\t_\t_\t2\tnsubj\t_\t_",
        "2\tgeht\t_\t_\t_\t_\t0\troot\t_\t_",
        "3-4\tzum\t_\t_\t_\t_\t_\t_\t_\t_",
        "3\t_\t_\t_\t_\t_\t5\tcase\t_\t_",
        "4\t_\t_\t_\t_\t_\t5\tdet\t_\t_",
        "5\tArzt\t_\t_\t_\t_\t2\tobl\t_\tSpaceAfter=No",
        "6\t.\t_\t_\t_\t_\t2\tpunct\t_\t_",
        "",
        "",
    ]


@pytest.mark.parametrize(
    "bad",
    [
        Sentence("Hi"),
        Sentence("a\nb", ((0, 1), (2, 3)), (-1, 0), ("root", "dep")),
        Sentence("a b", ((2, 3), (0, 1)), (-1, 0), ("root", "dep")),
        Sentence("a b", ((0, 1), (2, 3)), (-1, -1), ("root", "root")),
        Sentence("a b", ((0, 1), None), (-1, 0), ("root", "a\tb")),
        Sentence("a", ((0, 1), None), (-1, 0), ("root", "dep")),
    ],
)
def test_what_conllu_cannot_hold_is_refused_and_the_old_file_stays(file, bad):
    old = file("x.conllu", HI)
    message = (
        f"sentence 2 would not come back from CoNLL-U as it is: {bad.text!r}; it needs a tree of one root, "
        "a text of one line, and words that follow one another in it"
    )
    with pytest.raises(ValueError, match=whole(message)):
        write(Corpus("x", (ZUM, bad)), old)
    assert old.read_text() == HI
    assert list(old.parent.iterdir()) == [old]


def test_writing_nothing(tmp_path):
    message = f"corpus 'x' has no sentences; there is nothing to write to {tmp_path / 'x.conllu'}"
    with pytest.raises(ValueError, match=whole(message)):
        write(Corpus("x", ()), tmp_path / "x.conllu")


# plain and parallel text, tables


def test_plain_text_splits_at_line_feeds_only_and_skips_blank_lines(file):
    corpus = read(file("a.txt", "one\u2028two\n\n  \n three \n"))
    assert corpus == Corpus("a", (Sentence("one\u2028two"), Sentence("three")))


def test_limit_and_name(file):
    path = file("a.en.gz", gzip.compress(b"1\n2\n3"))
    assert read(path) == Corpus("a.en", (Sentence("1"), Sentence("2"), Sentence("3")))
    assert read(path, limit=2, name="two") == Corpus("two", (Sentence("1"), Sentence("2")))
    with pytest.raises(ValueError, match=whole("limit must be None or at least 1 sentence; got 0")):
        read(path, limit=0)


def test_two_files(file, caplog):
    left, right = file("a.en", "one\n\ntwo\n"), file("a.de", "eins\nx\nzwei")
    pairs = (Sentence("one", target=Sentence("eins")), Sentence("two", target=Sentence("zwei")))
    assert read(left, right) == Corpus("a.en+a.de", pairs)
    assert caplog.messages == [f"{left}, {right}: left out 1 of 3 entries, which have a blank text"]


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
        ("ntrex/newstest2019.en.gz", "ntrex/newstest2019.ru.gz", None, 1997),
        pytest.param("tatoeba/eng-deu.tsv.gz", None, 50_000, 50_000, marks=pytest.mark.slow),
    ],
)
def test_real_parallel_text(shared, source, target, limit, size):
    data = shared / "data"
    corpus = read(data / source, None if target is None else data / target, limit=limit)
    assert len(corpus) == size
    assert all(one.text and one.target is not None and one.target.text and one.label is None for one in corpus)


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
        (
            "MRPC/msr_paraphrase_train",
            4076,
            'Amrozi accused his brother, whom he called "the w',
            "1",
            "Referring to him",
        ),
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


# errors


TEN = "expected the 10 tab-separated columns of CoNLL-U"
HOW = "a text without trees is read with form='text', or given trees by headroles.parse"
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


def test_a_range_beyond_the_last_word(file):
    path = file("x.conllu", HI.replace("1\tHi", "1-3\tHi!" + "\t_" * 8 + "\n1\tHi"))
    fault = "found 2 words; expected 3, the end of the last range, in the sentence that starts here"
    with pytest.raises(ValueError, match=whole(f"{path}, line 1: {fault}")):
        read(path)


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=whole(f"no file at {tmp_path / 'x.txt'}")):
        read(tmp_path / "x.txt")
    with pytest.raises(FileNotFoundError, match=whole(f"no file at {tmp_path}: it is a folder; name a file in it")):
        read(tmp_path)


@pytest.mark.parametrize("name", ["x.txt", "x.conllu", "x.tsv"])
@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file(file, name, content):
    path = file(name, content)
    with pytest.raises(ValueError, match=whole(f"{path} is empty; expected at least one sentence")):
        read(path)


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


def test_files_of_different_length(file):
    left, right = file("a.en", "1\n2\n"), file("a.de", "1\n2\n3\n")
    message = (
        f"{left} has 2 sentences, {right} has 3; parallel files need the same number, the n-th of one translating the "
        "n-th of the other"
    )
    with pytest.raises(ValueError, match=whole(message)):
        read(left, right)


def test_arguments_that_do_not_go_together(file):
    path = file("a.txt", "a\n")
    message = "unknown form 'csv'; known: conllu, text, parallel, labelled, pairs, or None to decide by the file's name"
    with pytest.raises(ValueError, match=whole(message)):
        read(path, form="csv")
    message = f"form='text' is one file: got a target too, {path}; leave out form= or the target"
    with pytest.raises(ValueError, match=whole(message)):
        read(path, path, form="text")
    start, end = "text= and label= name columns of one labelled table: got ", " too; leave out one of the two"
    with pytest.raises(ValueError, match=whole(start + f"a target, {path}" + end)):
        read(path, path, label="label")
    with pytest.raises(ValueError, match=whole(start + "form='conllu'" + end)):
        read(path, text=0, form="conllu")


def test_columns_that_are_not_there(file):
    path = file("x.tsv", "id\twords\tmood\n7\ta\tgood\n")
    columns = "3 columns: 'id', 'words', 'mood'"
    known = f"it has {columns}; give label= one of them, or an index from 0"
    unknown = f"{path} has no known label column; {known}"
    with pytest.raises(ValueError, match=whole(unknown)):
        read(path)
    with pytest.raises(ValueError, match=whole(unknown.replace("label", "text"))):
        read(path, label="mood")
    for column in ("feeling", 3, -1):
        message = f"{path} has no column {column!r}; {known}"
        with pytest.raises(ValueError, match=whole(message)):
            read(path, label=column)
    message = f"{path} has {columns}; parallel text is two tab-separated columns, or two files"
    with pytest.raises(ValueError, match=whole(message)):
        read(path, form="parallel")


def test_a_ragged_table(file):
    path = file("x.tsv", "a\tb\n\nc\td\te\n")
    message = f"{path}, line 3: found 3 columns: 'c', 'd', 'e'; expected 2, as many as in the first line"
    with pytest.raises(ValueError, match=whole(message)):
        read(path)


def test_a_table_without_text(file, caplog):
    path = file("x.tsv", "sentence\tlabel\n \t1\n")
    with pytest.raises(
        ValueError, match=whole(f"{path}: all 1 entries have a blank text; expected at least one sentence")
    ):
        read(path)
    path = file("x.tsv", "sentence\tlabel\n \t1\na\t0\n")
    assert read(path).sentences == (Sentence("a", label="0"),)
    assert caplog.messages == [f"{path}: left out 1 of 2 entries, which have a blank text"]


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


def test_a_sample_is_drawn_by_chance_and_in_order():
    whole = Corpus("numbers", tuple(Sentence(str(number)) for number in range(1000)))
    drawn = [int(one.text) for one in whole.sample(100, seed=1)]
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 100
    assert 400 < sum(drawn) / 100 < 600  # not the first
    assert drawn == [int(one.text) for one in whole.sample(100, seed=1)]
    assert drawn != [int(one.text) for one in whole.sample(100, seed=2)]
    assert whole.sample(None) is whole.sample(1000) is whole


def test_a_corpus_of_plain_strings_is_read_as_it_is():
    texts = ["<|user|> Hi! ", "two\nlines"]  # a chat template is text like any other
    corpus = Corpus.of(iter(texts), name="mine")
    assert corpus == Corpus("mine", tuple(map(Sentence, texts)))
    assert Corpus.of(texts).hash == corpus.hash
    with pytest.raises(TypeError, match=r"^expected several texts, got one string 'abc'; put it in a list$"):
        Corpus.of("abc")
