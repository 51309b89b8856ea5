"""Places of tables: a table itself, its file, or a study with all its scores; several are joined (no torch)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from headroles.tables import frame
from headroles.tables.columns import Column
from headroles.tables.io import load_table
from headroles.tables.study import Study

Place = pd.DataFrame | Study | str | Path
log = logging.getLogger(__name__)


def as_table(place: Place, name: str = "") -> pd.DataFrame:
    """Return a table, that of a file, or the table `name` of a study; without a name all its scores, joined."""
    if isinstance(place, pd.DataFrame):
        return place
    if not isinstance(place, Study) and Path(place).is_file():
        return load_table(place)
    study = place if isinstance(place, Study) else Study(place)
    return study.load(name) if name else study.scores()


def as_tables(places: Place | Sequence[Place]) -> pd.DataFrame:
    """Join the columns of several places, each once; columns of several seeds are averaged."""
    if isinstance(places, pd.DataFrame):
        return places
    tables: list[pd.DataFrame] = []
    for place in [places] if isinstance(places, Study | str | Path) else places:
        table = as_table(place)
        repeated = [name for earlier in tables for name in earlier if name in table]
        if repeated:
            log.info("%s: %d columns of an earlier study are left out", place, len(repeated))
        table = frame.only(table, [name for name in map(str, table) if name not in repeated])
        if table.shape[1]:
            tables.append(table)
    return _over_seeds(frame.join(*tables))


def kept_heads(text: str) -> pd.Series[float] | None:
    """Return the column FILE:COLUMN of a survival table; None for a text of heads such as enc-self:0:2,cross:1:0.

    Args:
        text: What names the heads; a file is a table with the suffix .parquet.

    Returns:
        1 for each head that is kept, 0 for each that is pruned.

    Raises:
        ValueError: If a head is not of that form, or the table has no such column, or several and none is named.
    """
    file, mark, column = text.partition(".parquet")
    if not mark:
        for part in text.split(","):
            frame.parsed_head(part)
        return None
    table = load_table(f"{file}{mark}")
    columns = [name for name in map(str, table) if Column.parse(name).suffix not in ("open", "order")]
    columns = [name for name in columns if set(table[name].unique()) <= {0.0, 1.0}]
    name = column.removeprefix(":") or (columns[0] if len(columns) == 1 else "")
    if name in columns:
        return table[name]
    if not columns:
        raise ValueError(
            f"{file}{mark} has no column of kept (1) and pruned (0) heads; give a table of headroles prune"
        )
    what = f"no column {name!r} of pruned heads" if name else f"{len(columns)} columns of pruned heads"
    raise ValueError(f"{what} in {file}{mark}; name one of {', '.join(columns)}, as {file}{mark}:{columns[0]}")


def _over_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """Average columns that differ only by a seed, as in `survival[random 36 seed 0]`."""
    seeds: dict[str, list[str]] = {}
    unseeded = []
    for name in map(str, table):
        if (short := str(Column.parse(name).without_seed)) != name:
            seeds.setdefault(short, []).append(name)
        else:
            unseeded.append(name)
    rest = frame.only(table, unseeded)
    means = {name: table[columns].mean(axis=1) for name, columns in seeds.items()}
    signed = {name: f"{frame.provenance(table, columns[0])}|seeds:{len(columns)}" for name, columns in seeds.items()}
    return frame.join(*filter(len, [rest] if not means else [rest, frame.table(means, frame.rows(table), signed)]))
