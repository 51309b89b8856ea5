"""Lines and trees of files: gzipped or not, one in memory at a time; CoNLL-U is read and written (no torch)."""

from __future__ import annotations

import contextlib
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise
from pathlib import Path

import pandas as pd

from headroles.data.corpus import RELATIONS, Corpus, Sentence, Span

_TEXT = re.compile(r"#\s*text\s*= ?(.*)", re.DOTALL)
_ID = re.compile(r"([0-9]{1,9})(?:([-.])([0-9]{1,9}))?")  # no sentence has more words
_HEAD = re.compile(r"[0-9]{1,9}")


def trees(lines: Iterable[str], where: str) -> Iterator[Sentence]:
    """Yield the sentences of a CoNLL-U file; for a malformed one, ValueError gives `where`, line and expected form."""
    for blank, group in groupby(enumerate(lines, 1), lambda line: not line[1].strip()):
        if not blank:
            yield _tree(list(group), where)


def _tree(rows: list[tuple[int, str]], where: str) -> Sentence:
    tokens: list[tuple[str, list[str], bool]] = []  # surface form, forms of the words, whether a space follows
    heads: list[int] = []
    relations: list[str] = []
    text, last = None, 0  # the annotated text; the last word of the newest multiword token
    for number, line in rows:
        if line.startswith("#"):
            text = match[1] if (match := _TEXT.fullmatch(line)) else text
            continue
        fields = line.split("\t")
        if fault := _line_fault(fields, len(heads) + 1, last):
            raise ValueError(f"{where}, line {number}: {fault}")
        token = (fields[1], list[str](), "SpaceAfter=No" not in fields[9].split("|"))
        if "-" in fields[0]:
            tokens.append(token)
            last = int(fields[0].partition("-")[2])
        elif "." not in fields[0]:
            if len(heads) >= last:
                tokens.append(token)
            tokens[-1][1].append(fields[1])
            heads.append(int(fields[6]) - 1)
            relations.append(fields[7])
    if fault := _tree_fault(heads, last):
        raise ValueError(f"{where}, line {rows[0][0]}: {fault}, in the sentence that starts here")
    if len(tokens) > 1 and all(surface == "_" for surface, _, _ in tokens):
        raise ValueError(
            f"{where}, line {rows[0][0]}: all {len(tokens)} words of the sentence that starts here are '_': its "
            f"licence withholds the text; expected words; try the script in the treebank's repository that adds them"
        )
    if text is None or (places := _place(tokens, text)) is None:
        text = "".join(surface + " " * gap for surface, _, gap in tokens).removesuffix(" " * tokens[-1][2])
        places = _place(tokens, text) or []
    return Sentence(text, tuple(places), tuple(heads), tuple(relations))


def _line_fault(fields: list[str], word: int, last: int) -> str | None:
    """Describe the fault of a line, where word `word` is expected and the last multiword token ends at word `last`."""
    if len(fields) != 10:
        hint = "name a text without trees .txt (in Python form='text'), or parse it (headroles.parse)"
        return f"found {columns(fields)}; expected the 10 tab-separated columns of CoNLL-U; {hint}"
    if not (match := _ID.fullmatch(fields[0])) or not fields[1]:
        expected = "expected an ID such as 3, 3-4 or 3.1, and a word"
        return f"found ID {fields[0][:40]!r} and FORM {fields[1][:40]!r}; {expected}"
    if match[2] == ".":
        return None
    if int(match[1]) != word or (match[2] and (int(match[3]) < word or word <= last)):
        return f"found ID {fields[0]!r}; expected word {word}; words are numbered from 1, ranges do not overlap"
    if not match[2] and not _HEAD.fullmatch(fields[6]):
        wanted = "expected the number of a word, or 0 for the root; for trees use headroles.parse"
        return f"found HEAD {fields[6][:40]!r}; {wanted}"
    return None


def _tree_fault(heads: list[int], last: int) -> str | None:
    size = len(heads)
    if last > size or not size:
        return f"found {size} words; expected " + (f"{last}, the end of the last range" if size else "at least 1")
    if wrong := [word for word, head in enumerate(heads) if head >= size]:
        return f"word {wrong[0] + 1} has HEAD {heads[wrong[0]] + 1}; expected 0 to {size}"
    if heads.count(-1) != 1:
        return f"found {heads.count(-1)} words with HEAD 0; expected exactly one, the root"
    rooted = {-1}
    for word in range(size):
        trail: set[int] = set()
        while word not in rooted and word not in trail:
            trail.add(word)
            word = heads[word]
        if word not in rooted:
            return f"word {word + 1} governs itself, by way of its heads; expected a tree"
        rooted.update(trail)
    return None


def _place(tokens: list[tuple[str, list[str], bool]], text: str) -> list[Span | None] | None:
    """Return the spans of all words; None if the text is not the tokens in order, separated by blanks."""
    places: list[Span | None] = []
    end = 0
    for surface, forms, _ in tokens:
        start = text.find(surface, end)
        if start < 0 or text[end:start].strip():
            return None
        places += spans(start, surface, forms)
        end = start + len(surface)
    return places


def spans(start: int, surface: str, forms: Sequence[str]) -> list[Span | None]:
    """Return the character span of each word of the token `surface` at `start`; None where they do not spell it."""
    if "".join(forms) != surface:
        return [None] * len(forms)
    ends = [start + length for length in accumulate(map(len, forms))]
    return [(end - len(form), end) for form, end in zip(forms, ends, strict=True)]


