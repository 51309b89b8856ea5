"""Missing values: log why a score is NaN for all heads of a kind, and refuse a table of NaN."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from headroles.scores.base import Measure
from headroles.tables.frame import KINDS, Kind

log = logging.getLogger(__name__)


def check_missing(
    table: pd.DataFrame, scores: Sequence[Measure], corpus: str, uncounted: dict[Kind, str], content: int
) -> None:
    """Log which scores have no value for any head of a kind, and why.

    Args:
        table: the table of all scores.
        scores: the scores in it.
        corpus: name of the corpus.
        uncounted: kinds with uncounted key tokens, and the reason.
        content: number of content tokens on the source side.

    Raises:
        ValueError: if there are no content tokens and no score has a value for any head.
    """
    columns = [name for score in scores for name in _columns(table, score)]
    if columns and not content and table[columns].isna().all(axis=None):
        raise ValueError(
            f"corpus {corpus!r} has nothing to measure: every score of every head would be NaN; got 0 content tokens "
            f"(neither padding nor special) in its source; expected some; try a corpus of whole sentences"
        )
    for score in scores:
        for kind, names, reason in _missing(table, score, uncounted):
            log.warning("%s of %s heads %s NaN: %s", ", ".join(names), kind, "are" if names[1:] else "is", reason)


def _columns(table: pd.DataFrame, score: Measure) -> list[str]:
    """The columns of a score that are estimates."""
    names = [str(name) for name in table if str(name) == score.label or str(name).startswith(f"{score.label}[")]
    return [name for name in names if not name.endswith((".low", ".high")) and score.sampled(name)]


def _missing(table: pd.DataFrame, score: Measure, uncounted: dict[Kind, str]) -> Iterator[tuple[Kind, list[str], str]]:
    kinds = np.asarray(table.index.get_level_values("kind"))
    for kind in (kind for kind in KINDS if kind in score.kinds and (kinds == kind).any()):
        empty = [name for name in _columns(table, score) if table.loc[kinds == kind, name].isna().all()]
        reasons = {name: score.nothing(name, kind) for name in empty}
        if score.needs_counts and kind in uncounted:
            reasons = dict.fromkeys(empty, uncounted[kind])
        for reason in dict.fromkeys(reason for reason in reasons.values() if reason):
            yield kind, [name for name in empty if reasons[name] == reason], reason
