"""Entries of files, read lazily: trees, lines, parallel lines and rows of tables as sentences (no torch)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, Literal, TypeVar

from headroles.data.conllu import check_file, columns, lines, trees
from headroles.data.hf_datasets import FORMATS
from headroles.data.sentences import FIELDS, LABELS, SPOKEN, TEXTS, Linked, Sentence, Span, pairs_of, sentences
from headroles.data.speech import recordings, with_transcripts

Form = Literal["conllu", "text", "parallel", "labelled", "pairs"]
Column = str | int
Texts = Column | tuple[Column, Column]
T = TypeVar("T")
U = TypeVar("U")
WORD = re.compile(r"[^ \t]+")  # as programs that align words read them
LINK = re.compile(r"(\d+)-(\d+)")  # of Pharaoh, fast_align and awesome-align
FIRST = 1000  # rows from which the columns of a table are recognised


def entries(
    source: Path,
    target: Path | None,
    form: Form | None,
    text: Texts | None = None,
    label: Column | None = None,
    links: Path | None = None,
) -> Iterator[Sentence | None]:
    """Read sentences lazily, with the arguments of `headroles.read`; None stands for a blank text or side."""
    if sounds := recordings(source):
        if given := [value for value in (target, form, text, label, links) if value is not None]:
            raise ValueError(f"a folder of sounds must be given by itself, got {given[0]}; try a .jsonl with its texts")
        return sentences(with_transcripts(sounds), SPOKEN[0], str(source))
    if links is not None:
        return _linked(entries(source, target, form, text, label), source, links)
    if target is not None:
        return _pairs(source, target, parsed=form == "conllu")
    by_suffix = suffix(source) if form is None else ""
    if by_suffix == ".jsonl" or (form in ("pairs", "labelled") and suffix(source) == ".jsonl"):
        return _json(source, form, text, label)
    if form is None and (text is not None or label is not None):
        form, by_suffix = "labelled", ""
    if form == "conllu" or by_suffix == ".conllu":
        return trees(lines(source), str(source))
    if form in ("parallel", "labelled", "pairs") or by_suffix == ".tsv":
        return _table(source, form, text, label)
    if by_suffix in FORMATS:
        check_file(source)
        raise ValueError(
            f"file must be .txt, .conllu, .tsv or .jsonl, got {source}; try its folder, which datasets reads, or "
            f"form='text' for one sentence a line"
        )
    return (Sentence(line.strip()) for line in lines(source) if line.strip())


def rows(path: Path) -> Iterator[list[str]]:
    """Read the rows of a tab-separated file; quotation marks are letters."""
    width = 0
    for number, line in enumerate(lines(path), 1):
        if line.strip():
            row = line.split("\t")
            width = width or len(row)
            if len(row) != width:
                raise ValueError(
                    f"{path}, line {number}: found {columns(row)}; expected {width}, as many as in the first line"
                )
            yield row


def suffix(path: Path) -> str:
    """Return the suffix of a file's name without `.gz`: `.conllu`, `.tsv` ..."""
    return Path(path.name.removesuffix(".gz")).suffix


def stem(*paths: Path) -> str:
    """Return the name of a corpus from the names of its files."""
    return "+".join(re.sub(r"(\.conllu|\.tsv|\.txt)?(\.gz)?$", "", path.name) for path in paths)


def _json(path: Path, form: Form | None, text: Texts | None, label: Column | None) -> Iterator[Sentence | None]:
    """Return the sentences of objects, which have the fields of the first ones."""
    rest = _objects(path)
    first = [*islice(rest, FIRST)]
    if form == "pairs":
        return pairs_of(chain(first, rest), str(path))
    names = dict.fromkeys(name for row in first for name in row)
    return sentences(chain(first, rest), names, str(path), *named_columns(text, label))


def named_columns(text: Texts | None, label: Column | None) -> tuple[tuple[str, ...], str | None]:
    """Return the names of the columns that a user has named."""
    texts = () if text is None else text if isinstance(text, tuple) else (text,)
    return tuple(map(str, texts)), None if label is None else str(label)


def _objects(path: Path) -> Iterator[dict[str, object]]:
    for number, line in enumerate(lines(path), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number} must be an object, got {line[:40]!r}")
            yield row


def _pairs(source: Path, target: Path, *, parsed: bool) -> Iterator[Sentence | None]:
    """Yield the sentence pairs of two files, None for pairs with a blank side."""
    for _, first, second in _aligned(_side(source, parsed=parsed), _side(target), source, target):
        yield replace(first, target=second) if first.text and second.text else None