def block(number: int, sentence: Sentence) -> str:
    """Format a sentence as CoNLL-U; ValueError with its number if `trees` would not read the same sentence back."""
    tokens = [*_tokens(sentence), (-1, -1, range(0))]
    lines = ["# text = " + sentence.text]
    for (start, end, words), (following, _, _) in pairwise(tokens):
        surface, misc = sentence.text[start:end], "SpaceAfter=No" if following == end else "_"
        if whole := sentence.spans[words[0]] is None:  # a multiword token: its words do not spell it
            lines.append(f"{words[0] + 1}-{words[-1] + 1}\t{surface}" + "\t_" * 7 + f"\t{misc}")
        form, rest = ("_" if surface.strip("_") else "-", "_") if whole else (surface, misc)
        for word in words:
            tree = f"{sentence.heads[word] + 1}\t{sentence.relations[word]}"
            lines.append(f"{word + 1}\t{form}\t_\t_\t_\t_\t{tree}\t_\t{rest}")
    written = "\n".join(lines) + "\n\n"
    with contextlib.suppress(ValueError):
        if list(trees(written.replace("\r\n", "\n").split("\n"), "")) == [
            replace(sentence, target=None, label=None, second=None)
        ]:
            return written
    raise ValueError(
        f"sentence {number} cannot be read back unchanged from CoNLL-U: {sentence.text!r}; it needs a tree with one "
        "root, a text on one line, and words in the order of the text"
    )


def _tokens(sentence: Sentence) -> Iterator[tuple[int, int, range]]:
    """Yield first character, end and words of each token; adjacent words without a span form one token."""
    end = 0
    for _, group in groupby(enumerate(sentence.spans), lambda word: word[0] if word[1] else -1):
        words = [word for word, _ in group]
        span, following = sentence.spans[words[0]], sentence.spans[words[-1] + 1 : words[-1] + 2]
        if span is None:
            gap = sentence.text[end : following[0][0] if following and following[0] else None]
            left = end + len(gap) - len(gap.lstrip())
            span = (left, left + len(gap.strip()))
        yield *span, range(words[0], words[-1] + 1)
        end = span[1]


def columns(names: list[str]) -> str:
    """Describe columns in a message: their number, and the first twenty."""
    shown = [repr(name[:40]) for name in names[:20]] + ["..."] * (len(names) > 20)
    return f"{len(names)} column{'s' * (len(names) > 1)}: {', '.join(shown)}"


def offsets(corpus: Corpus, relations: Sequence[str] = RELATIONS, *, subtypes: bool = False) -> pd.DataFrame:
    """Count how far heads are from their dependents on the source side (Voita et al. 2019, Figure 3).

    Args:
        corpus: Sentences with trees.
        relations: Dependency relations to count.
        subtypes: Whether `nsubj:pass` counts as `nsubj`.

    Returns:
        One row per relation and offset (position of the head minus position of the dependent, in words): `count`, and
        `share` of the relation's occurrences.

    Raises:
        ValueError: If the corpus has no trees or none of the relations.
    """
    if not any(sentence.has_tree for sentence in corpus):
        raise ValueError(
            f"corpus {corpus.name!r} has no trees; read a CoNLL-U file, or parse the text with headroles.parse"
        )
    counts: Counter[tuple[str, int]] = Counter()
    for sentence in corpus:
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if head >= 0:
                counts[base(relation) if subtypes else relation, head - word] += 1
    known = sorted({relation for relation, _ in counts})
    if not set(known) & set(relations):
        raise ValueError(f"corpus {corpus.name!r} has none of {', '.join(relations)}; it has {', '.join(known)}")
    rows = [(name, offset, counts[name, offset]) for name in relations for rel, offset in sorted(counts) if rel == name]
    frame = pd.DataFrame(rows, columns=["relation", "offset", "count"])
    return frame.assign(share=frame["count"] / frame.groupby("relation")["count"].transform("sum"))


STARTS = {  # first bytes of a file that is not UTF-8 -> what to do
    b"\x1f\x8b": "it is gzip: end its name in .gz",
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), "convert it: iconv -f utf-16 -t utf-8"),
    **dict.fromkeys((b"PK", b"\xd0\xcf", b"%P"), "it is a document: save it as plain text"),
    b"": "convert it: iconv -f latin1 -t utf-8",
}


def base(relation: str) -> str:
    """Return a Universal Dependencies relation without its subtype: `nsubj:pass` -> `nsubj`."""
    return relation.partition(":")[0]


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, gzipped or not, without line ends or a byte order mark; only a line feed ends one."""
    check_file(path)
    blank = True
    for line in _decoded(path):
        blank = blank and not line.strip()
        yield line
    if blank:
        raise ValueError(f"{path} is empty; expected at least one sentence")


def check_file(path: Path) -> None:
    """Raise FileNotFoundError unless `path` is a file."""
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}" + (": it is a folder; name a file in it" if path.is_dir() else ""))


def _decoded(path: Path) -> Iterator[str]:
    number, start = 0, b""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for number, raw in enumerate(file, 1):
                start = start or raw[:2]
                line = raw.decode()
                line = line.removesuffix("\r\n" if line.endswith("\r\n") else "\n")
                yield line.removeprefix("\ufeff") if number == 1 else line
        except UnicodeDecodeError as error:
            hint = next((hint for sign, hint in STARTS.items() if start.startswith(sign)), "")
            byte = error.object[error.start]
            raise ValueError(f"{path}, line {number}: byte {byte:#04x} is not UTF-8; {hint}") from error
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is not gzip, or is damaged, after line {number}: {error}") from error
