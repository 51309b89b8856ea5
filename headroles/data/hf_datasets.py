"""Data sets that Hugging Face's `datasets` reads, from the Hub or a folder, and corpora as data sets (no torch)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headroles.data.corpus import Corpus
from headroles.data.sentences import Chat, Prompt, Sentence, Speech, Tagged, Tokens, sentences
from headroles.data.speech import undecoded

if TYPE_CHECKING:
    from datasets import Dataset

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


def gather(source: str | Path, columns: tuple[str, ...] = (), label: str | None = None) -> Iterator[Sentence | None]:
    """Return the sentences of a dataset of the Hub or in a folder, as `sentences`, fetched on iteration.

    The split follows a colon; by default it is the first of validation, test, train.
    """
    rows = undecoded(_rows(*_split(source)))
    names = list(rows.features or next(iter(rows)))
    return sentences(rows, names, str(source), columns, label, rows.features)


def to_dataset(corpus: Corpus) -> Dataset:
    """Convert a corpus to Hugging Face's `datasets`, for the Hub or a parquet file that `hr.read` reads again.

    Columns are `text`, or with translations `translation`, with answers `prompt` and `completion`, of chats `messages`,
    with labels of words `tokens` and `labels`, or with second texts `sentence1` and `sentence2`. If any sentence has
    them, there are also `label`, and `spans`, `heads` and `relations` of the trees of the first texts.

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
    if any(isinstance(item, Tokens | Speech) for item in corpus):
        raise ValueError(f"sentences of a data set must be texts, got token ids or sound in corpus {corpus.name!r}")
    labelled, parsed = (any(getattr(item, name) for item in corpus) for name in ("label", "relations"))
    return _library().Dataset.from_list([_row(sentence, labelled=labelled, parsed=parsed) for sentence in corpus])


def _row(sentence: Sentence, *, labelled: bool, parsed: bool) -> dict[str, object]:
    """Return the columns of a sentence, as `gather` reads them."""
    if isinstance(sentence, Chat):
        row: dict[str, object] = {"messages": [{"role": role, "content": text} for role, text in sentence.turns]}
    elif isinstance(sentence, Prompt):
        row = {"prompt": sentence.text, "completion": sentence.answer}
    elif isinstance(sentence, Tagged):
        words = [sentence.text[slice(*span)] for span in sentence.spans if span]
        row = {"tokens": words, "labels": [*sentence.labels]}
    elif sentence.target is not None:
        row = {"translation": {"source": sentence.text, "target": sentence.target.text}}
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
