"""Files to sentences: CoNLL-U, plain lines, parallel lines and labelled tables (no torch)."""

from __future__ import annotations

import gzip
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd

from headroles.data.conllu import block, columns, trees
from headroles.data.corpus import RELATIONS, Corpus, Sentence
from headroles.data.hf_datasets import LABELS, TEXTS, gather, named
from headroles.data.lines import lines
from headroles.tables.files import replacing

Form = Literal["conllu", "text", "parallel", "labelled"]
Column = str | int
FIRST = 1000  # rows from which the columns of a table are recognised
END: Any = object()

log = logging.getLogger(__name__)


def read(
    source: str | Path,
    target: str | Path | None = None,
    *,
    form: Form | None = None,
    text: Column | tuple[Column, Column] | None = None,
    label: Column | None = None,
    name: str | None = None,
    limit: int | None = None,
) -> Corpus:
    r"""Read a corpus from one file, or from two files with corresponding sentences.

    Without `form`, `.conllu` is CoNLL-U (universaldependencies.org/format). `.tsv` is parallel if it has two columns
    and no label, otherwise labelled. Any other file is one sentence a line. With a `target`, each file is read by its
    own suffix. Blank lines, and entries with a blank text or side, are left out; the number of the latter is logged.

    Args:
        source: The file; `.gz` is unpacked. A name such as `wmt14/de-en:test`, or a folder of parquet, JSON or CSV, is
            read with Hugging Face's `datasets`.
        target: File of the translations.
        form: "conllu", "text", "parallel" or "labelled"; None: decided by the file's name.
        text: Text column of a labelled table, or the two of a sentence pair: names in a header, or indices from 0.
            Those of GLUE are known. Without a header it is by default the last column that is not the label.
        label: Label column, likewise.
        name: Name of the corpus; by default from the file's name.
        limit: Number of sentences to read from the beginning; the rest of the file is left unread.

    Returns:
        The corpus.

    Raises:
        ValueError: If the arguments contradict each other or the file is malformed; with the path, the line, what was
            found and what to do.

    A file that does not exist raises FileNotFoundError. Only "\n" ends a line, which may have 1 MiB.
    """
    place, source, target = str(source), Path(source), None if target is None else Path(target)
    columns_named = text is not None or label is not None
    if form not in (None, *get_args(Form)):
        raise ValueError(
            f"unknown form {form!r}; known: {', '.join(get_args(Form))}, or None to decide by the file's name"
        )
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be None or at least 1 sentence; got {limit}")
    if columns_named and (target is not None or form not in (None, "labelled")):
        other = f"a target, {target}" if target is not None else f"form={form!r}"
        raise ValueError(
            f"text= and label= name columns of one labelled table: got {other} too; leave out one of the two"
        )
    if target is not None and form in ("text", "labelled"):
        raise ValueError(f"form={form!r} is one file: got a target too, {target}; leave out form= or the target")
    if target is None and form is None and named(place):
        return Corpus(name or place, tuple(_gathered(place, text, label, limit)))
    if target is not None:
        sentences = _counted(_parallel(source, target, parsed=form == "conllu"), f"{source}, {target}", limit)
    elif form == "conllu" or (form is None and not columns_named and suffix(source) == ".conllu"):
        sentences = list(islice(trees(_lines(source), str(source)), limit))
    elif form == "text" or (form is None and not columns_named and suffix(source) != ".tsv"):
        sentences = list(islice((Sentence(line.strip()) for line in _lines(source) if line.strip()), limit))
    else:
        entries = _table(source, form or ("labelled" if columns_named else None), text, label)
        sentences = _counted(entries, str(source), limit)
    stems = stem(source) if target is None else f"{stem(source)}+{stem(target)}"
    return Corpus(name or stems, tuple(sentences))


def write(corpus: Corpus, path: str | Path) -> Path:
    """Write texts and trees as CoNLL-U, so that `read` gives them back.

    The file is replaced in one step. Targets, labels and second texts are not written, and no word forms but those in
    the text: a word without a span is `_` in a multiword token.

    Args:
        corpus: Sentences with trees.
        path: The file; gzipped if the name ends in `.gz`.

    Returns:
        The path.

    Raises:
        ValueError: If the corpus is empty, or a sentence would not be read back the same.

    A file that cannot be written raises OSError.
    """
    path = Path(path)
    if not corpus.sentences:
        raise ValueError(f"corpus {corpus.name!r} has no sentences; there is nothing to write to {path}")
    content = "".join(block(number, sentence) for number, sentence in enumerate(corpus, 1)).encode()
    with replacing(path) as draft:
        draft.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def offsets(corpus: Corpus, relations: Sequence[str] = RELATIONS, *, subtypes: bool = False) -> pd.DataFrame:
    """Count how far heads are from their dependents, on the source side.

    The histogram is that of Voita et al. 2019, Figure 3.

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
        raise ValueError(f"none of {', '.join(relations)} in corpus {corpus.name!r}; its relations: {', '.join(known)}")
    rows = [(name, offset, counts[name, offset]) for name in relations for rel, offset in sorted(counts) if rel == name]
    frame = pd.DataFrame(rows, columns=["relation", "offset", "count"])
    return frame.assign(share=frame["count"] / frame.groupby("relation")["count"].transform("sum"))


def base(relation: str) -> str:
    """Return a Universal Dependencies relation without its subtype: `nsubj:pass` -> `nsubj`."""
    return relation.partition(":")[0]


def suffix(path: Path) -> str:
    """Return the suffix of a file's name without `.gz`: `.conllu`, `.tsv` ..."""
    return Path(path.name.removesuffix(".gz")).suffix


