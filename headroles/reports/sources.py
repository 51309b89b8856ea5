"""Sources of a report: the tables of its folders, all of one model, and their columns (no torch)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from headroles.tables.columns import Column, table_of
from headroles.tables.columns import Table as TableKind
from headroles.tables.frame import KINDS, LEVELS
from headroles.tables.study import Study

PARTS = (  # companions of a column `c`, such as `c.low`
    *("low", "high", "p", "holm", "bh", "examples", "words", "open", "order", "value", "stability"),
    *("baseline", "baseline.low", "baseline.high"),
)
Studies = Study | str | Path | Iterable[Study | str | Path]


class Table(NamedTuple):
    """A table of a report, its name, and the shortest unique name of its folder."""

    folder: str
    name: str
    frame: pd.DataFrame

    @property
    def kind(self) -> TableKind:
        """The kind of the table: where it is shown, whether it has a row for each head."""
        return table_of(self.name)

    @property
    def signatures(self) -> dict[str, str]:
        """Column -> signature."""
        texts: dict[str, str] = self.frame.attrs.get("signatures", {})
        return texts


class Measurement(NamedTuple):
    """A measurement of every head, with its table and its companion columns."""

    name: str
    table: Table
    parts: dict[str, pd.Series[float]]  # "": the values themselves, "low", "p" ...


def gathered(studies: Studies) -> tuple[list[Table], list[str]]:
    """Load the tables that a report of these studies shows, in order, and name the tables that it does not."""
    names = places(studies)
    tables, others = [], []
    for name, folder in names.items():
        study = Study(folder)
        shown = [table for table in study.names() if table_of(table).part]
        if not shown:
            raise study.lacks("tables to report")
        tables += [Table(name, table, study.load(table)) for table in shown]
        others += [f"{name}/{table}" for table in study.names() if table not in shown]
    _check_heads(tables, names)
    return tables, others


def places(studies: Studies) -> dict[str, Path]:
    """Return the folders of studies, each once, by their shortest unique names; raise ValueError for none."""
    several = [studies] if isinstance(studies, Study | str | Path) else list(studies)
    paths = [study.folder if isinstance(study, Study) else Path(study) for study in several]
    folders = {path.resolve(): path for path in paths}
    if not folders:
        raise ValueError("studies must be at least one folder of tables, got none")
    return dict(zip(_shortest(list(folders)), folders.values(), strict=True))


def columns(tables: Iterable[Table]) -> tuple[list[Measurement], list[tuple[str, Table]]]:
    """Collect the columns of head tables, the first of each name, and the repeated names."""
    collected: dict[str, Measurement] = {}
    duplicates = []
    for table in tables:
        names = dict.fromkeys(map(str, table.frame))
        for name in names:
            column = Column.parse(name)
            if column.suffix not in ("", "size") and str(column.base) in names:
                continue  # it belongs to that column
            if name in collected:
                duplicates.append((name, table))
            elif pd.api.types.is_numeric_dtype(table.frame[name]):
                companions = {part: table.frame[f"{name}.{part}"] for part in PARTS if f"{name}.{part}" in names}
                collected[name] = Measurement(name, table, {"": table.frame[name], **companions})
    return list(collected.values()), duplicates


def heads_of(tables: Iterable[Table]) -> list[tuple[str, int, int]]:
    """Return the heads of the tables, in the order of KINDS."""
    sets = (_heads(table) for table in sorted(tables, key=lambda table: table.kind.part == "gates"))
    heads = next((part for part in sets if part), set())  # gates last: they are of prunable heads only
    return sorted(heads, key=lambda head: ([*KINDS, head[0]].index(head[0]), head[1], head[2]))


def _shortest(folders: list[Path]) -> list[str]:
    """Return the last parts of each path, as few as make it unique."""
    for depth in range(1, max(len(folder.parts) for folder in folders)):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _check_heads(tables: list[Table], folders: dict[str, Path]) -> None:
    """Raise ValueError for tables of models with other heads; gates may cover only the prunable heads."""
    known = {*heads_of(tables)}
    for table in tables:
        heads = _heads(table)
        if heads - known or (heads and heads != known and table.kind.part != "gates"):
            raise ValueError(
                f"tables must be of the heads of one model, got {folders[table.folder]} ({table.name}) with "
                f"{len(heads)} heads, {len(heads & known)} of them among the {len(known)} of the other tables"
            )


def _heads(table: Table) -> set[tuple[str, int, int]]:
    """Return the heads of a table; empty if it has no rows per head."""
    frame = table.frame
    if list(frame.index.names) == LEVELS:
        frame = frame.index.to_frame()
    elif table.kind.part not in ("gates", "attention"):
        return set()
    rows = frame[LEVELS].drop_duplicates().itertuples(index=False, name=None)
    return {(str(kind), int(layer), int(head)) for kind, layer, head in rows}
