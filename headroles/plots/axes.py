"""Axes: new figures, legends, lines, stacked bars, colour bars, and the checks of arguments of all plots (no torch)."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from headroles.tables.arguments import one_of
from headroles.tables.frame import LEVELS, Kind, described

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.collections import Collection
    from matplotlib.colorbar import Colorbar
    from matplotlib.container import BarContainer
    from matplotlib.typing import ColorType

Rows = TypeVar("Rows", "pd.Series[float]", pd.DataFrame)
WIDE = 5.0  # inches of axes under which a legend has two columns
Ends = tuple[npt.ArrayLike, npt.ArrayLike]
FEW = 5  # lines of one figure that the eye keeps apart
TITLES = {"enc-self": "encoder self-attention", "dec-self": "decoder self-attention", "cross": "cross-attention"}


def new_axes(
    shape: Sequence[float], *, cell: float = 0, beside: float = 0, below: float = 0, tall: float = 0, panels: int = 1
) -> list[Axes]:
    """Make the axes of a new figure: rows and columns of `cell` inches; `beside` and `below`, inches for a legend."""
    import matplotlib.pyplot as plt

    cell = cell or float(np.clip(7 / max(shape), 0.28, 0.55))
    size = (panels * (shape[1] * cell + 0.5) + 0.8 + beside, max(shape[0] * cell + 1 + below, tall))
    return list(plt.subplots(1, panels, figsize=size, layout="constrained", squeeze=False)[1][0])


def evenly(items: Sequence[Any], count: int = FEW) -> list[Any]:
    """Return at most `count` of the items, evenly spaced, with the first and the last."""
    places = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)
    return [items[place] for place in dict.fromkeys(places.tolist())]


def finish(*axes: Axes, title: str | None = None, reverse: bool = False) -> None:
    """Remove the upper and right edges, and put a legend beside the last axes if anything in them has a label."""
    import seaborn as sns

    for ax in axes:
        sns.despine(ax=ax)
    handles, labels = axes[-1].get_legend_handles_labels()
    if handles:
        step = -1 if reverse else 1
        legend(axes[-1], handles[::step], labels[::step], title=title)


def legend(
    ax: Axes,
    handles: Sequence[Artist | tuple[Artist, ...]],
    labels: Sequence[str],
    *,
    title: str | None = None,
    size: float | None = None,
    below: bool = False,
) -> None:
    """Put a legend to the right of the axes, or below them, in two columns where there is room."""
    from matplotlib.legend_handler import HandlerTuple

    wide = ax.get_window_extent().width / ax.figure.dpi > WIDE

    ax.legend(
        handles, labels, title=title, fontsize=size, handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
        loc="upper left", bbox_to_anchor=(0, -0.5 / height(ax)) if below else (1.01, 1), borderaxespad=0,
        frameon=False, ncols=2 if below and wide else 1,
    )  # fmt: skip


def line(
    ax: Axes,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    color: ColorType,
    label: str,
    ends: Ends | None = None,
    style: str = "-",
    marker: str = "o",
) -> None:
    """Draw a line with markers, and a band between the ends of its intervals."""
    ax.plot(x, y, style, color=color, marker=marker, markersize=4, label=label)
    if ends is not None:
        ax.fill_between(x, *ends, color=color, alpha=0.15, linewidth=0)


def stack(
    ax: Axes,
    places: npt.ArrayLike,
    parts: pd.DataFrame,
    colours: Mapping[str, ColorType],
    *,
    labels: Mapping[str, str] | None = None,
    across: bool = False,
) -> list[BarContainer]:
    """Draw stacked bars, one column of `parts` after another; negative values stack on the other side of zero."""
    draw, bars = ax.barh if across else ax.bar, []
    above, below = np.zeros(len(parts)), np.zeros(len(parts))
    for name in map(str, parts):
        width, label = parts[name].to_numpy(float), (labels or {}).get(name, name)
        bars.append(draw(places, width, 0.8, np.where(width < 0, below, above), color=colours[name], label=label))
        above, below = above + width.clip(min=0), below + width.clip(max=0)
    return bars


def colour_bar(ax: Axes, mesh: Collection, label: str) -> Colorbar:
    """Draw a colour bar, a sixth of an inch wide, its label wrapped to its length."""
    lay_out(ax)
    aspect = max(3.0, 6 * ax.get_window_extent().height / ax.figure.dpi)
    bar = ax.figure.colorbar(mesh, ax=ax, aspect=aspect, pad=0.02)
    if len(label) > 30:  # the layout takes time
        letters = max(int((points(bar) + 45) / 5.5), 12)
        lines = (textwrap.fill(line, letters, break_on_hyphens=False) for line in label.splitlines())
        label = "\n".join(lines)
    bar.set_label(label)
    return bar


def height(ax: Axes) -> float:
    """Return the height of axes in inches."""
    lay_out(ax)
    return float(ax.get_window_extent().height / ax.figure.dpi)


def points(bar: Colorbar) -> float:
    """Return the length of a colour bar in points."""
    return 72 * height(bar.ax)


def lay_out(ax: Axes) -> None:
    """Compute the layout of the figure of `ax` without rendering it."""
    if figure := ax.get_figure(root=True):
        figure.draw_without_rendering()


def of_kind(table: Rows, kind: Kind | None) -> tuple[Rows, Kind]:
    """Return the rows of one kind, indexed by layer and head, and that kind; raise ValueError if ambiguous."""
    present = kinds_of(table)
    kind = present[0] if kind is None and len(present) == 1 else cast(Kind, one_of("kind", kind, present))
    return table[table.index.get_level_values("kind") == kind].droplevel("kind"), kind


def kinds_of(table: pd.Series[float] | pd.DataFrame) -> list[Kind]:
    """Return the kinds of a head table; raise ValueError for another table."""
    valid = isinstance(table, pd.Series | pd.DataFrame) and list(table.index.names) == LEVELS
    if not valid or table.empty or table.index.has_duplicates:
        raise ValueError(
            f"not a head table: got {described(table)}; expected one row per head, indexed by kind, layer and head"
        )
    return list(table.index.unique("kind"))


def any_of(rows: pd.DataFrame, lacking: str) -> pd.DataFrame:
    """Return the rows that are drawn; raise ValueError if there are none, with what is lacking."""
    if rows.empty:
        raise ValueError(f"nothing to draw: {lacking}")
    return rows


def needs(table: pd.DataFrame, columns: set[str], made_by: str) -> None:
    """Raise ValueError unless `table` has these columns."""
    if not isinstance(table, pd.DataFrame) or not columns <= set(table):
        raise ValueError(
            f"not a table of {made_by}: got {described(table)}; expected columns {', '.join(sorted(columns))}"
        )


def font(ax: Axes, shape: Sequence[float], text: str, share: float = 1.0) -> float:
    """Return the font size, at most 9 points, that fits a share of a cell's height; 0 if unreadable."""
    box = ax.get_window_extent()
    wide, high = 72 / ax.figure.dpi * box.width / shape[1], 72 / ax.figure.dpi * box.height / shape[0]
    size = min(9, wide / (0.72 * max(len(text), 1)), share * high / 1.2)
    return float(size) if size >= 4 else 0.0
