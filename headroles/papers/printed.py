"""What the papers print: their numbers, from the files beside this one, and ours beside them (no torch)."""

from __future__ import annotations

from importlib.resources import files

import pandas as pd


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
