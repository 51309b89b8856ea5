"""Axes: new figures, font sizes, titles, and the checks of arguments that all plots share (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headroles.tables.frame import LEVELS, Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {"enc-self": "encoder self-attention", "dec-self": "decoder self-attention", "cross": "cross-attention"}
OUTSIDE: dict[str, Any] = {  # place of a legend: beside the axes
    **{"loc": "upper left", "bbox_to_anchor": (1.01, 1), "borderaxespad": 0, "frameon": False},
}


def readable(face: Sequence[float]) -> str:
    """Return the colour of text with the larger contrast on a face (WCAG 2.2, relative luminance)."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in face[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "0.15" if (luminance + 0.05) ** 2 > 1.05 * 0.07 else "white"  # 0.15 has a luminance of 0.02


def new_axes(
    shape: Sequence[float], *, cell: float = 0, panels: int = 1, beside: float = 0, tall: float = 0
) -> list[Axes]:
    """Make the axes of a new figure: panels of rows and columns of `cell` inches, at least `tall` inches high."""
    import matplotlib.pyplot as plt

    cell = cell or float(np.clip(7 / max(shape), 0.28, 0.55))
    size = (panels * (shape[1] * cell + 0.5) + 0.8 + beside, max(shape[0] * cell + 1, tall))
    return list(plt.subplots(1, panels, figsize=size, layout="constrained", squeeze=False)[1][0])


def of_kind(table: Any, kind: Kind | None) -> tuple[Any, Kind]:
    """Return the rows of one kind, indexed by layer and head, and that kind; raise ValueError if ambiguous."""
    present = kinds_of(table)
    if kind not in present and (kind is not None or len(present) > 1):
        raise ValueError(f"no single kind: got kind={kind!r}; expected one of {', '.join(present)}")
    return table.xs(kind or present[0], level="kind"), kind or present[0]


def kinds_of(table: Any) -> list[Kind]:
    """Return the kinds of a head table; raise ValueError for another table."""
    valid = isinstance(table, pd.Series | pd.DataFrame) and list(table.index.names) == LEVELS
    if not valid or table.empty or table.index.has_duplicates:
        raise ValueError(
            f"not a head table: got {said(table)}; expected one row per head, indexed by kind, layer and head"
        )
    return list(table.index.unique("kind"))


def needs(table: Any, columns: set[str], made_by: str) -> None:
    """Raise ValueError unless `table` has these columns."""
    if not isinstance(table, pd.DataFrame) or not columns <= set(table):
        raise ValueError(f"not a table of {made_by}: got {said(table)}; expected columns {', '.join(sorted(columns))}")


def said(argument: object) -> str:
    """Describe an argument for an error message."""
    if not isinstance(argument, pd.Series | pd.DataFrame):
        return f"{argument!r:.60}"
    contents = str(argument.dtype) if isinstance(argument, pd.Series) else ", ".join(map(str, argument)) or "no columns"
    index = ", ".join(map(str, argument.index.names))
    return f"a {type(argument).__name__} ({contents}) with {len(argument)} rows, index {index}"


def font(ax: Axes, shape: Sequence[float], text: str, share: float = 1.0) -> float:
    """Return the font size, at most 9 points, that fits a share of a cell's height; 0 if unreadable."""
    box = ax.get_window_extent()
    wide, high = 72 / ax.figure.dpi * box.width / shape[1], 72 / ax.figure.dpi * box.height / shape[0]
    size = min(9, wide / (0.8 * max(len(text), 1)), share * high / 1.2)
    return float(size) if size >= 4 else 0.0
