"""Colours, scales and names in figures; tables for notebooks, with colours and intervals (no torch)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from html import escape
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from headroles.analysis import role_rules
from headroles.tables.columns import ENDS, Column, without_ends
from headroles.tables.declared import harm, signature_of

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler


def style_table(table: pd.DataFrame, columns: Sequence[str] | None = None, *, decimals: int = 3) -> Styler:
    """Style columns of a table for a notebook, with intervals and colours.

    Effects, and columns with negative values, are coloured around 0 as by `hr.plots.heatmap`, others from the smallest
    to the largest value. Columns of one unit (shares, effects on one metric) have one scale. Counts and p are not
    coloured; a missing number is an empty cell. Of a table of roles each role is one column, with its score and in
    brackets its stability, coloured where a head has the role.

    Args:
        table: Any table; of roles, as of `hr.roles`.
        columns: Columns to show; by default all but the ends of intervals.
        decimals: Decimals of numbers.

    Returns:
        A pandas Styler.
    """
    import seaborn  # registers diverging colours

    if columns is None and role_rules.names(table):
        return _styled_roles(table)
    names = without_ends(table) if columns is None else list(columns)
    shown = _escaped({name: _texts(table, name, decimals) for name in names}, table.index)
    shown = shown.set_table_styles([{"selector": "td", "props": [("text-align", "right")]}])
    graded = list(filter(partial(_is_graded, table), names))
    for name in graded:
        alike = table[[other for other in graded if _unit(other) == _unit(name)]]
        low, high = float(np.nanmin(alike.to_numpy(float))), float(np.nanmax(alike.to_numpy(float)))
        far = 1.5 * max(-low, high) or 1.0  # keeps texts legible
        worse = harm(name, signature_of(table, name))
        diverges, around_zero = low < 0 or worse != 0, {1: "vlag", -1: "vlag_r", 0: "BrBG"}[worse]  # red is harm
        known = table.loc[table[name].notna(), name].astype(float)
        cells = pd.IndexSlice[known.index, [name]]
        shown = shown.background_gradient(
            seaborn.color_palette(around_zero if diverges else "YlGnBu", as_cmap=True),
            high=0 if diverges else 0.5, vmin=-far if diverges else low, vmax=far if diverges else high,
            subset=cells, gmap=known.to_frame(), text_color_threshold=0.2, axis=None,
        )  # fmt: skip
    return shown


def _styled_roles(table: pd.DataFrame) -> Styler:
    """Style the roles that some head has; other cells are grey."""
    from matplotlib.colors import to_hex

    roles = [name for name in role_rules.names(table) if table[name].any()]
    hues = colours(role_rules.families(table), table)
    parts = {name: zip(table[f"{name}.value"], table[f"{name}.stability"], strict=True) for name in roles}
    texts = {name: [_role(value, stability) for value, stability in cells] for name, cells in parts.items()}

    def style(column: pd.Series[str]) -> list[str]:
        face = hues[Column.parse(column.name).name]
        held = f"background-color: {to_hex(face)}; color: {to_hex(readable(face))}"
        return [held if has else "color: #767676" for has in table[str(column.name)]]

    return _escaped(texts, table.index).apply(style)


def _escaped(texts: dict[str, list[str]], index: pd.Index) -> Styler:
    """Style texts as a table: cells, headings and names are shown as they are, none as HTML."""
    names = [None if name is None else escape(str(name)) for name in index.names]
    shown = pd.DataFrame(texts, index=index.set_names(names)).style.format(escape="html")
    return shown.format_index(escape="html", axis=0).format_index(escape="html", axis=1)


def _role(value: float, stability: float) -> str:
    if pd.isna(value):
        return ""
    return f"{value:.2f}" + ("" if pd.isna(stability) else f" ({stability:.2f})")


def _is_graded(table: pd.DataFrame, name: str) -> bool:
    """Return whether a column is coloured: numbers other than counts and p."""
    plain = Column.parse(name).last in ("p", "holm", "bh") or pd.api.types.is_integer_dtype(table[name])
    return _is_number(table[name]) and not plain and bool(table[name].notna().any())


def _unit(name: str) -> str:
    """Return what a column is measured in: a share, an effect on a metric, or itself."""
    from headroles.plots.labels import column_label

    column = Column.parse(name)
    if column.name == "ablation":
        return f"ablation {(column.words or [''])[0]}"
    return "share" if ", 0 to 1" in column_label(name).about else str(column.base)


def _is_number(values: pd.Series[float]) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _texts(table: pd.DataFrame, name: str, decimals: int) -> list[str]:
    if not _is_number(table[name]):
        return ["" if value is None else str(value) for value in table[name]]
    places = 0 if pd.api.types.is_integer_dtype(table[name]) else decimals
    ends = [table[name + end] for end in ENDS[1:]] if all(name + end in table for end in ENDS) else []
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


RGB = tuple[float, float, float]
GREY = 7  # the place of grey in seaborn's "colorblind"
INDIGO = "#332288"  # of Paul Tol's "muted"; darker than all of them
HUES = {  # what is drawn -> the place of its colour in seaborn's "colorblind", the same in all figures
    **{"enc-self": 0, "dec-self": 1, "cross": 2},
    **{"several": 9, "none": GREY},
}
_OTHERS = (9, 6, GREY)  # of families of the user's own


def scale(
    values: pd.Series[float], vmin: float | None, vmax: float | None, cmap: str | None
) -> tuple[float, float, str]:
    """Choose limits and colours of a heatmap: from 0, or around 0 for costs of ablation and negative values."""
    known = values.astype(float)[np.isfinite(values.astype(float))]
    low, high = min([0.0, *known]), max([0.0, *known])
    high = high if high > low else 1.0
    is_cost = harm(values.name, signature_of(values, values.name)) != 0
    if cmap is None and (low < 0 or is_cost):
        far = max((abs(end) for end in (vmin, vmax) if end is not None), default=max(-low, high)) or 1.0
        return -far, far, "vlag" if is_cost else "BrBG"
    return low if vmin is None else vmin, high if vmax is None else vmax, cmap or "YlGnBu"


def colours(names: Iterable[str], *tables: pd.DataFrame, shade: float = 1) -> dict[str, RGB]:
    """Return the colour of each name, a fixed one of kinds and roles; `tables` declare the colours of the user's roles.

    Lines are thin and take a darker shade.
    """
    others = cycle(_OTHERS)
    places = {name: HUES.get(name, role_rules.role_style(name, *tables).hue) for name in dict.fromkeys(names)}
    return {name: hue(next(others) if place is None else place, shade) for name, place in places.items()}


def hue(place: int, shade: float = 1) -> RGB:
    """Return a colour of seaborn's "colorblind", followed by `INDIGO`, as red, green and blue from 0 to 1."""
    import seaborn as sns

    red, green, blue = [*sns.color_palette("colorblind"), *sns.color_palette([INDIGO])][place]
    return shade * red, shade * green, shade * blue


def readable(face: Sequence[float]) -> str:
    """Return the colour of text with the larger contrast on a face (WCAG 2.2, relative luminance)."""
    from seaborn.utils import relative_luminance

    return "0.15" if (relative_luminance(face) + 0.05) ** 2 > 1.05 * 0.07 else "white"  # 0.15 has a luminance of 0.02
