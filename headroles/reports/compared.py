"""Two models on a page: roles that are gained and lost, and maps of what each score changes by (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from headroles.analysis.changes import CHANGE, compare_models
from headroles.reports.contents import Entry, Head, along, entry_of
from headroles.reports.sources import Measurement, Studies, Table, columns, places
from headroles.tables.frame import bare, provenance
from headroles.tables.study import Study


def pair(studies: Studies) -> tuple[Path, Path]:
    """Return the two folders that are compared.

    Raises:
        ValueError: For fewer or more.
    """
    folders = list(places(studies).values())
    if len(folders) != 2:
        raise ValueError(
            f"a comparison is of two studies: got {len(folders)}; expected the folders of two models of one shape"
        )
    return folders[0], folders[1]


def compared(folders: tuple[Path, Path], index: Sequence[Head]) -> dict[str, Any]:
    """Collect the facts of two models: their names, roles gained and lost, and the changes of scores."""
    changes = compare_models(*map(Study, folders))
    first, second = places(folders)
    measurements, _ = columns([Table(f"{second} less {first}", "", _differences(changes))])
    maps = [_map(change, index) for change in measurements if change.parts[""].notna().any()]
    roles = along(changes[["gained", "lost", "unsure"]], index)
    return {"first": first, "second": second, "columns": maps, "roles": _roles(roles)}


def _differences(changes: pd.DataFrame) -> pd.DataFrame:
    """The changes of scores, named as the scores, so that they have their label, unit and direction."""
    names = {str(name): str(name).replace(CHANGE, "") for name in changes if CHANGE in str(name)}
    table = bare(changes)[list(names)].rename(columns=names)
    table.attrs["signatures"] = {names[name]: provenance(changes, name) for name in names}
    return table


def _map(change: Measurement, index: Sequence[Head]) -> Entry:
    """The entry of a map, without ranks: a change is no better for being large."""
    return {name: value for name, value in entry_of(change, index).items() if name != "rank"}


def _roles(changes: pd.DataFrame) -> list[dict[str, Any]]:
    """A row for each role that some head gains or loses: its heads in words."""
    rows: dict[str, dict[str, Any]] = {}
    for (kind, layer, head), (gained, lost, unsure) in zip(changes.index, changes.to_numpy(), strict=True):
        place = f"L{layer}H{head}" if changes.index.unique("kind").size == 1 else f"{kind}:{layer}:{head}"
        for what, text in (("gained", gained), ("lost", lost)):
            for name in filter(None, text.split(", ")):
                row = rows.setdefault(name, {"role": name, "gained": [], "lost": []})
                row[what].append(f"{place}{'?' * (name in unsure.split(', '))}")
    return list(rows.values())
