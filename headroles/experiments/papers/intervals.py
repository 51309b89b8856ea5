"""Intervals and three-valued answers: the arithmetic of the rules by which claims are judged (no torch)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

Holds = bool | None  # None: undecided


def bounded(name: str) -> list[str]:
    """Return the names of the three columns of a number with its interval."""
    return [name, f"{name}.low", f"{name}.high"]


class Interval(NamedTuple):
    """A number with the bounds of its interval, NaN where it has none; `f"{x:.2f}"` shows all three."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def of(cls, row: Any, name: str) -> Interval:
        """Read a number and its bounds from the columns `name`, `name.low` and `name.high` of a row."""
        return cls(*(float(row[column]) for column in bounded(name)))

    def above(self, bound: float) -> Holds:
        """Return whether the interval lies above a bound; None if the bound is inside it."""
        if math.isnan(self.low) or math.isnan(self.high):
            return None
        return True if self.low > bound else False if self.high < bound else None

    def below(self, bound: float) -> Holds:
        """Return whether the interval lies below a bound; None if the bound is inside it."""
        return self.scaled(-1).above(-bound)

    def within(self, bound: float) -> Holds:
        """Return whether a change is smaller than a bound in either direction (equivalence test by the interval)."""
        inside = -bound < self.low and self.high < bound
        return True if inside else False if self.low > bound or self.high < -bound else None

    def scaled(self, factor: float) -> Interval:
        """Multiply the number and its bounds."""
        low, high = sorted((factor * self.low, factor * self.high))
        return Interval(factor * self.value, low, high)

    def minus(self, other: Interval) -> Interval:
        """Subtract an independent number; the interval is too wide where the two vary together."""
        down = math.hypot(self.value - self.low, other.high - other.value)
        up = math.hypot(self.high - self.value, other.value - other.low)
        value = self.value - other.value
        return Interval(value, value - down, value + up)

    def widened(self, tests: int) -> Interval:
        """Widen a 95 % interval for several comparisons (Bonferroni, normal approximation)."""
        from scipy import stats

        factor = float(stats.norm.isf(0.025 / tests) / stats.norm.isf(0.025))
        value, low, high = self
        return Interval(value, value - (value - low) * factor, value + (high - value) * factor)

    def __format__(self, spec: str) -> str:
        """Format the number and its bounds, each by `spec`; a number without bounds stands alone."""
        if math.isnan(self.value):
            return "undefined"
        value, low, high = (f"{number:z{spec or '.2f'}}" for number in self)
        return value if math.isnan(self.low) else f"{value} [{low}, {high}]"


def share(count: float, total: float) -> Interval:
    """Return a share of counts with its 95 % interval (Wilson 1927)."""
    if not total:
        return Interval(math.nan)
    z, value = 1.96, count / total
    middle = (value + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z / (1 + z**2 / total) * math.sqrt(value * (1 - value) / total + z**2 / (4 * total**2))
    return Interval(value, middle - half, middle + half)


def prediction_bound(values: Sequence[float]) -> float:
    """Return the bound that one more value exceeds with p = 0.01 (Student's prediction interval); NaN of one value."""
    from scipy import stats

    count = len(values)
    if count < 2:
        return math.nan
    mean = math.fsum(values) / count
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return mean + float(stats.t.isf(0.01, count - 1)) * spread * math.sqrt(1 + 1 / count)


def every(parts: Iterable[Holds]) -> Holds:
    """Return whether all parts hold: no if one fails, undecided without parts."""
    answers = list(parts)
    return False if False in answers else None if None in answers or not answers else True


def some(parts: Iterable[Holds]) -> Holds:
    """Return whether any part holds: no if all fail, undecided without parts."""
    answers = list(parts)
    return True if True in answers else None if None in answers or not answers else False


def on_balance(parts: Iterable[Holds]) -> Holds:
    """Return yes if a part holds and none fails, no if one fails and none holds."""
    answers = set(parts) - {None}
    return answers.pop() if len(answers) == 1 else None


def provided(answer: Holds, condition: Holds) -> Holds:
    """Turn a yes into undecided unless a condition is sure; a no stays."""
    return None if answer and not condition else answer