def _linked(pairs: Iterator[Sentence | None], source: Path, path: Path) -> Iterator[Sentence | None]:
    """Yield sentence pairs with word links, from a file with a line for each pair."""
    for number, pair, line in _aligned(pairs, lines(path), source, path):
        try:
            yield None if pair is None else _with_links(pair, line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error


def _aligned(first: Iterator[T], second: Iterator[U], source: Path, other: Path) -> Iterator[tuple[int, T, U]]:
    """Number from 1 and pair the entries of two files; raise ValueError if one file has more."""
    numbered: Iterator[tuple[int, tuple[Any, Any]]] = enumerate(zip_longest(first, second, fillvalue=...), 1)
    for number, (left, right) in numbered:
        if left is ... or right is ...:
            sizes = [number - 1, number + sum(1 for _ in numbered)][:: 1 if left is ... else -1]
            raise ValueError(
                f"{source} has {sizes[0]} sentences, {other} has {sizes[1]} lines or sentences; the n-th of one must "
                f"belong to the n-th of the other, blank ones included"
            )
        yield number, left, right


def _with_links(pair: Sentence, line: str) -> Linked:
    """Return a pair with the word links of a line; without a tree, words are separated by spaces."""
    links = {part: LINK.fullmatch(part) for part in line.split()}
    if wrong := [part for part, link in links.items() if link is None]:
        raise ValueError(f"word links must be of the form SOURCE-TARGET, such as 0-0 1-2, got {wrong[0]!r}")
    sides = {"spans": _words(pair), "target": pair.target and replace(pair.target, spans=_words(pair.target))}
    given = {field.name: getattr(pair, field.name) for field in fields(Sentence)}
    return Linked(**given | sides, links=tuple((int(link[1]), int(link[2])) for link in links.values() if link))


def _words(sentence: Sentence) -> tuple[Span | None, ...]:
    return sentence.spans or tuple(match.span() for match in WORD.finditer(sentence.text))


def _side(path: Path, *, parsed: bool = False) -> Iterator[Sentence]:
    if parsed or suffix(path) == ".conllu":
        return trees(lines(path), str(path))
    return (Sentence(line.strip()) for line in lines(path))


def _table(path: Path, form: Form | None, text: Texts | None, label: Column | None) -> Iterator[Sentence | None]:
    """Return the sentences of a table, None for rows with a blank text."""
    rest = rows(path)
    names = next(rest)
    if form == "pairs" or (form is None and {*FIELDS} <= {*names}):
        return pairs_of((dict(zip(names, row, strict=True)) for row in rest), str(path))
    if form is None and any(sorted(known) == sorted(names) for known in (*TEXTS, ("text",))):
        return sentences((dict(zip(names, row, strict=True)) for row in rest), names, str(path))
    if form == "labelled" or (form is None and (len(names) != 2 or set(names) & set(LABELS))):
        return _labelled(path, [names, *islice(rest, FIRST)], rest, text, label)
    if len(names) != 2:
        raise ValueError(f"{path} has {columns(names)}; parallel text is two tab-separated columns, or two files")
    pairs = ((text.strip(), target.strip()) for text, target in chain([names], rest))
    return (Sentence(text, target=Sentence(target)) if text and target else None for text, target in pairs)


def _labelled(
    path: Path, first: list[list[str]], rest: Iterator[list[str]], text: Texts | None, label: Column | None
) -> Iterator[Sentence | None]:
    """Return the sentences of a labelled table, recognising its columns by the first rows."""
    names: list[str] = first[0]
    texts: tuple[Column | None, ...] = text if isinstance(text, tuple) else (text,)
    known = {*LABELS, *chain(*TEXTS)}
    headed = any(isinstance(column, str) for column in (*texts, label)) or not known.isdisjoint(names)
    if label is None:
        label = next((name for name in LABELS if name in names), None)
    if label is None and not headed and len(names) == 4 and {row[1] for row in first} <= {"0", "1"}:
        label = 1  # CoLA: source, label, the author's mark, sentence; no header
    at = _column(path, names, label, "label")
    if text is None and headed:
        texts = next((known for known in TEXTS if set(known) <= set(names)), (None,))
    elif text is None:
        texts = (max(set(range(len(names))) - {at}, default=None),)
    places = [_column(path, names, column, "text") for column in texts]
    cells = (([row[column].strip() for column in places], row[at].strip()) for row in chain(first[headed:], rest))
    return (Sentence(line[0], label=mark, second=(*line, None)[1]) if all(line) else None for line, mark in cells)


def _column(path: Path, names: list[str], column: Column | None, role: str) -> int:
    if isinstance(column, str) and column in names:
        return names.index(column)
    if isinstance(column, int) and 0 <= column < len(names):
        return column
    known = "sentence" if role == "text" else role
    fault = f"no known {role} column" if column is None else f"no column {column!r}"
    raise ValueError(
        f"{path} has {fault}; it has {columns(names)}; rename the column to {known}, or give {role}= one of them or an "
        f"index from 0"
    )
