"""Corpora in the formats of Hugging Face `datasets`: by name from the Hub, or from a local folder (no torch)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headroles.data.corpus import Sentence

LABELS = ("label", "gold_label", "Quality", "is_duplicate")  # the label columns of GLUE
TEXTS: list[tuple[str, ...]] = [("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2")]
TEXTS += [("#1 String", "#2 String"), ("question", "sentence"), ("sentence",)]  # QNLI has both of the last but one
SPLITS = ("validation", "validation_matched", "test", "train")  # which is taken where none is named
FORMATS = (".parquet", ".arrow", ".jsonl", ".json", ".csv")

log = logging.getLogger(__name__)


def named(source: str | Path) -> bool:
    """Whether this is a dataset and no file: a folder of its formats, or a name such as `wmt14/de-en:test`."""
    place, _ = _split(source)
    if Path(source).is_file():
        return False
    if Path(place).is_dir():
        return any(path.suffix in FORMATS for path in Path(place).rglob("*"))
    known = re.fullmatch(r"[\w-][\w.-]*(/[\w-]+){1,2}", place) is not None
    return known and not Path(place.partition("/")[0]).exists()


def gather(source: str | Path, columns: tuple[str, ...] = (), label: str | None = None) -> Iterable[Sentence]:
    """The sentences of a dataset, fetched while they are gone through.

    A column of translations gives pairs, in the order in which the name has the languages (`de-en`), otherwise texts
    and labels are looked for under the names of GLUE; `columns` (one or two) and `label` are others. The split is the
    one after a colon, otherwise the first there is of validation, test, train. Raises ModuleNotFoundError without
    `datasets`, ValueError for what cannot be found or has no such columns or split.
    """
    rows = _rows(*_split(source))
    names = list(rows.features or next(iter(rows)))
    if "translation" in names and not columns:
        return (_pair(row["translation"], str(source)) for row in rows)
    texts = columns or next((known for known in (*TEXTS, ("text",)) if {*known} <= {*names}), ())
    label = label or next((name for name in LABELS if name in names), None)
    if not texts or not {*texts, *([label] if label else [])} <= {*names}:
        lacking = f"no column {', '.join(columns)}" if columns else "no text column that is known by its name"
        raise ValueError(f"dataset {source} has {lacking}; it has {', '.join(names)}; give text= and label= of these")
    return (_sentence(row, texts, label) for row in rows)


def _split(source: str | Path) -> tuple[str, str | None]:
    place, colon, split = str(source).rpartition(":")
    return (place, split) if colon and split.isidentifier() else (str(source), None)


def _rows(place: str, split: str | None) -> Any:
    """The rows of a split, as a stream."""
    if find_spec("datasets") is None:
        raise ModuleNotFoundError(
            f"{place} is not a file; if it is a dataset, install what reads it: pip install 'headroles[data]'"
        )
    import datasets

    first, _, config = place.rpartition("/")
    ways = [(place,)] if Path(place).is_dir() or not first else [(place,), (first, config)]
    faults = []
    for way in ways:
        try:
            found = datasets.load_dataset(*way, streaming=True)
        except (OSError, ValueError) as error:
            faults.append(str(error).partition("\n")[0])
            continue
        chosen = split or next((name for name in SPLITS if name in found), next(iter(found)))
        if chosen not in found:
            raise ValueError(f"dataset {place} has no split {chosen!r}; it has {', '.join(found)}")
        log.info("%s: split %s", place, chosen)
        return found[chosen]
    raise ValueError(f"no dataset {place!r}, and no file of that name: {'; '.join(faults)}")


def _pair(translation: Mapping[str, str], source: str) -> Sentence:
    named = re.findall(r"\b([a-z]{2,3})-([a-z]{2,3})\b", source)
    ordered = next((pair for pair in named if {*pair} == {*translation}), tuple(translation))
    one, other = (translation[language] or "" for language in ordered)
    return Sentence(one.strip(), target=Sentence(other.strip()))


def _sentence(row: Mapping[str, Any], texts: tuple[str, ...], label: str | None) -> Sentence:
    cells = ["" if row[name] is None else str(row[name]).strip() for name in texts]
    mark = None if label is None or row[label] is None else str(row[label])
    return Sentence(cells[0], label=mark, second=(*cells, None)[1])
