"""What data refuse: the file or the call, and the subject and the value that the message names."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path

import pytest
import stanza
from helpers.letters import tokens_of
from helpers.treebanks import GERMAN, ZUM

import headroles as hr
from headroles.data import hf_datasets
from headroles.data.conllu import offsets
from headroles.data.corpus import Corpus, Sentence, Tokens
from headroles.data.readers import as_corpus, read, write

HERE = Path(__file__).parent
HI = "# text = Hi!\n1\tHi\t_\tINTJ\t_\t_\t0\troot\t_\tSpaceAfter=No\n2\t!\t_\tPUNCT\t_\t_\t1\tpunct\t_\t_\n\n"
REST = "\t_\t_\t_\t_"
WITHHELD = "1\t_\t_\t_\t_\t_\t0\troot\t_\t_\n2\t_\t_\t_\t_\t_\t1\tdep\t_\t_\n\n"
RANGE = "\t_" * 8 + "\n"


def row(text):
    """A treebank with this as the third line of the second sentence, line 14 of the file."""
    return "x.conllu", GERMAN + "\n" + HI.rstrip("\n") + "\n" + text + "\n"


def heads(text):
    """A sentence of words with these heads, which starts in line 5."""
    rows = (f"{n}\tw\t_\t_\t_\t_\t{head}\tdep\t_\t_\n" for n, head in enumerate(text.split(), 1))
    return "x.conllu", HI + "# sent_id = 2\n" + "".join(rows)


FILES = {  # what -> name, content, options of `read`, message
    "text as trees": (*row("Just a sentence."), {}, "line 14: found 1 column: 'Just a sentence.'; expected the 10 "),
    "three columns": (*row("3\tx\ty"), {}, "line 14: found 3 columns: '3', 'x', 'y'; .* name a text without trees .tx"),
    "many columns": (*row("\t".join("x" * 99)), {}, r"line 14: found 99 columns: ('x', ){20}\.\.\.; expected"),
    "an ID of letters": (*row(f"x\ty{REST}\t1\tdep\t_\t_"), {}, "line 14: found ID 'x' and FORM 'y'; expected an ID"),
    "an ID of many digits": (
        *row(f"{'9' * 5000}\t{'y' * 50}{REST}\t1\tdep\t_\t_"), {}, "found ID '9{40}' and FORM 'y{40}'; expected an ID",
    ),
    "no form": (*row(f"3\t{REST}\t1\tdep\t_\t_"), {}, "line 14: found ID '3' and FORM ''; expected an ID such as"),
    "a word left out": (*row(f"4\ty{REST}\t1\tdep\t_\t_"), {}, "line 14: found ID '4'; expected word 3; words are num"),
    "a range backwards": (*row(f"3-2\ty{REST}{REST}"), {}, "line 14: found ID '3-2'; expected word 3; words are num"),
    "ranges that overlap": (
        "x.conllu", HI.replace("1\tHi", f"1-2\tHi!{RANGE}1\tHi").replace("2\t!", f"2-2\t!{RANGE}2\t!"), {},
        "line 4: found ID '2-2'; expected word 2; .* ranges do not overlap",
    ),
    "no head": (*row(f"3\ty{REST}{REST}"), {}, "line 14: found HEAD '_'; expected the number of a word, or 0"),
    "a head of many digits": (*row(f"3\ty{REST}\t{'9' * 5000}\tdep\t_\t_"), {}, "line 14: found HEAD '9{40}'; expecte"),
    "a head below 0": (*row(f"3\ty{REST}\t-1\tdep\t_\t_"), {}, "line 14: found HEAD '-1'; expected the number"),
    "a head beyond": (*heads("2 9 0"), {}, "line 5: word 2 has HEAD 9; expected 0 to 3, in the sentence that starts"),
    "no root": (*heads("2 3 1"), {}, "line 5: found 0 words with HEAD 0; expected exactly one, the root"),
    "two roots": (*heads("0 0 1"), {}, "line 5: found 2 words with HEAD 0; expected exactly one"),
    "a circle": (*heads("0 3 2"), {}, "line 5: word 2 governs itself, by way of its heads; expected a tree"),
    "a loop": (*heads("0 1 3"), {}, "line 5: word 3 governs itself"),
    "no words": (*heads(""), {}, "line 5: found 0 words; expected at least 1"),
    "a range beyond the words": (
        "x.conllu", HI.replace("1\tHi", f"1-3\tHi!{RANGE}1\tHi"), {}, "line 1: found 2 words; expected 3, the end of",
    ),
    "withheld text": ("x.conllu", HI + WITHHELD, {}, "line 5: all 2 words of the sentence .* are '_': its licence"),
    "withheld, with its text": ("x.conllu", "# text = withheld\n" + WITHHELD, {}, "line 1: all 2 words"),
    "Latin-1": ("x.txt", "gut\nschön\n".encode("latin1"), {}, "line 2: byte 0xf6 is not UTF-8; convert it: iconv"),
    "UTF-16": ("x.txt", "gut\n".encode("utf-16"), {}, "line 1: byte 0xff is not UTF-8; convert it: iconv -f utf-16 "),
    "a document": ("x.docx", b"PK\x03\x04\xff\n", {}, "line 1: byte 0xff is not .*document: save it as plain text"),
    "gzip without .gz": ("x.txt", gzip.compress(b"good", mtime=0), {}, "line 1: byte 0x8b is not .*: end its name in"),
    "no gzip": ("x.gz", "good\n", {}, r"is not gzip, or is damaged, after line 0: Not a gzipped file \(b'go'\)"),
    "half a gzip": ("x.gz", gzip.compress(random.Random(0).randbytes(999).hex().encode())[:500], {}, "line 0: "),
    **{f"empty {name}": (name, "\n \n", {}, f"{name} is empty; expected at least") for name in ("x.txt", "x.tsv")},
    "empty x.conllu": ("x.conllu", "", {}, "x.conllu is empty; expected at least one sentence"),
    "only blank texts": ("x.tsv", "sentence\tlabel\n \t1\n", {}, "x.tsv: all 1 entries have a blank text; expected"),
    "a ragged table": ("x.tsv", "a\tb\n\nc\td\te\n", {}, "line 3: found 3 columns: 'c', 'd', 'e'; expected 2, as many"),
    "no label": ("x.tsv", "id\twords\tmood\n7\ta\tgood\n", {}, "x.tsv has no known label column; it has 3 columns: 'i"),
    "no text": (
        "x.tsv", "id\twords\tmood\n7\ta\tgood\n", {"label": "mood"}, "x.tsv has no known text column; .* to sentence, ",
    ),
    **{
        f"column {column}": ("x.tsv", "id\tmood\n7\tgood\n", {"label": column}, f"x.tsv has no column {column!r}; it ")
        for column in ("feeling", 2, -1)
    },
    "three columns of parallel text": ("x.tsv", "a\tb\tc\n", {"form": "parallel"}, "x.tsv has 3 columns.* is two tab-"),
    **{
        f"x.{kind}": (f"x.{kind}", "text\n", {}, f"file must be .txt, .conllu, .tsv or .jsonl, got .*x.{kind}; try its")
        for kind in ("csv", "json", "parquet")
    },
    "half a pair": ("x.jsonl", '{"sentence_good": "x"}\n', {}, "has no known text column: got sentence_good; give"),
    "a pair of numbers": ("x.jsonl", '{"sentence_good": "x", "sentence_bad": 3}\n', {}, "pair 1 .*got sentence_bad=3"),
    "no answer": ("x.jsonl", '{"text": "x", "answer": null}\n', {}, "row 1 must have texts in text and answer, got an"),
    "a turn without content": ("x.jsonl", '{"messages": [{"role": "user"}]}\n', {}, "row 1 must .*, got content=None"),
    "no turns": ("x.jsonl", '{"messages": "Hi!"}\n', {}, "row 1 must have texts, or messages .* a list, got 'Hi!'"),
    "rows of two shapes": ("x.jsonl", '{"messages": []}\n{"x": 1}\n', {}, "row 2 must .* messages .*got None"),
    "other fields": ("x.jsonl", '{"words": [], "tags": []}\n', {}, "has no known text column: got words, tags; "),
    "no JSON": ("x.jsonl", "x\n", {}, "x.jsonl, line 1 is not JSON: Expecting value"),
    "no object": ("x.jsonl", "[1]\n", {}, r"x.jsonl, line 1 must be an object, got '\[1\]'"),
    "an unknown form": ("x.txt", "a\n", {"form": "csv"}, "form must be one of None, conllu, text, .*, got 'csv'"),
    "a column of trees": ("x.txt", "a\n", {"text": 0, "form": "conllu"}, "labelled table, got form='conllu' too"),
    "no limit": ("x.txt", "a\n", {"limit": 0}, "limit must be an integer >= 1, got 0"),
    "no sample": ("x.txt", "a\n", {"sample": 0}, "sample must be an integer >= 1, got 0"),
}  # fmt: skip


@pytest.mark.parametrize("what", FILES)
def test_files_that_are_refused(what, file):
    name, content, options, message = FILES[what]
    with pytest.raises(ValueError, match=message):
        read(file(name, content), **options)


PARALLEL = {  # what -> source, target, word links, message
    "another length": ("1\n2\n", "1\n2\n3\n", None, "a.en has 2 sentences, .*a.de has 3 "),
    "a link of another form": ("a\nno\n", "a\nno\n", "0-0\n1:1\n", "links, line 2: word links must be .*, got '1:1'"),
    "a link beyond": ("a dog\n", "ein Hund\n", "1-2\n", "links, line 1: link 1-2 is beyond the 2 words of 'a dog' and"),
    "too few links": ("a\nno\n", "a\nno\n", "0-0\n", "a.en has 2 sentences, .*links has 1 "),
    "too many links": ("a\nno\n", "a\nno\n", "\n\n0-0\n\n", "a.en has 2 sentences, .*links has 4 "),
    "links without translations": ("a\n", None, "0-0\n", "links, line 1: link 0-0 of 'a' must lead to a later word"),
}


@pytest.mark.parametrize("what", PARALLEL)
def test_parallel_files_that_are_refused(what, file):
    source, target, links, message = PARALLEL[what]
    given = [file("a.en", source)] + ([] if target is None else [file("a.de", target)])
    with pytest.raises(ValueError, match=message):
        read(*given, links=None if links is None else file("links", links))


TREE = Sentence("a", ((0, 1),), (-1,), ("root",))
MIXED = hr.Corpus("mine", (Sentence("a"), Sentence("b", target=Sentence("c"))))
IDS = hr.Corpus("probe", (Tokens("a", ids=(5,)),))
CALLS = {  # what -> call, error, message
    "two files, one form": (lambda: read("a", "b", form="text"), ValueError, "form='text' must be for one file, got"),
    "two files, a column": (lambda: read("a", "b", label=1), ValueError, "one labelled table, got a target, b too; tr"),
    "links of chats": (lambda: read("a", "b", links="c", chat=True), ValueError, "links= must be .*, got chat=True to"),
    "links of a data set": (lambda: read("a/b", links="c"), ValueError, "links= must be .*, got the data set a/b too"),
    "no file": (lambda: read("x.txt"), FileNotFoundError, "no file at x.txt"),
    "a folder": (lambda: read(HERE), FileNotFoundError, f"no file at {HERE}: it is a folder; name a file"),
    "no data set": (lambda: read("nobody/nothing"), ValueError, "no dataset 'nobody/nothing', and no file of that nam"),
    "one text": (lambda: as_corpus("The dog."), FileNotFoundError, r"no file at The dog.; .*try \['The dog.'\]"),
    "a number": (lambda: as_corpus(3), TypeError, "corpus must be a corpus, texts in a list, .*, got int"),
    "splits": (lambda: as_corpus({"train": ["a"]}), TypeError, "corpus must be .*, got dict; try one of .*: 'train'"),
    "a number as a text": (lambda: as_corpus(["one", 2]), TypeError, "entry 2 must be a text, .*, got 2"),
    "three texts": (lambda: as_corpus([("a", "b", "c")]), TypeError, r"entry 1 must be a text, .*, got \('a', 'b', 'c"),
    "rows without text": (lambda: as_corpus([{"words": "one"}]), ValueError, "texts has no known text column: got wor"),
    "writing nothing": (lambda: write(Corpus("x", ()), "x"), ValueError, "corpus 'x' must have sentences, got none"),
    "offsets without trees": (lambda: offsets(Corpus("x", (Sentence("a"),))), ValueError, "corpus 'x' has no trees; "),
    "offsets of no relation": (
        lambda: offsets(Corpus("x", (ZUM,)), ("dobj",)), ValueError, "corpus 'x' has none of dobj; it has case,",
    ),
    "a mixed data set": (lambda: hr.to_dataset(MIXED), ValueError, "corpus 'mine' must have a target, got 1 of 2"),
    "a data set of ids": (lambda: hr.to_dataset(IDS), ValueError, "must be texts, got token ids or sound in"),
    "parsing nothing": (lambda: hr.parse([" "]), ValueError, "corpus 'texts' must have text, got 1 blank sentences"),
    "parsing no target": (lambda: hr.parse(["a"], side="target"), ValueError, "sentence 1 of corpus 'texts' has no ta"),
    "parsing trees": (lambda: hr.parse([Sentence("a"), TREE]), ValueError, "sentence 2 of .* already has a tree on it"),
    "parsing a side": (lambda: hr.parse(["a"], side="left"), ValueError, "side must be one of source, target, got 'le"),
    "a download": (lambda: hr.parse(["a"], download="always"), ValueError, "download must be .*, got 'always'"),
    "parsing no file": (lambda: hr.parse("x"), FileNotFoundError, "no file at x"),
    "an output in a file": (
        lambda: hr.parse(["a"], output=f"{__file__}/a"), OSError, "cannot write into folder of the output ",
    ),
    "sentences below 0": (lambda: hr.synthetic_corpus(-1), ValueError, "sentences must be an integer >= 0, got -1"),
    "pairs below 0": (lambda: hr.minimal_pairs(-1), ValueError, "count must be an integer >= 0, got -1"),
    "a phenomenon": (lambda: hr.minimal_pairs(phenomenon="binding"), ValueError, "phenomenon must be .*, got 'binding"),
    "a translated phenomenon": (
        lambda: hr.minimal_pairs(phenomenon="relative", translated=True), ValueError, "one of agreement, got 'relative",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CALLS)
def test_calls_that_are_refused(what):
    call, error, message = CALLS[what]
    with pytest.raises(error, match=message):
        call()


PROBES = [
    (hr.repeated_tokens, {"length": 10_000}, r"length must be an integer >= 1 and <= \d+, got 10000"),
    (hr.needles, {"count": 0}, "count .* got 0"),
    (hr.needles, {"length": 0}, "length .* got 0"),
    (hr.needles, {"size": 1}, "size .* got 1"),
    (hr.needles, {"size": 10_000}, r"size must be an integer >= 2 and < \d+, got 10000"),
    (hr.hidden_facts, {"count": 0}, "count .* got 0"),
    (hr.hidden_facts, {"facts": 0}, "facts .* got 0"),
    (hr.hidden_facts, {"facts": 10_000}, "facts .* got 10000"),
    (hr.hidden_facts, {"length": 0}, "length .* got 0"),
    (hr.hidden_facts, {"length": ()}, "length .* got 0"),
    (hr.indirect_objects, {}, "names that are one token must be an integer >= 2, got 0"),
    (hr.ordered_words, {"count": 0}, "count .* got 0"),
    (hr.ordered_words, {"classes": ["planets"]}, "class must be one of days, .*, got 'planets'"),
    (hr.ordered_words, {"classes": ("digits", "days")}, "no ordered words: got none of digits, days with 3 words"),
]


@pytest.mark.parametrize(("probe", "options", "message"), PROBES)
def test_probes_that_are_refused(probe, options, message):
    with pytest.raises(ValueError, match=message):
        probe(tokens_of("gpt2"), **options)


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
    message = re.escape(f"sentence 2 cannot be read back unchanged from CoNLL-U: {bad.text!r}; it needs a tree")
    with pytest.raises(ValueError, match=message):
        write(Corpus("x", (ZUM, bad)), old)
    assert old.read_text() == HI
    assert list(old.parent.iterdir()) == [old]


def test_without_datasets_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(hf_datasets, "find_spec", lambda _: None)
    for call in (lambda: hr.read("glue/sst2"), lambda: hr.to_dataset(hr.Corpus.of(["a"]))):
        with pytest.raises(ModuleNotFoundError, match="needs the package datasets, in a checkout: pip install"):
            call()


def test_models_that_stanza_cannot_load(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise KeyError("tokenize")

    monkeypatch.setattr(stanza, "Pipeline", fails)
    with pytest.raises(ValueError, match="Stanza could not load models for 'de' from .*: 'tokenize'; name a folder"):
        hr.parse(["a"], language="de", models=tmp_path)
