"""Where a report comes from: the tables of its folders, all of one model, and the columns they have together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from headroles.tables.frame import KINDS, LEVELS
from headroles.tables.study import Study

SHOWN = re.compile(r"heads|roles|relate|attention|curves|(ablation|survival|sizes|gates|curves)-.*")
PARTS = (  # what stands beside a column `c` as `c.low`
    *("low", "high", "p", "holm", "bh", "examples", "words", "open", "turn", "value", "stability"),
    *("baseline", "baseline.low", "baseline.high"),
)
Studies = Study | str | Path | Iterable[Study | str | Path]


class Table(NamedTuple):
    """A table of a report: the folder it is in, under its shortest name that no other folder has, and its own name."""

    folder: str
    name: str
    frame: pd.DataFrame

    @property
    def stem(self) -> str:
        """What its name says it is: heads, ablation, gates ..."""
        return self.name.partition("-")[0]

    @property
    def signatures(self) -> dict[str, str]:
        """Column -> signature."""
        found: dict[str, str] = self.frame.attrs.get("signatures", {})
        return found


class Column(NamedTuple):
    """A measurement of every head: the table that holds it, and what stands beside it there."""

    name: str
    table: Table
    parts: dict[str, pd.Series[Any]]  # "": the values themselves, "low", "p" ...


def gathered(studies: Studies) -> tuple[list[Table], list[str]]:
    """The tables of all folders that a report shows, in order, and the names of those it does not.

    Raises FileNotFoundError for a folder without any, and ValueError for folders of different heads.
    """
    given = [studies] if isinstance(studies, Study | str | Path) else list(studies)
    folders = {path.resolve(): path for path in (one.folder if isinstance(one, Study) else Path(one) for one in given)}
    if not folders:
        raise ValueError("no study to report: give at least one folder of tables")
    names = dict(zip(_shortest(list(folders)), folders.values(), strict=True))
    tables, others = [], []
    for name, folder in names.items():
        study = Study(folder)
        shown = [table for table in study.names() if SHOWN.fullmatch(table)]
        if not shown:
            raise FileNotFoundError(
                f"nothing to report in {folder}; make tables with headroles score or headroles ablate"
            )
        tables += [Table(name, table, study.load(table)) for table in shown]
        others += [f"{name}/{table}" for table in study.names() if table not in shown]
    _check_heads(tables, names)
    return tables, others


def columns(tables: Iterable[Table]) -> tuple[list[Column], list[tuple[str, Table]]]:
    """The columns of tables of heads; a later table adds those the earlier ones lack. Second: those that were there."""
    found: dict[str, Column] = {}
    again = []
    for table in tables:
        names = list(map(str, table.frame))
        parts = {f"{name}.{part}" for name in names for part in PARTS} & set(names)
        for name in (name for name in names if name not in parts):
            if name in found:
                again.append((name, table))
            elif pd.api.types.is_numeric_dtype(table.frame[name]):
                beside = {part: table.frame[f"{name}.{part}"] for part in PARTS if f"{name}.{part}" in parts}
                found[name] = Column(name, table, {"": table.frame[name], **beside})
    return list(found.values()), again


def heads_of(tables: Iterable[Table]) -> list[tuple[str, int, int]]:
    """The heads that the tables are of, in our order of kinds."""
    sets = (_own(table) for table in sorted(tables, key=lambda table: table.stem == "gates"))
    found = next((own for own in sets if own), set())  # gates are of the heads that may go only
    return sorted(found, key=lambda head: ([*KINDS, head[0]].index(head[0]), head[1], head[2]))


def _shortest(folders: list[Path]) -> list[str]:
    """The last parts of each path, as few as tell it from the others."""
    for depth in range(1, max(len(folder.parts) for folder in folders)):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _check_heads(tables: list[Table], folders: dict[str, Path]) -> None:
    """Raise for tables of another model: whose heads are others."""
    with_heads = sorted((table for table in tables if _own(table)), key=lambda table: table.stem == "gates")
    for table in with_heads[1:]:
        first, own = _own(with_heads[0]), _own(table)
        if first != own and not (table.stem == "gates" and own < first):  # gates are of the heads that may go
            raise ValueError(
                f"{folders[with_heads[0].folder]} ({with_heads[0].name}) and {folders[table.folder]} ({table.name}) "
                f"are of different heads: {len(first)} and {len(own)}, {len(first & own)} in common; "
                "a report is of one model"
            )


def _own(table: Table) -> set[tuple[str, int, int]]:
    """The heads of a table, none where it has no row for each."""
    frame = table.frame
    if list(frame.index.names) == LEVELS:
        rows: Any = frame.index
    elif table.stem in ("gates", "attention"):
        rows = frame[LEVELS].drop_duplicates().itertuples(index=False, name=None)
    else:
        rows = ()
    return {(str(kind), int(layer), int(head)) for kind, layer, head in rows}
