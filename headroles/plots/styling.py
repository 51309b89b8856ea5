"""Styled tables for notebooks: colour-graded columns, an interval in the cell of its number (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from headroles.analysis import role_rules
from headroles.plots.scales import colours, harm, palette, readable

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

ENDS = (".low", ".high")


def style_table(table: pd.DataFrame, columns: Sequence[str] | None = None, *, decimals: int = 3) -> Styler:
    """Style columns of a table for a notebook, with intervals and colours.

    Effects, and columns with negative values, are coloured around 0 as by `hr.plots.heatmap`, other columns from their
    smallest to their largest value. Counts and p are not coloured; a missing number is an empty cell. Of a table of
    roles each role is one column, with its score and in brackets its stability, coloured where a head has the role.

    Args:
        table: Any table; of roles, as of `hr.roles`.
        columns: Columns to show; by default all but the ends of intervals.
        decimals: Decimals of numbers.

    Returns:
        A pandas Styler.

    Raises:
        KeyError: If a column does not exist.
    """
    import seaborn  # registers diverging colours

    if columns is None and role_rules.names(table):
        return _styled_roles(table)
    names = [str(name) for name in table if not str(name).endswith(ENDS)] if columns is None else list(columns)
    if missing := [name for name in names if name not in table]:
        raise KeyError(f"no column {', '.join(missing)}: got {', '.join(map(str, table))}")
    shown = pd.DataFrame({name: _texts(table, name, decimals) for name in names}, index=table.index).style
    shown = shown.format(escape="html").set_table_styles([{"selector": "td", "props": [("text-align", "right")]}])
    for name in filter(partial(_is_graded, table), names):
        low, high = float(table[name].min()), float(table[name].max())
        far = 1.5 * max(-low, high) or 1.0  # keeps texts legible
        diverges = low < 0 or harm(name) != 0
        known = table.loc[table[name].notna(), name].astype(float)
        cells = pd.IndexSlice[known.index, [name]]
        shown = shown.background_gradient(
            seaborn.color_palette(palette(name) if diverges else "YlGnBu", as_cmap=True),
            high=0 if diverges else 0.5, vmin=-far if diverges else None, vmax=far if diverges else None,
            subset=cells, gmap=known.to_frame(), text_color_threshold=0.2, axis=None,
        )  # fmt: skip
    return shown


def _styled_roles(table: pd.DataFrame) -> Styler:
    """Style the roles that some head has; other cells are grey."""
    from matplotlib.colors import to_hex

    roles = [name for name in role_rules.names(table) if table[name].any()]
    hues = colours(name.partition("[")[0] for name in role_rules.names(table))
    parts = {name: zip(table[f"{name}.value"], table[f"{name}.stability"], strict=True) for name in roles}
    texts = {name: [_role(value, stability) for value, stability in cells] for name, cells in parts.items()}

    def style(column: pd.Series[str]) -> list[str]:
        face = hues[str(column.name).partition("[")[0]]
        held = f"background-color: {to_hex(face)}; color: {to_hex(readable(face))}"
        return [held if has else "color: #767676" for has in table[str(column.name)]]

    return pd.DataFrame(texts, index=table.index).style.format(escape="html").apply(style)


def _role(value: float, stability: float) -> str:
    if pd.isna(value):
        return ""
    return f"{value:.2f}" + ("" if pd.isna(stability) else f" ({stability:.2f})")


def _is_graded(table: pd.DataFrame, name: str) -> bool:
    """Whether a column is coloured: numbers other than counts and p."""
    plain = name.rpartition(".")[2] in ("p", "holm", "bh") or pd.api.types.is_integer_dtype(table[name])
    return _is_number(table[name]) and not plain and bool(table[name].notna().any())


def _is_number(values: pd.Series[float]) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _texts(table: pd.DataFrame, name: str, decimals: int) -> list[str]:
    if not _is_number(table[name]):
        return ["" if value is None else str(value) for value in table[name]]
    places = 0 if pd.api.types.is_integer_dtype(table[name]) else decimals
    ends = [table[name + end] for end in ENDS] if all(name + end in table for end in ENDS) else []
    rows = zip(table[name], *ends, strict=True)
    return [_text(number, interval, places) for number, *interval in rows]


def _text(number: float, interval: Sequence[float], places: int) -> str:
    if pd.isna(number):
        return ""
    text = f"{number:.{places}f}"
    if number > 0 and not float(text):
        text = f"<{10**-places:.{places}f}"
    known = interval and not any(map(pd.isna, interval))
    return text + (" [{:.{d}f}, {:.{d}f}]".format(*interval, d=places) if known else "")
