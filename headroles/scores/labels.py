"""The labels of a corpus as the classes of a classifier."""

from __future__ import annotations

import math

from headroles.data.corpus import Corpus

LABELLED = "give a table with a column of labels (label= names it) that has a label in each row"
_SHOWN = 5


def check_labels(corpus: Corpus) -> None:
    """Raises ValueError unless each sentence of a corpus has a label."""
    if lacking := sum(not one.label for one in corpus):
        some = "no labels" if lacking == len(corpus) else f"no label for {lacking} of its {len(corpus)} sentences"
        raise ValueError(f"corpus {corpus.name!r} has {some}; {LABELLED}")


def classes(corpus: Corpus) -> list[str]:
    """The labels of a corpus in order. Raises ValueError where they cannot be classes."""
    check_labels(corpus)
    labels = sorted({str(one.label) for one in corpus})
    listed = f"{', '.join(map(repr, labels[:_SHOWN]))}{', ...' if len(labels) > _SHOWN else ''}"
    given = f"the labels of corpus {corpus.name!r} are {listed}"
    numbers = [label for label in labels if _is_number(label)]
    if len(labels) < 2:
        raise ValueError(f"{given}; a classifier needs at least two")
    if 0 < len(numbers) < len(labels):
        raise ValueError(f"{given}: some are numbers, others words; expected the names of classes, or their numbers")
    if parts := [label for label in numbers if not float(label).is_integer()]:
        raise ValueError(f"{given}: {parts[0]!r} is a value on a scale; expected classes, by name or whole number")
    if len({label.casefold() for label in labels}) < len(labels):
        raise ValueError(f"{given}: some differ only in case; write each class in one way")
    return labels


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False
