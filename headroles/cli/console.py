"""Console output of a command: lines, tables, and the record of both for --json and the summary (no torch)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headroles import _distributed
from headroles.tables.columns import Column
from headroles.tables.frame import LEVELS, spelled, visible

if TYPE_CHECKING:
    import pandas as pd

NARROW = 24  # letters that a column of text has at least
GAP = 3  # spaces between two columns
Columns = Mapping[str, Sequence[str]]


@dataclass
class Record:
    """What a command printed, with the tables behind it; `quiet`: nothing is printed."""

    quiet: bool = False
    tables: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    last_lines: list[str] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)  # for the next commands, with the arguments of this one

    def keep(self, table: pd.DataFrame, title: str) -> None:
        """Keep a table, a dictionary for each row; missing numbers become null."""
        named = table if table.index.names == [None] else table.reset_index()
        rows = json.loads(named.to_json(orient="records", double_precision=15))
        self.tables.append({"title": title, "rows": rows})


_current: ContextVar[Record] = ContextVar("record")


@contextmanager
def recording(*, quiet: bool = False) -> Iterator[Record]:
    """Record what is printed within the block; `quiet`: print nothing."""
    token = _current.set(Record(quiet))
    try:
        yield _current.get()
    finally:
        _current.reset(token)


def record() -> Record:
    """Return the record of the running command; outside a command, an unused record."""
    return _current.get(Record())


def the_console(*, soft_wrap: bool = False) -> Console:
    """Return the console; of several processes only the first one prints, and with --json none."""
    return Console(quiet=not _distributed.first() or record().quiet, soft_wrap=soft_wrap, highlight=False)


def say(text: str) -> None:
    """Print one line."""
    record().lines.append(text)
    the_console(soft_wrap=True).print(Text(visible(text)))


def list_figures(files: list[Path], folder: Path) -> None:
    """Print the folder of the tables and the names of the drawn figures."""
    say(f"tables are in {folder}, and these figures: {', '.join(file.name for file in files)}")


def row_names(index: pd.Index) -> dict[str, list[str]]:
    """Return the names of rows, by heading; a head has its kind if the table of these rows has several."""
    if list(index.names) == LEVELS:
        one_kind = cast("pd.MultiIndex", index).levels[0].size < 2  # also of kinds that no row has
        return {"head": [spelled(*head, one_kind=one_kind) for head in index]}
    return {str(name): [*map(str, index.get_level_values(str(name)))] for name in index.names if name is not None}


def show_columns(columns: Columns, title: str, numeric: Sequence[str] = ()) -> None:
    """Print columns of text, the `numeric` ones at the right of their cells.

    If the terminal is too narrow, intervals go below their numbers. Columns that still do not fit follow below, each
    time after the first column.
    """
    console = the_console()
    if _width(columns, numeric) > console.width:
        columns = {**columns, **{name: [cell.replace(" [", "\n[") for cell in columns[name]] for name in numeric}}
    first, *rest = columns
    parts = [[first]]  # each fits the console
    for name in rest:
        part = [*parts[-1], name]
        fits = len(parts[-1]) == 1 or _width({key: columns[key] for key in part}, numeric) <= console.width
        parts[-1:] = [part] if fits else [parts[-1], [first, name]]
    the_console(soft_wrap=True).print(Text(visible(title), style="bold"))
    for part in parts:
        console.print(_grid({name: columns[name] for name in part}, numeric))
    console.print()


def _grid(columns: Columns, numeric: Sequence[str]) -> Table:
    made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        side: Any = "right" if name in numeric else "left"
        made.add_column(Text(visible(name)), justify=side, no_wrap=name in numeric, overflow="fold")
    for row in zip(*columns.values(), strict=True):
        made.add_row(*(Text(visible(cell)) for cell in row))
    return made


def _width(columns: Columns, numeric: Sequence[str]) -> int:
    """Return the minimum width of columns, in letters."""
    total = -GAP
    for name, texts in columns.items():
        width = max(cell_len(line) for text in (name, *texts) for line in text.split("\n"))
        total += GAP + (width if name in numeric else min(width, NARROW))
    return total


def cells(table: pd.DataFrame, name: str) -> list[str]:
    """Return the cells of a column: numbers with their intervals, words as they are, missing values blank."""
    values = table[name]
    if values.dtype.kind == "b":
        return ["yes" if value else "no" for value in values]
    if values.dtype.kind != "f":
        return ["" if value is None or value != value else str(value) for value in values]
    if Column.parse(name).last in ("p", "holm", "bh"):
        return ["" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}" for p in values]
    low, high = (table[end] if (end := f"{name}.{part}") in table else values * math.nan for part in ("low", "high"))
    largest = values.abs().max()  # three of its digits are shown: three decimals, up to six for small numbers
    decimals = 3 if not 0 < largest < 1 else min(6, max(3, 2 - math.floor(math.log10(largest))))
    decimals *= not (low.isna().all() and (values.dropna() % 1 == 0).all())
    return [
        ("" if math.isnan(value) else f"{value:z.{decimals}f}")
        + ("" if any(map(math.isnan, (value, least, most))) else f" [{least:z.{decimals}f}, {most:z.{decimals}f}]")
        for value, least, most in zip(values, low, high, strict=True)
    ]
