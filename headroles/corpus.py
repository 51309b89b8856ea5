"""Files of text and trees -> sentences: CoNLL-U, plain lines, parallel lines and labelled tables (no torch)."""

from __future__ import annotations

import gzip
import logging
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Literal, get_args

import pandas as pd

from headroles.conllu import block, columns, split, trees
from headroles.heads import replacing
from headroles.hub import LABELS, TEXTS, gather, named
from headroles.text import RELATIONS, Corpus, Sentence

Form = Literal["conllu", "text", "parallel", "labelled"]
Column = str | int

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
    """Read a corpus from one file, or from two whose sentences correspond; `.gz` is unpacked, only "\\n" ends a line.

    A name such as `wmt14/de-en:test`, or a folder of parquet, JSON or CSV, is read by Hugging Face's `datasets`
    (`headroles.hub`).

    Where `form` is None, `.conllu` is CoNLL-U (universaldependencies.org/format), `.tsv` is parallel if it has two
    columns and no label, otherwise labelled, the rest one sentence a line; with a `target` each file by its own suffix.
    `text` (a column, or the two of a sentence pair) and `label` are names in a header or indices from 0; those of GLUE
    are known. Without a header the text is by default the last column that is not the label. `limit` keeps the first
    sentences. Blank lines, and entries with a blank text or side, are left out; the number of the latter is logged.
    Raises FileNotFoundError or ValueError with the path, the line, what was found and what to do.
    """
    given, source, target = str(source), Path(source), None if target is None else Path(target)
    asked = text is not None or label is not None
    if form not in (None, *get_args(Form)):
        raise ValueError(
            f"unknown form {form!r}; known: {', '.join(get_args(Form))}, or None to decide by the file's name"
        )
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be None or at least 1 sentence; got {limit}")
    if asked and (target is not None or form not in (None, "labelled")):
        other = f"a target, {target}" if target is not None else f"form={form!r}"
        raise ValueError(f"text= and label= name columns of one labelled table; they were given together with {other}")
    if target is not None and form in ("text", "labelled"):
        raise ValueError(f"form={form!r} is one file, but a target was given: {target}; leave out form= or the target")
    if target is None and form is None and named(given):
        return Corpus(name or given, tuple(_gathered(given, text, label, limit)))
    if target is not None:
        sentences = _parallel(source, target, parsed=form == "conllu")
    elif form == "conllu" or (form is None and not asked and suffix(source) == ".conllu"):
        sentences = list(trees(_lines(source), str(source)))
    elif form == "text" or (form is None and not asked and suffix(source) != ".tsv"):
        sentences = [Sentence(line.strip()) for line in _lines(source) if line.strip()]
    else:
        sentences = _table(source, form or ("labelled" if asked else None), text, label)
    both = stem(source) if target is None else f"{stem(source)}+{stem(target)}"
    return Corpus(name or both, tuple(sentences[:limit]))


def write(corpus: Corpus, path: str | Path) -> Path:
    """Write texts and trees as CoNLL-U (gzipped if the name ends in `.gz`), so that `read` gives them back.

    Targets, labels and second texts are not written, and no forms but those in the text: a word without a span is `_`
    in a multiword token. The file appears whole or not at all. Raises ValueError for a sentence that would not come
    back as it is, OSError if the file cannot be written.
    """
    path = Path(path)
    if not corpus.sentences:
        raise ValueError(f"corpus {corpus.name!r} has no sentences; there is nothing to write to {path}")
    content = "".join(block(number, sentence) for number, sentence in enumerate(corpus, 1)).encode()
    with replacing(path) as draft:
        draft.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def offsets(corpus: Corpus, relations: Sequence[str] = RELATIONS, *, subtypes: bool = False) -> pd.DataFrame:
    """How far heads are from their dependents: the histogram of Voita et al. 2019, Figure 3, on the source side.

    One row per relation and offset (position of the head minus position of the dependent, in words): `count`, and
    `share` of the relation's occurrences. `subtypes` counts `nsubj:pass` as `nsubj`. Raises ValueError without trees,
    or if the corpus has none of the relations.
    """
    if not any(sentence.has_tree for sentence in corpus):
        raise ValueError(
            f"corpus {corpus.name!r} has no trees; read a CoNLL-U file, or parse the text: headroles.parse"
        )
    counts: Counter[tuple[str, int]] = Counter()
    for sentence in corpus:
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if head >= 0:
                counts[base(relation) if subtypes else relation, head - word] += 1
    known = sorted({relation for relation, _ in counts})
    if not set(known) & set(relations):
        raise ValueError(f"none of {', '.join(relations)} in corpus {corpus.name!r}; its relations: {', '.join(known)}")
    rows = [(one, offset, counts[one, offset]) for one in relations for rel, offset in sorted(counts) if rel == one]
    frame = pd.DataFrame(rows, columns=["relation", "offset", "count"])
    return frame.assign(share=frame["count"] / frame.groupby("relation")["count"].transform("sum"))


def base(relation: str) -> str:
    """A Universal Dependencies relation without its subtype: `nsubj:pass` -> `nsubj`."""
    return relation.partition(":")[0]


def suffix(path: Path) -> str:
    """What a file is by its name: `.conllu`, `.tsv` ...; `.gz` does not count."""
    return Path(path.name.removesuffix(".gz")).suffix


