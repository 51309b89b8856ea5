"""An artefact of a paper, reproduced: its table, its drawing, and whether the paper's claim holds (no torch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from headroles.experiments.papers.intervals import Holds
from headroles.tables.frame import KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Draw = Callable[[], Axes]


class Verdict(NamedTuple):
    """Whether a claim holds, and why, in one sentence with our numbers."""

    holds: Holds
    why: str
    comparable: bool = True  # False: the models compared here were not trained as long as the paper's

    @property
    def answer(self) -> str:
        """The verdict in words, also where it is undecided or the models are not comparable."""
        return {True: "yes", False: "no", None: "cannot be said"}[self.holds] if self.comparable else "not comparable"


Shuffle = Callable[[pd.DataFrame, np.random.Generator], pd.DataFrame]  # -> the table with labels shuffled


@dataclass(frozen=True)
class Claim:
    """A paper's claim: a function that judges a table by the claim's rule, and the negative controls of the rule."""

    judge: Callable[[pd.DataFrame], Verdict]
    text: str  # the paper's statement, in short
    rule: str  # when the claim holds
    shuffles: Mapping[str, Shuffle]  # need -> how its labels are shuffled; none: the rule only counts heads
    exempt: str  # why the rule does not apply to an untrained model; "": it does

    def __call__(self, table: pd.DataFrame) -> Verdict:
        """Judge a table."""
        return self.judge(table)


def claim(
    text: str, rule: str, *, shuffles: Mapping[str, Shuffle] | None = None, exempt: str = ""
) -> Callable[[Callable[[pd.DataFrame], Verdict]], Claim]:
    """Make a claim of the function that judges it; arguments as of `Claim`."""
    return lambda judge: Claim(judge, text, " ".join(rule.split()), shuffles or {}, exempt)


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
    folder = files("headroles.experiments.papers") / "numbers"
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
