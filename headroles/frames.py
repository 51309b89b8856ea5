"""Frames: tables as colour-graded frames for notebooks, an interval in the cell of its number (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

ENDS = (".low", ".high")


def graded(table: pd.DataFrame, columns: Sequence[str] | None = None, *, decimals: int = 3) -> Styler:
    """Show columns of a table with their intervals in the cells, each column of numbers coloured by its values.

    `columns` are by default all but the ends of intervals. A column with values of both signs is coloured around zero;
    a missing number is an empty cell. Raises KeyError for a column that is not there.
    """
    import seaborn  # registers the colours around zero

    names = [str(name) for name in table if not str(name).endswith(ENDS)] if columns is None else list(columns)
    if missing := [name for name in names if name not in table]:
        raise KeyError(f"no column {', '.join(missing)}; there are: {', '.join(map(str, table))}")
    shown = pd.DataFrame({name: _texts(table, name, decimals) for name in names}, index=table.index).style
    shown = shown.format(escape="html").set_table_styles([{"selector": "td", "props": [("text-align", "right")]}])
    for name in (name for name in names if _is_number(table[name]) and table[name].notna().any()):
        low, high = float(table[name].min()), float(table[name].max())
        far = max(-low, high)
        around = {"cmap": seaborn.color_palette("vlag", as_cmap=True), "vmin": -far, "vmax": far}
        scale: dict[str, Any] = around if low < 0 < high else {"cmap": "YlGnBu"}
        shown = shown.background_gradient(subset=[name], gmap=table[name].astype(float), **scale)
    return shown


def _is_number(values: Any) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _texts(table: pd.DataFrame, name: str, decimals: int) -> list[str]:
    """What the cells of a column say."""
    if not _is_number(table[name]):
        return ["" if value is None else str(value) for value in table[name]]
    places = 0 if pd.api.types.is_integer_dtype(table[name]) else decimals
    ends = [table[name + end] for end in ENDS] if all(name + end in table for end in ENDS) else []
    rows = zip(table[name], *ends, strict=True)
    return [_text(number, interval, places) for number, *interval in rows]


def _text(number: float, interval: Sequence[float], places: int) -> str:
    if pd.isna(number):
        return ""
    known = interval and not any(map(pd.isna, interval))
    return f"{number:.{places}f}" + (" [{:.{d}f}, {:.{d}f}]".format(*interval, d=places) if known else "")
