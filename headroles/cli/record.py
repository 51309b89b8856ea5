"""The record of what a command printed: its lines, tables and warnings, for --json and the summary (no torch)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import pandas as pd


class Rows(TypedDict):
    """A table for --json: its title, and a dictionary for each row."""

    title: str
    rows: list[dict[str, object]]


@dataclass
class Record:
    """What a command printed, with the tables behind it; `quiet`: nothing is printed."""

    quiet: bool = False
    tables: list[Rows] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)  # lines after all others
    words: dict[str, str] = field(default_factory=dict)  # words of the next commands that are no arguments of this one
    following: list[str] = field(default_factory=list)  # next commands to try that no template makes

    def keep(self, table: pd.DataFrame, title: str) -> None:
        """Keep a table; missing numbers become null."""
        named = table if table.index.names == [None] else table.reset_index()
        rows: list[dict[str, object]] = json.loads(named.to_json(orient="records", double_precision=15))
        self.tables.append({"title": title, "rows": rows})


_current: ContextVar[Record] = ContextVar("record")
draws: ContextVar[bool] = ContextVar("draws", default=False)  # whether commands draw the figures of their study


@contextmanager
def recording(*, quiet: bool = False) -> Iterator[Record]:
    """Record what is printed within the block; `quiet`: print nothing."""
    token = _current.set(Record(quiet))
    try:
        yield _current.get()
    finally:
        _current.reset(token)


def record() -> Record:
    """Return the record of the running command; outside of one, a record that nobody reads."""
    return _current.get(Record())
