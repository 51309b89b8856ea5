"""What an artefact is when it is reproduced: a table, axes, and whether the paper's claim holds (no torch)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from headroles.papers.verdict import Holds, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Claim = Callable[[Any], Verdict]


@dataclass(frozen=True, eq=False)
class Reproduced:
    """One figure or table of a paper, ours: with a column `paper` where its numbers are known."""

    table: pd.DataFrame
    axes: Axes | None  # None where the paper has a table
    claim: str  # what the paper says, in short
    rule: str  # when we say that it holds
    holds: Holds  # None: cannot be said here
    why: str


def judged(claim: Claim, table: pd.DataFrame, axes: Axes | None = None) -> Reproduced:
    """An artefact with the verdict of its claim: a function of its table, whose docstring is the claim and the rule."""
    sentence, _, rule = (inspect.getdoc(claim) or "").partition("\n\n")
    verdict = claim(table)
    return Reproduced(table, axes, sentence, " ".join(rule.split()), verdict.holds, verdict.why)
