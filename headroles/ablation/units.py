"""Units and replacements: which heads are masked for a row of a table, what replaces them, and their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from headroles.ablation.example_stats import HeadSet
from headroles.models.head_model import HeadModel
from headroles.models.identity import fingerprint
from headroles.models.masking import Head
from headroles.models.replacements import ByHead, Replacement
from headroles.patterns.base import Pattern
from headroles.tables.arguments import one_of

Unit = Literal["head", "all_but_one", "group", "layer", "kind"]
Word = Literal["zero", "mean", "resample", "uniform", "rescale"]
AblationReplacement = Word | Replacement  # of the output of a masked head
UNITS: tuple[Unit, ...] = get_args(Unit)
REPLACEMENTS: tuple[Word, ...] = get_args(Word)


def known_replacement(replacement: AblationReplacement | Mapping[Head, Pattern]) -> AblationReplacement:
    """Return a replacement; ValueError for an unknown word."""
    if isinstance(replacement, Replacement):
        return replacement
    if isinstance(replacement, Mapping):
        return ByHead(replacement)
    return one_of("replacement", replacement, REPLACEMENTS, " or a pattern of headroles.patterns, such as Offset(-1)")


def masked_heads(head: Head, model: HeadModel, unit: Unit) -> HeadSet:
    """Return the heads that are masked to measure `head`: itself, the others of its layer, its group, layer or kind."""
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}; known: {', '.join(UNITS)}")
    if unit == "head":
        return frozenset([head])
    if unit == "group":
        return model.groups[head]
    same = (other for other in model.heads if other[0] == head[0] and (unit == "kind" or other[1] == head[1]))
    return frozenset(other for other in same if unit != "all_but_one" or other != head)


def replacement_name(replacement: AblationReplacement) -> str:
    """Return the word for a replacement in table names, column names, provenance and cache keys."""
    if isinstance(replacement, str):
        return replacement
    return f"pattern={replacement.label}" if replacement.label in REPLACEMENTS else replacement.label


def pattern_for(replacement: AblationReplacement, head: Head) -> Replacement | None:
    """Return the attention that is imposed on a head; None if the replacement is a word, or is not of the head."""
    if isinstance(replacement, ByHead):
        return replacement.parts.get(head)
    return None if isinstance(replacement, str) else replacement


def code(replacement: AblationReplacement) -> dict[str, str]:
    """Return the options and the code of patterns, and their heads, for cache keys; nothing for the words."""
    if isinstance(replacement, str):
        return {}
    return {"pattern": fingerprint(replacement.parts if isinstance(replacement, ByHead) else replacement)}


def table_name(
    metric: str,
    unit: Unit = "head",
    replacement: AblationReplacement = "zero",
    precision: float = 1.0,
) -> str:
    """Return the name of an ablation's tables in a study, after `ablation-` or `examples-`."""
    words = [metric, unit, replacement_name(replacement), *([f"precision={precision:g}"] if precision > 1 else [])]
    return "-".join(words)
