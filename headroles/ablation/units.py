"""Units and replacements: which heads are masked for a row of a table, what replaces them, and their words on disk."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal, get_args

from headroles.ablation.example_stats import HeadSet
from headroles.models.masking import Head

Unit = Literal["head", "all_but_one", "layer", "kind"]
Replacement = Literal["zero", "mean", "resample", "uniform", "rescale"]
UNITS: tuple[Unit, ...] = get_args(Unit)
REPLACEMENTS: tuple[Replacement, ...] = get_args(Replacement)
_ON_DISK = {"head": "single", "all_but_one": "rest", "resample": "other"}  # older words, for tables that exist


def known_replacement(replacement: str) -> Replacement:
    """Return a replacement; "other", the older word for "resample", with a warning, and ValueError for any other."""
    if replacement == "other":
        warnings.warn("replacement 'other' is called 'resample' now", DeprecationWarning, stacklevel=3)
        return "resample"
    for known in REPLACEMENTS:
        if replacement == known:
            return known
    raise ValueError(f"unknown replacement {replacement!r}; known: {', '.join(REPLACEMENTS)}")


def masked_heads(head: Head, heads: Sequence[Head], unit: Unit) -> HeadSet:
    """Return the heads that are masked to measure `head`: itself, the others of its layer, its layer, or its kind."""
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}; known: {', '.join(UNITS)}")
    if unit == "head":
        return frozenset([head])
    same = (other for other in heads if other[0] == head[0] and (unit == "kind" or other[1] == head[1]))
    return frozenset(other for other in same if unit != "all_but_one" or other != head)


def on_disk(choice: Unit | Replacement) -> str:
    """Return the word for a unit or replacement in table names, column names, provenance and cache keys."""
    return _ON_DISK.get(choice, choice)


def sampling(*, early: bool = False, precision: float = 1.0) -> list[str]:
    """Return the words for ablating heads on a part of the examples in table and column names."""
    return ["early"] * early + [f"precision={precision:g}"] * (precision > 1)


def table_name(
    metric: str,
    unit: Unit = "head",
    replacement: Replacement = "zero",
    *,
    early: bool = False,
    precision: float = 1.0,
) -> str:
    """Return the name of an ablation's tables in a study, after `ablation-` or `examples-`."""
    words = [metric, on_disk(unit), on_disk(replacement), *sampling(early=early, precision=precision)]
    return "-".join(words)
