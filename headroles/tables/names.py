"""Messages of unknown names, with the similar ones that are known (no torch)."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TypeVar, cast

T = TypeVar("T")


def several(given: Iterable[T]) -> list[T]:
    """Return what is given as a list; a name or an object by itself, which types do not show, is one."""
    is_one = isinstance(given, str) or not isinstance(given, Iterable)
    return [cast(T, given)] if is_one else [*given]


def unknown(what: str, name: object, known: Iterable[str], more: str = "") -> str:
    """Return the message of a name that is none of the known ones; `more` follows these."""
    known = list(known)
    near = get_close_matches(str(name).lower(), known, n=1)
    meant = f"; did you mean {near[0]!r}" if near else ""
    return f"unknown {what} {name!r}{meant}; known: {', '.join(known)}{more}"
