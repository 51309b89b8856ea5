"""Verdicts: does a claim hold, by numbers and their intervals: yes, no, or cannot be told (no torch)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

Holds = bool | None  # None: it cannot be told
LITTLE = 0.03  # of the score of the whole model: what a claim may call a small loss (our choice)


class Verdict(NamedTuple):
    """Whether a claim holds, and why, in one sentence with our numbers in it."""

    holds: Holds
    why: str


def above(low: float, high: float, bound: float) -> Holds:
    """Whether a number is above a bound: the interval is, or is not, or has the bound in it."""
    if math.isnan(low) or math.isnan(high):
        return None
    return True if low > bound else False if high < bound else None


def below(low: float, high: float, bound: float) -> Holds:
    """Whether a number is below a bound."""
    return above(-high, -low, -bound)


def every(parts: Iterable[Holds]) -> Holds:
    """Whether all parts hold; one that does not is enough for no. Without any part nothing can be told."""
    told = list(parts)
    return False if False in told else None if None in told or not told else True


def some(parts: Iterable[Holds]) -> Holds:
    """Whether any part holds; all must fail for no."""
    told = list(parts)
    return True if True in told else None if None in told or not told else False


def on_balance(parts: Iterable[Holds]) -> Holds:
    """Whether a part holds and none fails; no, where one fails and none holds."""
    told = set(parts) - {None}
    return told.pop() if len(told) == 1 else None


def wilson(hits: float, of: float) -> tuple[float, float]:
    """The 95 % interval of a share of counts (Wilson 1927)."""
    if not of:
        return math.nan, math.nan
    z, share = 1.96, hits / of
    middle = (share + z**2 / (2 * of)) / (1 + z**2 / of)
    half = z / (1 + z**2 / of) * math.sqrt(share * (1 - share) / of + z**2 / (4 * of**2))
    return middle - half, middle + half


def less(one: Any, other: Any) -> tuple[float, float, float]:
    """`one` minus `other`, each a value, low, high, as if they varied apart: too wide where they vary together."""
    (value, low, high), (base, base_low, base_high) = one, other
    down, up = math.hypot(value - low, base_high - base), math.hypot(high - value, base - base_low)
    return value - base, value - base - down, value - base + up


def widened(interval: Any, tests: int) -> tuple[float, float, float]:
    """A value, low, high: so wide that so many hold together with 95 % (Bonferroni, as if they were normal)."""
    from scipy import stats

    value, low, high = interval
    factor = float(stats.norm.isf(0.025 / tests) / stats.norm.isf(0.025))
    return value, value - (value - low) * factor, value + (high - value) * factor


def said(value: float, low: float = math.nan, high: float = math.nan, *, digits: int = 2) -> str:
    """A number with its interval, where it has one."""
    if math.isnan(value):
        return "undefined"
    text = f"{value:z.{digits}f}"
    return text if math.isnan(low) else f"{text} [{low:z.{digits}f}, {high:z.{digits}f}]"