def stem(path: Path) -> str:
    """Return the name of a corpus from the name of its file."""
    return re.sub(r"(\.conllu|\.tsv|\.txt)?(\.gz)?$", "", path.name)


def _gathered(
    name: str, text: Column | tuple[Column, Column] | None, label: Column | None, limit: int | None
) -> list[Sentence]:
    """Sentences of a dataset without blank ones; no more are fetched than needed."""
    columns = () if text is None else text if isinstance(text, tuple) else (text,)
    sentences = islice(gather(name, tuple(map(str, columns)), None if label is None else str(label)), limit)
    return _counted((sentence if _complete(sentence) else None for sentence in sentences), name, limit)


def _complete(sentence: Sentence) -> bool:
    return bool(sentence.text and (sentence.target is None or sentence.target.text) and sentence.second != "")


def _parallel(source: Path, target: Path, *, parsed: bool) -> Iterator[Sentence | None]:
    """Sentence pairs of two files, None for those with a blank side."""
    for first, second in zip_longest(_side(source, parsed), _side(target, False)):
        if first is None or second is None:
            sizes = [sum(1 for _ in side) for side in (_side(source, parsed), _side(target, False))]
            raise ValueError(
                f"{source} has {sizes[0]} sentences, {target} has {sizes[1]}; "
                "parallel files need the same number, the n-th of one translating the n-th of the other"
            )
        yield replace(first, target=second) if first.text and second.text else None


def _side(path: Path, parsed: bool) -> Iterator[Sentence]:
    if parsed or suffix(path) == ".conllu":
        return trees(_lines(path), str(path))
    return (Sentence(line.strip()) for line in _lines(path))


def _counted(entries: Iterator[Sentence | None], where: str, limit: int | None) -> list[Sentence]:
    """First entries that are not None, up to the limit; the skipped ones are counted in the log."""
    kept: list[Sentence] = []
    size = 0
    while len(kept) != limit and (entry := next(entries, END)) is not END:
        size += 1
        kept += [] if entry is None else [entry]
    if not kept:
        raise ValueError(f"{where}: all {size} entries have a blank text; expected at least one sentence")
    if len(kept) < size:
        log.warning("%s: left out %d of %d entries, which have a blank text", where, size - len(kept), size)
    return kept


def _table(
    path: Path, form: Form | None, text: Column | tuple[Column, Column] | None, label: Column | None
) -> Iterator[Sentence | None]:
    """Sentences of a table, None for rows with a blank text."""
    rows = _rows(path)
    names = next(rows)
    if form == "labelled" or (form is None and (len(names) != 2 or set(names) & set(LABELS))):
        return _labelled(path, [names, *islice(rows, FIRST)], rows, text, label)
    if len(names) != 2:
        raise ValueError(f"{path} has {columns(names)}; parallel text is two tab-separated columns, or two files")
    pairs = ((text.strip(), target.strip()) for text, target in chain([names], rows))
    return (Sentence(text, target=Sentence(target)) if text and target else None for text, target in pairs)


def _labelled(
    path: Path,
    first: list[list[str]],
    rest: Iterator[list[str]],
    text: Column | tuple[Column, Column] | None,
    label: Column | None,
) -> Iterator[Sentence | None]:
    """Sentences of a labelled table, its columns recognised by the first rows."""
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
    rows = chain(first[headed:], rest)
    entries = (([row[column].strip() for column in places], row[at].strip()) for row in rows)
    return (Sentence(cells[0], label=mark, second=(*cells, None)[1]) if all(cells) else None for cells, mark in entries)


def _column(path: Path, names: list[str], column: Column | None, role: str) -> int:
    if isinstance(column, str) and column in names:
        return names.index(column)
    if isinstance(column, int) and 0 <= column < len(names):
        return column
    fault = f"no known {role} column" if column is None else f"no column {column!r}"
    raise ValueError(f"{path} has {fault}; it has {columns(names)}; give {role}= one of them, or an index from 0")


def _rows(path: Path) -> Iterator[list[str]]:
    """Rows of a tab-separated file without quoting: a quotation mark is an ordinary character."""
    width = 0
    for number, line in enumerate(_lines(path), 1):
        row = line.split("\t")
        width = width or (len(row) if line.strip() else 0)
        if line.strip() and len(row) != width:
            raise ValueError(
                f"{path}, line {number}: found {columns(row)}; expected {width}, as many as in the first line"
            )
        if line.strip():
            yield row


def _lines(path: Path) -> Iterator[str]:
    """Lines of a file; raises for a missing or an empty file."""
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}" + (": it is a folder; name a file in it" if path.is_dir() else ""))
    empty = True
    for line in lines(path):
        empty = empty and not line.strip()
        yield line
    if empty:
        raise ValueError(f"{path} is empty; expected at least one sentence")
