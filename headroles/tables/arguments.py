"""Checks of arguments: a choice among known names, a number in a range; one place for both messages (no torch)."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from math import inf
from numbers import Integral, Real
from typing import TypeVar, cast

T = TypeVar("T")


def one_of(name: str, given: T, known: Iterable[object], more: str = "") -> T:
    """Return a known choice; for another, ValueError has the known ones, `more` that is possible, and the nearest."""
    choices = [*known]
    if given in choices:
        return given
    near = get_close_matches(str(given).lower(), map(str, choices), n=1)
    hint = f"; try {near[0]!r}" if near else ""
    raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}{more}, got {given!r}{hint}")


def number(
    name: str,
    given: object,
    *,
    least: float = 0,
    most: float = inf,
    above: float = -inf,  # replaces `least`
    below: float = inf,
    whole: bool = False,  # must be an integer
) -> float:
    """Return a number in its range; ValueError for another one, or for another type."""
    least = least if above == -inf else -inf
    known = isinstance(given, Integral if whole else Real) and not isinstance(given, bool)
    if known and least <= cast(float, given) <= most and above < cast(float, given) < below:
        return cast(float, given)
    bounds = {">": above, ">=": least, "<": below, "<=": most}
    limits = " and ".join(f"{sign} {bound}" for sign, bound in bounds.items() if abs(bound) != inf)
    raise ValueError(f"{name} must be {'an integer' if whole else 'a number'} {limits}".rstrip() + f", got {given!r}")


def several(given: Iterable[T]) -> list[T]:
    """Return what is given as a list; a name or an object by itself, which types do not show, is one."""
    is_one = isinstance(given, str) or not isinstance(given, Iterable)
    return [cast(T, given)] if is_one else [*given]
