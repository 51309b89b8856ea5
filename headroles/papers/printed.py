"""What the papers print: their numbers, from the files beside this one, and ours beside them (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

import pandas as pd

from headroles.heads import KINDS


def printed(name: str) -> pd.DataFrame:
    """The numbers of one artefact, as `voita2019-fig7`; `attrs["source"]` says where they are from.

    Raises FileNotFoundError, with what there is, for another name.
    """
    folder = files("headroles.papers") / "numbers"
    file = folder / f"{name}.csv"
    if not file.is_file():
        known = ", ".join(sorted(one.name.removesuffix(".csv") for one in folder.iterdir()))
        raise FileNotFoundError(f"no numbers of {name!r}; there are: {known}")
    with file.open(encoding="utf-8") as lines:
        source = lines.readline().removeprefix("#").strip()
        table = pd.read_csv(lines)
    table.attrs["source"] = source
    return table


def beside(ours: pd.DataFrame, name: str, on: str | list[str]) -> pd.DataFrame:
    """Our rows with the paper's numbers of the same."""
    theirs = printed(name)
    found = ours.merge(theirs, on=on, how="left")
    found.attrs = {**ours.attrs, "source": theirs.attrs["source"]}
    return found


def aligned(ours: pd.DataFrame, theirs: pd.DataFrame, on: Sequence[str] = ("heads", "of")) -> pd.DataFrame:
    """All rows of both, from the most heads left to the fewest; those of models of other sizes below."""
    found = ours.merge(theirs, on=[*on], how="outer")
    found["alike"] = found["of"] == ours["of"].max()
    found = found.sort_values(["alike", "heads"], ascending=False, ignore_index=True).drop(columns="alike")
    found.attrs = {**ours.attrs, "source": theirs.attrs["source"]}
    return found


def of_wmt(name: str) -> pd.DataFrame:
    """The rows of Voita's larger corpus, with how many heads are left."""
    rows = printed(name).query("corpus == 'WMT'").drop(columns="corpus").reset_index(drop=True)
    return rows.assign(heads=rows[[*KINDS]].sum(axis=1))