def stem(path: Path) -> str:
    """The name of a corpus from that of its file."""
    return re.sub(r"(\.conllu|\.tsv|\.txt)?(\.gz)?$", "", path.name)


def _gathered(
    name: str, text: Column | tuple[Column, Column] | None, label: Column | None, limit: int | None
) -> list[Sentence]:
    """The sentences of a dataset, of which blank ones are left out; no more are fetched than asked for."""
    columns = () if text is None else text if isinstance(text, tuple) else (text,)
    found = list(islice(gather(name, tuple(map(str, columns)), None if label is None else str(label)), limit))
    kept = [one for one in found if one.text and (one.target is None or one.target.text) and one.second != ""]
    return _counted(kept, len(found), name)


def _parallel(source: Path, target: Path, *, parsed: bool) -> list[Sentence]:
    left, right = _side(source, parsed), _side(target, False)
    if len(left) != len(right):
        raise ValueError(
            f"{source} has {len(left)} sentences, {target} has {len(right)}; "
            "parallel files need the same number, the n-th of one translating the n-th of the other"
        )
    pairs = [replace(one, target=other) for one, other in zip(left, right, strict=True) if one.text and other.text]
    return _counted(pairs, len(left), f"{source}, {target}")


def _side(path: Path, parsed: bool) -> list[Sentence]:
    if parsed or suffix(path) == ".conllu":
        return list(trees(_lines(path), str(path)))
    return [Sentence(line.strip()) for line in _lines(path)]


def _counted(kept: list[Sentence], size: int, where: str) -> list[Sentence]:
    if not kept:
        raise ValueError(f"{where}: all {size} entries have a blank text; expected at least one sentence")
    if len(kept) < size:
        log.warning("%s: left out %d of %d entries, which have a blank text", where, size - len(kept), size)
    return kept


def _table(
    path: Path, form: Form | None, text: Column | tuple[Column, Column] | None, label: Column | None
) -> list[Sentence]:
    rows = _rows(path)
    names = rows[0]
    if form == "labelled" or (form is None and (len(names) != 2 or set(names) & set(LABELS))):
        return _labelled(path, rows, text, label)
    if len(names) != 2:
        raise ValueError(f"{path} has {columns(names)}; parallel text is two tab-separated columns, or two files")
    pairs = [(one.strip(), other.strip()) for one, other in rows]
    return _counted([Sentence(one, target=Sentence(to)) for one, to in pairs if one and to], len(pairs), str(path))


def _labelled(
    path: Path, rows: list[list[str]], text: Column | tuple[Column, Column] | None, label: Column | None
) -> list[Sentence]:
    names: list[str] = rows[0]
    texts: tuple[Column | None, ...] = text if isinstance(text, tuple) else (text,)
    known = {*LABELS, *chain(*TEXTS)}
    headed = any(isinstance(column, str) for column in (*texts, label)) or not known.isdisjoint(names)
    if label is None:
        label = next((one for one in LABELS if one in names), None)
    if label is None and not headed and len(names) == 4 and {row[1] for row in rows} <= {"0", "1"}:
        label = 1  # CoLA: source, label, the author's mark, sentence; no header
    at = _column(path, names, label, "label")
    if text is None and headed:
        texts = next((one for one in TEXTS if set(one) <= set(names)), (None,))
    elif text is None:
        texts = (max(set(range(len(names))) - {at}, default=None),)
    places = [_column(path, names, column, "text") for column in texts]
    found = [([row[column].strip() for column in places], row[at].strip()) for row in rows[headed:]]
    kept = [Sentence(cells[0], label=mark, second=(*cells, None)[1]) for cells, mark in found if all(cells)]
    return _counted(kept, len(found), str(path))


def _column(path: Path, names: list[str], column: Column | None, role: str) -> int:
    if isinstance(column, str) and column in names:
        return names.index(column)
    if isinstance(column, int) and 0 <= column < len(names):
        return column
    fault = f"no {role} column that is known by its name" if column is None else f"no column {column!r}"
    raise ValueError(f"{path} has {fault}; it has {columns(names)}; give {role}= one of them, or an index from 0")


def _rows(path: Path) -> list[list[str]]:
    """The rows of a tab-separated file without quoting: a quotation mark is a character like any other."""
    numbered = [(number, line.split("\t")) for number, line in enumerate(_lines(path), 1) if line.strip()]
    width = len(numbered[0][1])
    for number, row in numbered:
        if len(row) != width:
            raise ValueError(
                f"{path}, line {number}: found {columns(row)}; expected {width}, as many as in the first line"
            )
    return [row for _, row in numbered]


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}" + (": it is a folder; name a file in it" if path.is_dir() else ""))
    raw = path.read_bytes()
    if path.suffix == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is not gzip, or not all of it, though its name ends in .gz: {error}") from error
    try:
        lines = split(raw.decode())
    except UnicodeDecodeError as error:
        hint = "it is gzip: end its name in .gz" if raw[:2] == b"\x1f\x8b" else "convert it: iconv -f latin1 -t utf-8"
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: byte {raw[error.start]:#04x} is not UTF-8; {hint}") from error
    if not any(map(str.strip, lines)):
        raise ValueError(f"{path} is empty; expected at least one sentence")
    return lines
