"""What an artefact is when it is reproduced: a table, a drawing, and whether the paper's claim holds (no torch)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from headroles.tables.frame import KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Holds = bool | None  # None: it cannot be said
LITTLE = 0.03  # of the score of the whole model, or nats of a loss: what counts as a small change (our choice)
TWICE = 2  # trainings whose steps differ by a larger factor are not compared (our choice)


class Verdict(NamedTuple):
    """Whether a claim holds, and why, in one sentence with our numbers in it."""

    holds: Holds
    why: str
    comparable: bool = True  # False: what is compared here was not trained as the paper's models were

    @property
    def answer(self) -> str:
        """Say the verdict in words: yes, no, cannot be said, not comparable."""
        return {True: "yes", False: "no", None: "cannot be said"}[self.holds] if self.comparable else "not comparable"


def above(low: float, high: float, bound: float) -> Holds:
    """Whether a number is above a bound: the interval is, or is not, or has the bound in it."""
    if math.isnan(low) or math.isnan(high):
        return None
    return True if low > bound else False if high < bound else None


def below(low: float, high: float, bound: float) -> Holds:
    """Whether a number is below a bound."""
    return above(-high, -low, -bound)


def within(low: float, high: float, bound: float) -> Holds:
    """Whether a change is smaller than a bound in either direction: an equivalence test by the interval."""
    return True if -bound < low and high < bound else False if low > bound or high < -bound else None


def provided(found: Holds, needed: Holds) -> Holds:
    """Turn a yes into "cannot be said" unless something else is sure; a no stays."""
    return None if found and not needed else found


def at_stake(table: Any) -> Holds:
    """Whether removing all heads changes the score by more than a little (columns `all.low`, `all.high`)."""
    return above(table["all.low"].iloc[0], table["all.high"].iloc[0], LITTLE)


def expected(values: Sequence[float]) -> float:
    """The bound that one more value of the same kind exceeds with p = 0.01 (Student's prediction interval)."""
    from scipy import stats

    count = len(values)
    if count < 2:
        return math.nan
    mean = math.fsum(values) / count
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return mean + float(stats.t.isf(0.01, count - 1)) * spread * math.sqrt(1 + 1 / count)


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


Claim = Callable[[Any], Verdict]


Draw = Callable[[], "Axes"]


@dataclass(frozen=True, eq=False)
class Reproduced:
    """One figure or table of a paper, ours: with a column `paper` where its numbers are known."""

    table: pd.DataFrame
    draw: Draw | None  # None where the paper has a table
    claim: str  # what the paper says, in short
    rule: str  # when we say that it holds
    verdict: Verdict


def judged(claim: Claim, table: pd.DataFrame, draw: Draw | None = None) -> Reproduced:
    """An artefact with the verdict of its claim: a function of its table, whose docstring is the claim and the rule."""
    sentence, _, rule = (inspect.getdoc(claim) or "").partition("\n\n")
    return Reproduced(table, draw, sentence, " ".join(rule.split()), claim(table))


def printed(name: str) -> pd.DataFrame:
    """The numbers of one artefact, as `voita2019-fig7`; `attrs["source"]` says where they are from.

    Raises FileNotFoundError, with what there is, for another name.
    """
    folder = files("headroles.experiments.papers") / "numbers"
    file = folder / f"{name}.csv"
    if not file.is_file():
        known = ", ".join(sorted(one.name.removesuffix(".csv") for one in folder.iterdir()))
        raise FileNotFoundError(f"no numbers of {name!r}; there are: {known}")
    with file.open(encoding="utf-8") as lines:
        source = lines.readline().removeprefix("#").strip()
        table = pd.read_csv(lines)
    table.attrs["source"] = source
    return table


def beside(ours: pd.DataFrame, name: str, on: str | list[str]) -> pd.DataFrame:
    """Our rows with the paper's numbers of the same."""
    theirs = printed(name)
    found = ours.merge(theirs, on=on, how="left")
    found.attrs = {**ours.attrs, "source": theirs.attrs["source"]}
    return found


def aligned(ours: pd.DataFrame, theirs: pd.DataFrame, on: Sequence[str] = ("heads", "of")) -> pd.DataFrame:
    """All rows of both, from the most heads left to the fewest; those of models of other sizes below."""
    found = ours.merge(theirs, on=[*on], how="outer")
    found["alike"] = found["of"] == ours["of"].max()
    found = found.sort_values(["alike", "heads"], ascending=False, ignore_index=True).drop(columns="alike")
    found.attrs = {**ours.attrs, "source": theirs.attrs["source"]}
    return found


def of_wmt(name: str) -> pd.DataFrame:
    """The rows of Voita's larger corpus, with how many heads are left."""
    rows = printed(name).query("corpus == 'WMT'").drop(columns="corpus").reset_index(drop=True)
    return rows.assign(heads=rows[[*KINDS]].sum(axis=1))
