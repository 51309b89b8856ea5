"""Rows with columns as sentences: Hugging Face `datasets` from the Hub or a folder, minimal pairs (no torch)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from headroles.data.corpus import Corpus, Sentence, Tokens, pair

if TYPE_CHECKING:
    from datasets import Dataset

LABELS = ("label", "gold_label", "Quality", "is_duplicate")  # the label columns of GLUE
TEXTS: list[tuple[str, ...]] = [("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2")]
TEXTS += [("#1 String", "#2 String"), ("question", "sentence"), ("sentence",)]  # QNLI has a question and a sentence
FIELDS = ("sentence_good", "sentence_bad")  # of minimal pairs, in BLiMP
QUESTION = ("text", "answer")  # fields of a long text that ends with a question
TREE = ("spans", "heads", "relations")  # columns of a tree, written by `to_dataset`
SPLITS = ("validation", "validation_matched", "test", "train")  # the first that exists is the default
FORMATS = (".parquet", ".arrow", ".jsonl", ".json", ".csv")

log = logging.getLogger(__name__)


def named(source: str | Path) -> bool:
    """Return whether `source` is a dataset: a folder in a known format, or a name such as `wmt14/de-en:test`."""
    place, _ = _split(source)
    if Path(source).is_file():
        return False
    if Path(place).is_dir():
        return any(path.suffix in FORMATS for path in Path(place).rglob("*"))
    known = re.fullmatch(r"[\w-][\w.-]*(/[\w-]+){1,2}", place) is not None
    return known and not Path(place.partition("/")[0]).exists()


def gather(source: str | Path, columns: tuple[str, ...] = (), label: str | None = None) -> Iterable[Sentence]:
    """Return the sentences of a dataset of the Hub or in a folder, fetched on iteration.

    The split follows a colon; by default it is the first of validation, test, train. Text is in `columns`, one or two;
    by default in the translations, ordered as the languages in the name (`de-en`), or in the text columns of GLUE. The
    columns of BLiMP are minimal pairs.
    """
    rows = _rows(*_split(source))
    return sentences(rows, list(rows.features or next(iter(rows))), source, columns, label)


def sentences(
    rows: Iterable[Mapping[str, Any]],
    names: Sequence[str],
    source: str | Path,
    columns: tuple[str, ...] = (),
    label: str | None = None,
) -> Iterable[Sentence]:
    """Return the sentences of rows with columns of these names, as `gather` does."""
    rows = map(_with_none, rows)
    if "translation" in names and not columns:
        return _translations(rows, str(source))
    if {*FIELDS} <= {*names} and not columns:
        filled = ({name: "" if value is None else value for name, value in row.items()} for row in rows)
        return (sentence for sentence in pairs_of(filled, str(source)) if sentence is not None)
    texts = columns or next((known for known in (*TEXTS, ("text",)) if {*known} <= {*names}), ())
    label = label or next((name for name in LABELS if name in names), None)
    if not texts or not {*texts, *([label] if label else [])} <= {*names}:
        fault = f"no column {', '.join(columns)}" if columns else "no known text column"
        raise ValueError(f"dataset {source} has {fault}: got {', '.join(names)}; give text= and label= from these")
    if columns:
        return (_sentence(row, texts, label) for row in rows)
    return (_with_tree(_sentence(row, texts, label), row) for row in rows)


def pairs_of(rows: Iterable[Mapping[str, object]], where: str) -> Iterator[Sentence | None]:
    """Yield both sentences of each row with `sentence_good`, `sentence_bad` (and `source`); None if one is blank."""
    for number, row in enumerate(rows, 1):
        names = (*FIELDS, *(["source"] if "source" in row else []))
        texts = _texts(row, names, f"{where}, pair {number}")
        yield from pair(*texts) if all(texts) else [None]


def answered(rows: Iterable[Mapping[str, object]], where: str) -> Iterator[Sentence | None]:
    """Yield the text of each row with its answer as target, from `text` and `answer`; None if one is blank."""
    for number, row in enumerate(rows, 1):
        text, answer = _texts(row, QUESTION, f"{where}, text {number}")
        yield Sentence(text, target=Sentence(answer)) if text and answer else None


def _texts(row: Mapping[str, object], names: Sequence[str], where: str) -> list[str]:
    """Return the texts of a row without spaces around them."""
    if wrong := [name for name in names if not isinstance(row.get(name), str)]:
        raise ValueError(f"{where} must have texts in {' and '.join(names)}, got {wrong[0]}={row.get(wrong[0])!r}")
    return [str(row[name]).strip() for name in names]


def to_dataset(corpus: Corpus) -> Dataset:
    """Convert a corpus to Hugging Face's `datasets`, for the Hub or a parquet file that `hr.read` reads again.

    Columns are `text`, or with translations `translation`, or with second texts `sentence1` and `sentence2`. If any
    sentence has them, there are also `label`, and `spans`, `heads` and `relations` of the trees of the first texts.

    Args:
        corpus: Sentences with text.

    Returns:
        The data set. It has `to_parquet`, `push_to_hub` and the like.

    Raises:
        ValueError: If only some sentences have translations or second texts, or any is given as token ids.

    Example:
        >>> hr.to_dataset(hr.Corpus.of(["Some text."])).to_parquet("mine/train.parquet")
        >>> corpus = hr.read("mine")
    """
    counts = {name: sum(getattr(item, name) is not None for item in corpus) for name in ("target", "second")}
    if some := [name for name, count in counts.items() if count not in (0, len(corpus))]:
        part = f"{counts[some[0]]} of {len(corpus)}"
        raise ValueError(f"all or no sentences of corpus {corpus.name!r} must have a {some[0]}, got {part}")
    if any(isinstance(item, Tokens) for item in corpus):
        raise ValueError(f"sentences of a data set must be texts, got token ids in corpus {corpus.name!r}")
    labelled, parsed = (any(getattr(item, name) for item in corpus) for name in ("label", "relations"))
    return _library().Dataset.from_list([_row(sentence, labelled=labelled, parsed=parsed) for sentence in corpus])


def _row(sentence: Sentence, *, labelled: bool, parsed: bool) -> dict[str, object]:
    """Return the columns of a sentence, as `gather` reads them."""
    if sentence.target is not None:
        row: dict[str, object] = {"translation": {"source": sentence.text, "target": sentence.target.text}}
    elif sentence.second is not None:
        row = {"sentence1": sentence.text, "sentence2": sentence.second}
    else:
        row = {"text": sentence.text}
    if labelled:
        row["label"] = sentence.label
    if parsed:
        spans = [None if span is None else list(span) for span in sentence.spans]
        row |= {"spans": spans, "heads": list(sentence.heads), "relations": list(sentence.relations)}
    return row


def _split(source: str | Path) -> tuple[str, str | None]:
    place, colon, split = str(source).rpartition(":")
    return (place, split) if colon and split.isidentifier() else (str(source), None)


def _rows(place: str, split: str | None) -> Any:
    """Stream the rows of a split."""
    datasets = _library(f"{place} is not a file; ")
    first, _, config = place.rpartition("/")
    arguments = [(place,)] if Path(place).is_dir() or not first else [(place,), (first, config)]
    faults = []
    for names in arguments:
        try:
            splits = datasets.load_dataset(*names, streaming=True)
        except (OSError, ValueError) as error:
            faults.append(str(error).partition("\n")[0])
            continue
        chosen = split or next((name for name in SPLITS if name in splits), next(iter(splits)))
        if chosen not in splits:
            raise ValueError(f"dataset {place} has no split {chosen!r}; it has {', '.join(splits)}")
        log.info("%s: split %s", place, chosen)
        return splits[chosen]
    raise ValueError(f"no dataset {place!r}, and no file of that name: {'; '.join(faults)}")


def _library(what: str = "") -> Any:
    """Import the package `datasets`."""
    if find_spec("datasets") is None:
        raise ModuleNotFoundError(f"{what}a data set needs the package datasets, in a checkout: pip install '.[data]'")
    import datasets

    return datasets


def _with_none(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with None for missing values, which data frames have as NaN, NaT or NA."""
    return {name: None if pd.api.types.is_scalar(value) and pd.isna(value) else value for name, value in row.items()}


