"""Checks of arguments: a choice among known names, a number in a range; one place for both messages (no torch)."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from math import inf
from numbers import Integral, Real
from typing import TypeVar, cast

T = TypeVar("T")


def one_of(name: str, given: T, known: Iterable[object], more: str = "") -> T:
    """Return the choice if it is known.

    Args:
        name: What is chosen, for the message: `train`, `score`.
        given: The choice.
        known: All choices.
        more: What else is possible; it follows the known choices in the message.

    Returns:
        The choice.

    Raises:
        ValueError: If it is not among the known ones; with the most similar of these.
    """
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
    above: float = -inf,
    below: float = inf,
    whole: bool = False,
) -> float:
    """Return the number if it is in its range.

    Args:
        name: The argument, for the message.
        given: The number.
        least: The smallest allowed value.
        most: The largest allowed value.
        above: What the number must exceed; it replaces `least`.
        below: What the number must stay below; it replaces `most`.
        whole: Whether it must be an integer.

    Returns:
        The number; an integer if `whole`.

    Raises:
        ValueError: If it is out of range, not a number, or not an integer where that is required.
    """
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
