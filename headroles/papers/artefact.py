"""An artefact of a paper, reproduced: its table, its drawing, and whether the paper's claim holds (no torch)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from headroles.tables.frame import KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Draw = Callable[[], Axes]

Holds = bool | None  # None: undecided


class Verdict(NamedTuple):
    """Whether a claim holds, and why, in one sentence with our numbers."""

    holds: Holds
    why: str
    comparable: bool = True  # False: the models compared here were not trained as long as the paper's

    @property
    def answer(self) -> str:
        """The verdict in words, also where it is undecided or the models are not comparable."""
        return {True: "yes", False: "no", None: "cannot be said"}[self.holds] if self.comparable else "not comparable"


@dataclass(frozen=True)
class Claim:
    """A paper's claim: a function that judges a table by the claim's rule."""

    judge: Callable[[pd.DataFrame], Verdict]
    text: str  # the paper's statement, in short
    rule: str  # when the claim holds

    def __call__(self, table: pd.DataFrame) -> Verdict:
        """Judge a table."""
        return self.judge(table)


def claim(text: str, rule: str) -> Callable[[Callable[[pd.DataFrame], Verdict]], Claim]:
    """Make a claim of the function that judges it; arguments as of `Claim`."""
    return lambda judge: Claim(judge, text, " ".join(rule.split()))


@dataclass(frozen=True, eq=False)
class Reproduced:
    """Our version of one figure or table; its table has columns `paper...` where the paper's numbers are known."""

    table: pd.DataFrame
    claim: Claim
    verdict: Verdict
    draw: Draw | None  # None where the paper has a table


def judged(claim: Claim, table: pd.DataFrame, draw: Draw | None = None) -> Reproduced:
    """Attach the verdict of a claim to a reproduced table or figure."""
    return Reproduced(table, claim, claim(table), draw)


def printed(name: str) -> pd.DataFrame:
    """Load the paper's numbers of an artefact, such as `voita2019-fig7`; `attrs["source"]` cites their place."""
    folder = files("headroles.papers") / "numbers"
    file = folder / f"{name}.csv"
    if not file.is_file():
        known = ", ".join(sorted(entry.name.removesuffix(".csv") for entry in folder.iterdir()))
        raise FileNotFoundError(f"no numbers of {name!r}; known: {known}")
    with file.open(encoding="utf-8") as lines:
        source = lines.readline().removeprefix("#").strip()
        table = pd.read_csv(lines)
    table.attrs["source"] = source
    return table


def beside(ours: pd.DataFrame, name: str, on: str | list[str]) -> pd.DataFrame:
    """Add the paper's numbers of the artefact `name` to our rows."""
    theirs = printed(name)
    return sourced(ours.merge(theirs, on=on, how="left"), ours, theirs)


def aligned(ours: pd.DataFrame, theirs: pd.DataFrame, on: Sequence[str] = ("heads", "of")) -> pd.DataFrame:
    """Merge all rows of both by number of heads left, descending; the paper's rows of models of other sizes last."""
    table = ours.merge(theirs, on=[*on], how="outer")
    table["alike"] = table["of"] == ours["of"].max()
    table = table.sort_values(["alike", "heads"], ascending=False, ignore_index=True).drop(columns="alike")
    return sourced(table, ours, theirs)


def sourced(table: pd.DataFrame, ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Give a merged table our attributes and the source of the paper's numbers."""
    table.attrs = {**ours.attrs, "source": theirs.attrs["source"]}
    return table


def of_wmt(name: str) -> pd.DataFrame:
    """Load the numbers of Voita's larger corpus (WMT), with the number of heads left."""
    rows = printed(name).query("corpus == 'WMT'").drop(columns="corpus").reset_index(drop=True)
    return rows.assign(heads=rows[[*KINDS]].sum(axis=1))


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
    from headroles.analysis.intervals import wilson

    if not total:
        return Interval(math.nan)
    value = np.array(count / total)
    return Interval(float(value), *map(float, wilson(value, np.array(total))))


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
