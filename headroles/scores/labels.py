"""Labels of a corpus as the classes of a classifier."""

from __future__ import annotations

import math

from headroles.data.corpus import Corpus

LABELLED = "give a table with a column of labels (label= names it) that has a label in each row"
_SHOWN = 5


def check_labels(corpus: Corpus) -> None:
    """Raise ValueError unless every sentence of a corpus has a label."""
    if lacking := sum(not sentence.label for sentence in corpus):
        some = "no labels" if lacking == len(corpus) else f"no label for {lacking} of its {len(corpus)} sentences"
        raise ValueError(f"corpus {corpus.name!r} has {some}; {LABELLED}")


def classes(corpus: Corpus) -> list[str]:
    """Return the sorted distinct labels of a corpus.

    Args:
        corpus: sentences with labels.

    Returns:
        The labels in alphabetical order.

    Raises:
        ValueError: if labels are missing, fewer than two, of mixed type, fractions, or differ only in case.
    """
    check_labels(corpus)
    labels = sorted({str(sentence.label) for sentence in corpus})
    listed = f"{', '.join(map(repr, labels[:_SHOWN]))}{', ...' if len(labels) > _SHOWN else ''}"
    subject = f"the labels of corpus {corpus.name!r} are {listed}"
    numbers = [label for label in labels if _is_number(label)]
    if len(labels) < 2:
        raise ValueError(f"{subject}; a classifier needs at least two")
    if 0 < len(numbers) < len(labels):
        raise ValueError(f"{subject}: some are numbers, others words; expected the names of classes, or their numbers")
    if parts := [label for label in numbers if not float(label).is_integer()]:
        raise ValueError(f"{subject}: {parts[0]!r} is a value on a scale; expected classes, by name or whole number")
    if len({label.casefold() for label in labels}) < len(labels):
        raise ValueError(f"{subject}: some differ only in case; write each class in one way")
    return labels


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False
