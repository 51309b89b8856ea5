"""Places of tables: a table itself, its file, or a study with all its scores; several are joined (no torch)."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from headroles.tables import frame
from headroles.tables.io import load_table
from headroles.tables.study import Study

Place = pd.DataFrame | Study | str | Path
log = logging.getLogger(__name__)


def table_at(place: Place, name: str = "") -> pd.DataFrame:
    """Return a table, that of a file, or the table `name` of a study; without a name all its scores, joined."""
    if isinstance(place, pd.DataFrame):
        return place
    if not isinstance(place, Study) and Path(place).is_file():
        return load_table(place)
    study = place if isinstance(place, Study) else Study(place)
    return study.load(name) if name else study.scores()


def tables_at(places: Place | Sequence[Place]) -> pd.DataFrame:
    """Join the columns of several places, each once; columns of several seeds are averaged."""
    if isinstance(places, pd.DataFrame):
        return places
    tables: list[pd.DataFrame] = []
    for place in [places] if isinstance(places, Study | str | Path) else places:
        table = table_at(place)
        repeated = [name for earlier in tables for name in earlier if name in table]
        if repeated:
            log.info("%s: %d columns of an earlier study are left out", place, len(repeated))
        table = frame.only(table, [name for name in map(str, table) if name not in repeated])
        if table.shape[1]:
            tables.append(table)
    return _over_seeds(frame.join(*tables))


def _over_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """Average columns that differ only by a seed, as in `survival[random 36 seed 0]`."""
    seeds: dict[str, list[str]] = {}
    unseeded = []
    for name in map(str, table):
        if (short := re.sub(r" seed \d+(?=\])", "", name)) != name:
            seeds.setdefault(short, []).append(name)
        else:
            unseeded.append(name)
    rest = frame.only(table, unseeded)
    means = {name: table[columns].mean(axis=1) for name, columns in seeds.items()}
    signed = {name: f"{frame.provenance(table, columns[0])}|seeds:{len(columns)}" for name, columns in seeds.items()}
    return frame.join(*filter(len, [rest] if not means else [rest, frame.table(means, frame.rows(table), signed)]))