def _translations(rows: Iterable[Mapping[str, Any]], source: str) -> Iterator[Sentence]:
    """Sentence pairs in the order of the languages in the name, or in the first row."""
    languages: tuple[str, ...] = ()
    pairs = re.findall(r"\b([a-z]{2,3})-([a-z]{2,3})\b", source)
    for row in rows:
        translation = row["translation"]
        languages = languages or next((pair for pair in pairs if {*pair} == {*translation}), tuple(translation))
        text, target = (translation[language] or "" for language in languages)
        yield _with_tree(Sentence(text.strip(), target=Sentence(target.strip())), row)


def _with_tree(sentence: Sentence, row: Mapping[str, Any]) -> Sentence:
    """Return a sentence with the tree that `to_dataset` wrote into its row, if any."""
    cells = [row.get(name) for name in TREE]
    if any(cell is None or not len(cell) for cell in cells):  # arrays, if a data frame was read from a file
        return sentence
    spans = tuple(None if span is None else (int(span[0]), int(span[1])) for span in row["spans"])
    heads, relations = tuple(map(int, row["heads"])), tuple(map(str, row["relations"]))
    return replace(sentence, spans=spans, heads=heads, relations=relations)


def _sentence(row: Mapping[str, object], texts: tuple[str, ...], label: str | None) -> Sentence:
    cells = ["" if row[name] is None else str(row[name]).strip() for name in texts]
    mark = None if label is None else row[label]
    if isinstance(mark, float) and mark.is_integer():
        mark = int(mark)  # a column with missing values has floats
    return Sentence(cells[0], label=None if mark is None else str(mark), second=(*cells, None)[1])
