"""Console output of a command, lines and tables, and the record of it for --json and the summary (no torch)."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

import headroles as hr
from headroles import _distributed
from headroles.tables.columns import without_ends
from headroles.tables.frame import visible

if TYPE_CHECKING:
    import pandas as pd

WHOLE = ("step", "heads", "parameters", "pairs", "count", "undecided")  # columns of counts


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


def say(text: str) -> None:
    """Print one line without markup."""
    record().lines.append(text)
    the_console(soft_wrap=True, highlight=False).print(Text(visible(text)))


def draw_figures(study: Path, *, overwrite: bool) -> None:
    """Draw every figure that the tables of a study allow, and print their names; only with --figures."""
    if draws.get():
        list_figures(hr.plot(hr.Study(study, overwrite=overwrite)), study)
    else:
        say(f"tables are in {study}; headroles plot {shlex.quote(str(study))} draws figures")


def list_figures(files: list[Path], folder: Path) -> None:
    """Print the folder of the tables and the names of the drawn figures."""
    say(f"tables are in {folder}, and these figures: {', '.join(file.name for file in files)}")


def show_table(
    table: pd.DataFrame, title: str, *, label: str = "", rows: Sequence[str] = (), whole: pd.DataFrame | None = None
) -> None:
    """Print a table of numbers with intervals, rows named by `label` and `rows`; --json has the `whole` table."""
    record().keep(table if whole is None else whole, title)
    show_numbers(table, title, label=label, rows=rows)


def show_numbers(
    table: pd.DataFrame, title: str, *, label: str = "", rows: Sequence[str] = (), tall: bool = False
) -> None:
    """Print a table as `show_table`, of which --json has none; `tall`: intervals are below their numbers."""
    table = table.rename(columns={"low": "value.low", "high": "value.high"})
    columns = without_ends(table)
    decimals = {name: _decimals(table[name]) for name in columns}
    cells = {name: [_cell(row, name, decimals[name]) for _, row in table.iterrows()] for name in columns}
    if tall:
        cells = {name: [cell.replace(" [", "\n[") for cell in column] for name, column in cells.items()}
    _show_columns({label or str(table.index.name): list(rows) or list(map(str, table.index))} | cells, title)


def show_rows(table: pd.DataFrame, title: str, *, first: int | None = None) -> None:
    """Print the `first` rows, by default all, of a table of numbers and words; missing values are blank."""
    record().keep(table, title)
    shown = table.head(len(table) if first is None else first)
    title = title if len(shown) == len(table) else f"{title}, {len(shown)} of {len(table)} rows"
    shown = shown[[name for name in shown if shown[name].notna().any()]]
    cells, place = dict[str, list[str]](), ["kind", "layer", "head"]
    if {*place} <= {*shown}:
        cells["head"] = [f"{kind} layer {layer} head {head}" for kind, layer, head in shown[place].to_numpy()]
        shown = shown.drop(columns=place)
    for name in without_ends(shown):
        decimals = _decimals(shown[name])
        values = shown[[part for part in (name, f"{name}.low", f"{name}.high") if part in shown]]
        cells[str(name)] = [_value(row, str(name), decimals) for row in values.to_dict("records")]
    _show_columns(cells, title)


def show_grid(
    rows: pd.DataFrame, title: str, *, caption: str | None = None, right: Sequence[str] = (), whole: int = 0
) -> None:
    """Print rows of text, as `grid` makes them."""
    show(grid(rows, title, caption=caption, right=right, whole=whole))


def grid(
    rows: pd.DataFrame, title: str, *, caption: str | None = None, right: Sequence[str] = (), whole: int = 0
) -> Table:
    """Make a table of rows of text, some columns at the right of their cells, the words of the first ones `whole`."""
    table = Table(title=_text(title), caption=caption)
    for place, column in enumerate(map(str, rows)):
        table.add_column(
            _text(column), justify="right" if column in right else "left", no_wrap=place < whole, overflow="fold"
        )
    for row in rows.to_numpy().tolist():
        table.add_row(*map(_text, row))
    return table


def show(table: Table) -> None:
    """Print a table of `grid`."""
    the_console().print(table)


def height(table: Table) -> int:
    """Return the number of lines of a table on the console."""
    return len(the_console().render_lines(table))


def _show_columns(columns: dict[str, list[str]], title: str) -> None:
    """Print columns of text; columns beyond the width of the terminal follow below, beside the first column."""
    console, widths = the_console(), {name: _width([name, *cells]) for name, cells in columns.items()}
    (first, labels), *rest = columns.items()
    half = console.width // 2
    whole = console.width - 4 - min(half, widths[first])  # less borders and padding
    parts, room = [list[str]()], whole
    for name, _ in rest:
        if parts[-1] and 3 + widths[name] > room:
            parts.append([])
            room = whole
        parts[-1].append(name)
        room -= 3 + widths[name]
    for number, names in enumerate(parts):
        shown = Table(title=None if number else _text(title))
        shown.add_column(_text(first), overflow="fold", max_width=half)
        for name in names:
            shown.add_column(_text(name), justify="right", overflow="fold")
        for row in zip(labels, *(columns[name] for name in names), strict=True):
            shown.add_row(*map(_text, row))
        console.print(shown)


def _width(cells: Sequence[str]) -> int:
    return max(cell_len(line) for cell in cells for line in cell.split("\n"))


def the_console(*, soft_wrap: bool = False, highlight: bool = True) -> Console:
    """Return the console; of several processes only the first one prints, and with --json none."""
    return Console(quiet=not _distributed.first() or record().quiet, soft_wrap=soft_wrap, highlight=highlight)


def _text(text: str) -> str:
    """A text without markup, and without what steers a terminal."""
    return escape(visible(text))


def _decimals(column: pd.Series[float]) -> int:
    """Return how many decimals show three digits of the largest number of a column: three, up to six of small ones."""
    if column.dtype.kind != "f":
        return 3
    largest = column.abs().max()
    return 3 if not 0 < largest < 1 else min(6, max(3, 2 - math.floor(math.log10(largest))))


def _cell(row: pd.Series[float], name: str, decimals: int) -> str:
    """Format a number with its interval; a missing one is blank."""
    if math.isnan(row[name]):
        return ""
    return f"{row[name]:.0f}" if name in WHOLE else f"{row[name]:.{decimals}f}{_interval(row, name, decimals)}"


def _value(row: Mapping[Any, Any] | pd.Series[float], name: str, decimals: int) -> str:
    """Format a number with its interval, whole ones without decimals; words as they are, missing values blank."""
    value = row[name]
    if value is None or value != value:
        return ""
    if not isinstance(value, float):
        return str(value)
    number = f"{value:.0f}" if value.is_integer() else f"{value:.{decimals}f}"
    return number + _interval(row, name, decimals)


def _interval(row: Mapping[Any, Any] | pd.Series[float], name: str, decimals: int) -> str:
    low, high = row.get(f"{name}.low", math.nan), row.get(f"{name}.high", math.nan)
    return "" if math.isnan(low + high) else f" [{low:.{decimals}f}, {high:.{decimals}f}]"
