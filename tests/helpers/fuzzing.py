"""Damaged files of sentences, and plain readers of what is left of them."""

from __future__ import annotations

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory

from helpers.letters import DETERMINISTIC
from hypothesis import given, settings
from hypothesis import strategies as st

import headroles as hr

TREES = """\
# sent_id = 1
# text = Zum Haus geht's, oder?
1-2\tZum\t_\t_\t_\t_\t_\t_\t_\t_
1\tzu\t_\t_\t_\t_\t3\tcase\t_\t_
2\tdem\t_\t_\t_\t_\t3\tdet\t_\t_
3\tHaus\t_\tNOUN\t_\t_\t4\tobl\t4:obl\t_
4-5\tgeht's\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
4\tgeht\t_\t_\t_\t_\t0\troot\t_\t_
5\t's\t_\t_\t_\t_\t4\tnsubj\t_\t_
5.1\tja\t_\t_\t_\t_\t_\t_\t4:advmod\t_
6\t,\t_\t_\t_\t_\t4\tpunct\t_\t_
7\toder\t_\t_\t_\t_\t4\tadvmod\t_\tSpaceAfter=No
8\t?\t_\t_\t_\t_\t4\tpunct\t_\tSpaceAfter=No

1\tКошка\t_\t_\t_\t_\t2\tnsubj:pass\t_\t_
2\tspit\t_\t_\t_\t_\t0\troot\t_\tSpaceAfter=No|Gloss=x
3\t😀\t_\t_\t_\t_\t2\tobj\t_\t_

# text = one two
1\tone\t_\t_\t_\t_\t0\troot\t_\t_
2\ttwo\t_\t_\t_\t_\t1\tamod\t_\t_

"""
FILES = {
    "trees.conllu": TREES,
    "lines.txt": "a sentence .\n\nКошка spit 😀\n  \nthe last one, without an end",
    "pairs.tsv": "a cat\teine Katze\na dog\tein Hund\n\t\nblank\t\nthe end .\tdas Ende .\n",
    "labelled.tsv": "sentence\tlabel\na film\t1\nno film\t0\n",
}
NAMES = [*FILES, *(f"{name}.gz" for name in FILES)]
ODD = ["\0", "\ufeff", "\u2028", "\x85", "\x1c", "\u3000", "e\u0301", "\u202e", "\r", "\r\n", "\t", "\n", "\n\n", " "]
BYTES = [*(one.encode() for one in ODD), b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x1f\x8b"]
LONGEST = 1000  # characters of a message, its path included


@st.composite
def files(draw):
    """A name and what is left under it after some accidents; compressed where the name says so."""
    name = draw(st.sampled_from(NAMES))
    content = FILES[name.removesuffix(".gz")].encode()
    for _ in range(draw(st.integers(1, 4))):
        content = draw(st.sampled_from([inserted, cut, truncated, swapped, replaced]))(draw, content)
    return name, gzip.compress(content, mtime=0) if name.endswith(".gz") else content


def place(draw, content):
    """Somewhere in a file: anywhere, or where a line or a cell begins."""
    marks = [0, *(number + 1 for number, byte in enumerate(content[:5000]) if byte in b"\n\t")]
    return draw(st.sampled_from(marks) | st.integers(0, len(content)))


def inserted(draw, content):
    at = place(draw, content)
    return content[:at] + draw(st.sampled_from(BYTES)) + content[at:]


def cut(draw, content):
    start, end = sorted([place(draw, content), place(draw, content)])
    return content[:start] + content[end:]


def truncated(draw, content):
    return content[: place(draw, content)]


def swapped(draw, content):
    """Two lines, or two cells, change places."""
    mark = draw(st.sampled_from([b"\n", b"\t"]))
    parts = content.split(mark)
    first, second = (draw(st.integers(0, len(parts) - 1)) for _ in range(2))
    parts[first], parts[second] = parts[second], parts[first]
    return mark.join(parts)


def replaced(draw, content):
    """A cell is something else."""
    cells = content.split(b"\t")
    cells[draw(st.integers(0, len(cells) - 1))] = draw(st.sampled_from(BYTES))
    return b"\t".join(cells)


def holds(path):
    """The law: an error that names the file, or what a plain reader finds."""
    sentences, message = (), str(path)
    try:
        sentences = hr.read(path).sentences
    except ValueError as error:
        message = str(error)
    assert str(path) in message
    assert len(message) < LONGEST
    if message != str(path):
        return False
    assert sentences
    assert all(sentence.text for sentence in sentences)
    if sentences[0].label is None:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        plain = PLAIN[path.name.removesuffix(".gz")](content.decode().removeprefix("\ufeff"))
        assert [*map(told, sentences)] == [*plain]
    return True


def told(sentence):
    """What a sentence says, in the form of a plain reader."""
    if sentence.target is not None:
        return sentence.text, sentence.target.text
    if not sentence.has_tree:
        return sentence.text
    placed = [span for span in sentence.spans if span is not None]
    assert all(start < end <= len(sentence.text) for start, end in placed)
    assert all(one[1] <= other[0] for one, other in zip(placed, placed[1:], strict=False))
    assert all(reaches_root(sentence.heads, word) for word in range(len(sentence.heads)))
    words = [None if span is None else sentence.text[slice(*span)] for span in sentence.spans]
    return words, list(sentence.heads), list(sentence.relations)


def reaches_root(heads, word):
    for _ in heads:
        word = heads[word] if word >= 0 else word
    return word == -1


def plain_trees(content):
    """Words, heads and relations of every block of lines, without a look at anything else."""
    for block in blocks(content):
        rows = [line.split("\t") for line in block if not line.startswith("#")]
        words = [row for row in rows if row[0].isdigit()]
        many = any("-" in row[0] for row in rows)
        forms = [Maybe(row[1]) if many else row[1] for row in words]
        yield forms, [int(row[6]) - 1 for row in words], [row[7] for row in words]


class Maybe(str):
    """A word of a sentence with multiword tokens: it may be no stretch of the text."""

    __hash__ = None

    def __eq__(self, other):
        return other is None or str(self) == other


def blocks(content):
    lines = []
    for line in [*content.replace("\r\n", "\n").split("\n"), ""]:
        if line.strip():
            lines.append(line)
        elif lines:
            yield lines
            lines = []


def plain_lines(content):
    return (line.strip() for line in content.split("\n") if line.strip())


def plain_pairs(content):
    rows = [line.split("\t") for line in content.split("\n") if line.strip()]
    return ((one.strip(), other.strip()) for one, other in rows if one.strip() and other.strip())


PLAIN = {"trees.conllu": plain_trees, "lines.txt": plain_lines, "pairs.tsv": plain_pairs, "labelled.tsv": plain_pairs}


def fuzz(count):
    """So many damaged files; how many of them were read nevertheless."""
    numbers = {"files": 0, "read": 0}

    @settings(DETERMINISTIC, max_examples=count)
    @given(files())
    def check(damaged):
        name, content = damaged
        with TemporaryDirectory() as folder:
            path = Path(folder, name)
            path.write_bytes(content)
            numbers["files"] += 1
            numbers["read"] += holds(path)

    check()
    return numbers
