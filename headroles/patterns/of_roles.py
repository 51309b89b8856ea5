"""Patterns of roles: the attention that each role describes, to be imposed."""

from __future__ import annotations

from collections.abc import Callable

from headroles.patterns.alignment import Alignment, Diagonal
from headroles.patterns.base import Pattern
from headroles.patterns.dependency import Dependency
from headroles.patterns.simple import Duplicate, First, Induction, Offset, Rarest, Special
from headroles.tables.columns import Column

_PATTERNS: dict[str, Callable[[str], Pattern]] = {  # name of a role -> its pattern, from the text in its brackets
    "positional": lambda detail: Offset(int(detail)),
    "syntactic": lambda detail: Dependency(*detail.split(" ")),  # type: ignore[arg-type]
    "rare": lambda _: Rarest(),
    "sink": lambda detail: First() if detail == "first" else Special(),
    "alignment": lambda _: Diagonal(),
    "translation": lambda _: Alignment(),
    "induction": lambda _: Induction(),
    "duplicate": lambda _: Duplicate(),
}


def pattern_of(role: str) -> Pattern | None:
    """Return the pattern of a role, such as `positional[-1]`; None for a role that has none."""
    column = Column.parse(role).plain
    make = _PATTERNS.get(column.name)
    return None if make is None else make(column.detail or "")
