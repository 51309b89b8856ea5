"""Maps of layers x heads: one measurement, or the roles of each head, one cell per head (no torch).

Layers go up, heads to the right. A model of many layers would be a narrow column: there, layers go to the right.
"""

from __future__ import annotations

import textwrap
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from headroles.analysis.role_rules import SINKS, STABLE, families, listed, names, prefer_nosink_roles, role_style
from headroles.plots.axes import TITLES, colour_bar, font, kinds_of, lay_out, legend, new_axes, of_kind
from headroles.plots.labels import BY, label_of, unit_label
from headroles.plots.styling import RGB, colours, readable, scale
from headroles.tables.arguments import one_of
from headroles.tables.columns import Column
from headroles.tables.declared import RELATIONS, costs, groups, signature_of
from headroles.tables.frame import LEVELS, Kind, described

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

DEEP = 16  # layers; where there are more, they go to the right
WIDTH = 7.5  # inches of these maps, as of a page
NARROW = 3.5  # inches of a map, from which its legend is below it
CELL = 0.46  # inches of a cell of roles; larger cells leave their texts smaller on a phone, where the map is scaled
MANY = 256  # heads; where there are more, sinks are marks in the corners of cells
CORNER, MARK = 0.32, "0.62"  # of a cell, and the grey of the mark


def heatmap(
    values: pd.Series[float],
    *,
    kind: Kind | None = None,
    order: Literal["head", "sorted"] = "head",
    annotate: pd.Series[str] | Literal[True] | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    cmap: str | None = None,
    label: str | None = None,
    cbar: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Draw one measurement as layers x heads, layer 0 at the bottom, or at the left for more than 16 layers.

    The title is the measurement and the kind of attention. Missing heads stay blank, heads without a value are hatched.
    Lines separate groups of query heads that share keys and values. Effects of ablation are drawn as costs: above 0,
    and red, is harm by every metric.

    Args:
        values: A column of a head table.
        kind: The kind of attention; may be left out if the table has one kind.
        order: "head", or "sorted" for the heads of each layer in descending order (Voita et al. 2019, Fig. 1a).
        annotate: True writes the values into the cells; a series writes its texts.
        vmin: Lower end of the scale. The whole column has one scale, also if one `kind` is drawn.
        vmax: Upper end of the scale.
        cmap: Colour map. By default the scale begins at 0. It diverges around 0 for negative values and for costs.
        label: Label of the colour bar, its first line the title; by default the column in words, with its unit.
        cbar: Whether to draw the colour bar.
        ax: Axes to draw on; by default a new figure.

    Example:
        >>> import headroles as hr
        >>> heads = hr.load_table("study/heads.parquet")  # doctest: +SKIP
        >>> hr.plots.heatmap(heads["confidence"], kind="enc-self")  # doctest: +SKIP
    """
    check_numbers(values)
    values = costs(values)
    part, kind = of_kind(values, kind)
    texts = values.astype(float).map("{:z.2f}".format).str.replace("-", "−") if annotate is True else annotate
    notes = None if texts is None else of_kind(texts.to_frame("text"), kind)[0]["text"].reindex(part.index).fillna("")
    cells = _ordered(pd.DataFrame({"value": part.astype(float), "text": notes}), order)
    grid = _grid(cells["value"])
    low, high, cmap = scale(values, vmin, vmax, cmap)
    shape, cell = _size(grid)
    ax = ax or new_axes(shape, cell=cell)[0]
    _layers(ax, grid, kind, cmap=cmap, vmin=low, vmax=high)
    name, signature = values.name or "", signature_of(values, values.name)
    label = f"{label_of(name, signature)}\n{unit_label(name, signature)}".strip() if label is None else label
    letters = max(int(ax.get_window_extent().width / ax.figure.dpi / 0.1), 20)  # of a line of the title
    titles = [*textwrap.wrap(label.partition("\n")[0], letters, break_on_hyphens=False), TITLES[kind]]
    ax.set_title("\n".join(titles))
    starts = _starts_of_groups(values, kind) if order == "head" else []
    if starts:
        (ax.set_ylabel if _is_deep(grid) else ax.set_xlabel)("head (lines part groups with one key-value head)")
    for start, head in starts:
        (ax.hlines if _is_deep(grid) else ax.vlines)(head, start, start + 1, color="0.2", linewidth=1.2)
    if order == "sorted":
        axis = ax.yaxis if _is_deep(grid) else ax.xaxis
        axis.set_label_text("rank in the layer")
        axis.set_ticks(axis.get_ticklocs(), axis.get_ticklocs().astype(int) + 1)
    layer, place = cells.index[cells["value"].isna()].to_frame().to_numpy(float).T
    x, y = (layer, place) if _is_deep(grid) else (place, layer)
    ax.bar(x + 0.5, 1, 1, y, color="0.95", edgecolor="0.7", hatch="////", linewidth=0)
    if cbar:
        colour_bar(ax, ax.collections[0], label)
    if notes is not None:
        _write(ax, grid, cells["text"])
    return ax


def _starts_of_groups(values: pd.Series[float], kind: Kind) -> list[tuple[int, int]]:
    """Return (layer, head) of each head that starts a key-value group; none if no keys and values are shared."""
    shared = groups(values)
    places: dict[Any, int] = {} if shared is None else shared.xs(kind, level="kind").to_dict()
    if all(group == head for (_, head), group in places.items()):
        return []
    return [(layer, head) for (layer, head), group in places.items() if places.get((layer, head - 1), group) != group]


def heatmaps(values: pd.Series[float], **options: Any) -> list[Axes]:
    """Draw the heatmap of each kind that has values, side by side on one scale.

    Args:
        values: A column of a head table.
        **options: Options of `heatmap`.
    """
    check_numbers(values)
    known = values.dropna()
    kinds, indices = kinds_of(known), (known.index.get_level_values(level) for level in ("layer", "head"))
    grid = _grid(pd.Series(0.0, index=pd.MultiIndex.from_arrays([*indices]).unique()))
    shape, cell = _size(grid)
    axes = new_axes(shape, cell=cell, panels=len(kinds))
    for kind, ax in zip(kinds, axes, strict=True):
        heatmap(values, kind=kind, ax=ax, cbar=ax is axes[-1], **options)
    return axes


def roles(table: pd.DataFrame, *, kind: Kind | None = None, legend: bool = True, ax: Axes | None = None) -> Axes:
    """Draw the roles of each head: a cell per head, a band per role.

    The hue is the role's family, the strength of the colour its score from 0 to 1. Roles with one text (sink[first] and
    sink[special]) are one band, of the larger score. Italics and "?" mark a role that is found in fewer than 95 % of
    the resamples; a head without a role is pale grey (after Voita et al. 2019, Fig. 1c).

    Where roles are also assigned without the sink, these are drawn, and a sink is only a mark in the corner of its
    cell. Of more than 16 layers, layer 0 is at the left. There, and of more than 256 heads, sinks are such marks, too,
    texts are of three letters, and the legend names the five strongest heads of each family.

    Args:
        table: Table of `hr.roles`.
        kind: The kind of attention; may be left out if the table has one kind.
        legend: Whether to draw the legend.
        ax: Axes to draw on; by default a new figure.
    """
    given, table = table, prefer_nosink_roles(table)
    part, kind = of_kind(table, kind)
    variants = families(table).items()
    known = [family for family, named in variants if part[[f"{name}.value" for name in named]].notna().any(axis=None)]
    hues = colours(known, table)
    bands, grid = _bands(table, kind), _grid(pd.Series(0.0, index=part.index))
    deep = _is_deep(grid)
    crowded = deep or len(part) > MANY
    quiet = crowded or len(names(table)) < len(names(given))
    shape, cell = _size(grid)
    if ax is None:
        cell = cell or CELL
        under = crowded or shape[1] * cell >= NARROW
        room: dict[str, Any] = (
            {"below": 0.36 * len(hues) + 0.8} if under else {"beside": 3.2, "tall": 0.22 * len(hues) + 1.6}
        )
        ax = new_axes(shape, cell=cell, **room if legend else {})[0]
    _layers(ax, grid, kind, cmap=["0.93"], linewidths=0.5 if crowded else 1.5)
    if legend:
        under = crowded or ax.get_window_extent().width / ax.figure.dpi >= NARROW - 0.7
        _explain(ax, bands, hues, table, len(part), crowded=crowded, quiet=quiet, below=under)
    sinks = bands["family"].isin(SINKS) & quiet
    for band in _stacked(bands[~sinks], deep=deep).to_dict("records"):
        _draw(ax, band, hues[band["family"]], shape, short=crowded)
    _mark(ax, bands[sinks], deep=deep)
    ax.set_title(f"roles of heads, {TITLES[kind]}")
    return ax


def _draw(ax: Axes, band: Mapping[Hashable, Any], colour: RGB, shape: Sequence[int], *, short: bool) -> None:
    """Draw a band of a cell and its text; a `short` text has three letters and at least 5 points."""
    strength = 0.15 + 0.85 * min(max(band["value"], 0), 1)
    face = [1 - strength * (1 - part) for part in colour]
    ax.bar(band["x"], band["height"], 0.92, band["bottom"], color=face, edgecolor="white", linewidth=0.6)
    text = band["text"][:3] if short and band["text"].isalpha() else band["text"]
    text, style = (f"{text}?", "italic") if band["unsure"] else (text, "normal")
    size = font(ax, shape, text, band["height"])
    if size >= 5 * short and size:
        place = band["x"], band["bottom"] + band["height"] / 2
        ax.text(*place, text, ha="center", va="center", color=readable(face), fontsize=size, fontstyle=style)


def check_numbers(values: object) -> None:
    """Raise ValueError for values that cannot be drawn."""
    if not isinstance(values, pd.Series) or not pd.api.types.is_numeric_dtype(values):
        raise ValueError(f"not a column of numbers: got {described(values)}; expected one such as heads['confidence']")
    if values.isna().all():
        raise ValueError(f"nothing to draw: {values.name!r} has no value for any of {len(values)} heads")


def _ordered(cells: pd.DataFrame, order: str) -> pd.DataFrame:
    """Return rows by layer and place from 0, in descending order of value if `order` is "sorted"."""
    if one_of("order", order, ("head", "sorted")) == "sorted":
        cells = cells.sort_values("value", ascending=False, kind="stable")
        cells.index = pd.MultiIndex.from_arrays([cells.index.get_level_values(0), cells.groupby("layer").cumcount()])
    return cells


def _grid(values: pd.Series[float]) -> pd.DataFrame:
    """Return values by layer and place as a grid from layer 0 and place 0."""
    deep, wide = (values.index.get_level_values(level).max() + 1 for level in (0, 1))
    return values.unstack().reindex(index=range(deep), columns=range(wide))


def _size(grid: pd.DataFrame) -> tuple[tuple[int, int], float]:
    """Return the rows and columns to draw, and the size of a cell in inches; 0 for the default."""
    return ((grid.shape[1], grid.shape[0]), max(WIDTH / max(grid.shape), 0.09)) if _is_deep(grid) else (grid.shape, 0)


def _is_deep(grid: pd.DataFrame) -> bool:
    return len(grid) > DEEP


def _layers(ax: Axes, grid: pd.DataFrame, kind: Kind, *, linewidths: float = 0.5, **colours: Any) -> None:
    """Draw a seaborn heatmap with layer 0 at the bottom, or at the left if there are many layers."""
    import seaborn as sns

    deep = _is_deep(grid)
    ax.figure.set_visible(False)  # seaborn draws the whole figure to rotate labels, which stay upright here
    sns.heatmap(grid.T if deep else grid, cbar=False, ax=ax, linewidths=linewidths, **colours)
    ax.figure.set_visible(True)
    ax.invert_yaxis()
    ax.tick_params(rotation=0, length=0, labelsize=7 if max(grid.shape) > 40 else None)
    ax.set(title=TITLES[kind], xlabel="layer" if deep else "head", ylabel="head" if deep else "layer")


def _write(ax: Axes, grid: pd.DataFrame, texts: pd.Series[str]) -> None:
    """Write texts into the cells that have a value, in one size, if it can be read."""
    size = min(font(ax, _size(grid)[0], text) for text in texts)
    faces = ax.collections[0].to_rgba(grid.to_numpy())  # [layer, place, 4]
    layers, places = (texts.index.get_level_values(level) for level in (0, 1))
    for layer, place, text in zip(layers, places, texts, strict=True) if size else []:
        if pd.notna(grid.to_numpy()[layer, place]):
            color = readable(faces[layer, place])
            x, y = (layer, place) if _is_deep(grid) else (place, layer)
            ax.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=color, fontsize=size)


def _bands(table: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    """Return a row per role of each head: family, value, text."""
    bands = listed(table[table.index.get_level_values("kind") == kind], lambda role: short(role, table))
    bands = bands.sort_values("value", kind="stable").drop_duplicates([*LEVELS, "family", "text"], keep="last")
    return bands.sort_index()


def _stacked(bands: pd.DataFrame, *, deep: bool) -> pd.DataFrame:
    """Compute the place of each band in its cell."""
    x, y = ("layer", "head") if deep else ("head", "layer")
    cells = bands.groupby(["layer", "head"])["text"]
    height = 0.92 / cells.transform("size")
    bottom = bands[y] + 0.96 - height * (cells.cumcount() + 1)
    return bands.assign(x=bands[x] + 0.5, height=height, bottom=bottom)


def _mark(ax: Axes, heads: pd.DataFrame, *, deep: bool) -> None:
    """Mark sinks in the lower left corner of their cells."""
    from matplotlib.collections import PolyCollection

    x, y = ("layer", "head") if deep else ("head", "layer")
    corner = np.array([[0.04, 0.04], [CORNER, 0.04], [0.04, CORNER]])
    places = heads[[x, y]].drop_duplicates().to_numpy(float)
    ax.add_collection(PolyCollection(places[:, None] + corner, facecolor=MARK, linewidth=0, zorder=3))


def short(role: str, *tables: pd.DataFrame) -> str:
    """Return the text of a role in a cell: −1, s→v, rare, sink, align, induct, dupl; ‖−1‖ if by norms."""
    column = Column.parse(role)
    if column.variant:
        text = short(str(column.plain), *tables)
        return f"‖{text}‖" if column.variant == "norm" else text
    if column.name == "positional":
        return (column.detail or "").replace("-", "−")
    if column.name != "syntactic":
        return role_style(column.name, *tables).short
    relation, way = [*column.words, "", ""][:2]
    if relation not in RELATIONS:
        return relation + ("↑" if way == "dep>head" else "↓")
    letters = RELATIONS[relation][2:]
    return "→".join(letters if way == "dep>head" else reversed(letters))


def _explain(
    ax: Axes,
    bands: pd.DataFrame,
    hues: Mapping[str, RGB],
    table: pd.DataFrame,
    heads: int,
    *,
    crowded: bool,
    quiet: bool,
    below: bool,
) -> None:
    """Draw the legend: families with their numbers of heads, and the meaning of strength, corner and question mark."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    holders = bands[["layer", "head", "family"]].drop_duplicates()
    entries: dict[str, Artist | tuple[Artist, ...]] = {}
    counts = holders["family"].value_counts()
    for family in sorted((family for family in hues if family in counts), key=lambda name: quiet and name in SINKS):
        column, about = Column.parse(family), role_style(family, table).about
        name = f"{column.plain}, {BY[column.variant]}" if column.variant else family
        text = f"{name} ({counts[family]}){f': {about}' if about else ''}"
        if quiet and family in SINKS:
            entries[text] = Line2D([], [], ls="", marker=[(0, 0), (1, 0), (0, 1)], color=MARK)
        else:
            entries[f"{text}\n{_strongest(bands[bands['family'] == family])}" if crowded else text] = Patch(
                color=hues[family]
            )
    entries[f"no role ({heads - holders.groupby(['layer', 'head']).ngroups})"] = Patch(color="0.93")
    entries["score 0, ½, 1"] = tuple(Patch(color=grey) for grey in ("0.9", "0.6", "0.3"))
    if bands["unsure"].any():
        entries[f"kept in < {100 * STABLE:g} % of resamples"] = Line2D([], [], ls="", marker="$?$", color="0.1")
    legend(ax, [*entries.values()], [*entries], size=9, below=below)
    lay_out(ax)  # the legend takes room from the cells, which the texts must fit


def _strongest(bands: pd.DataFrame, count: int = 5) -> str:
    """List the heads of a family with the largest scores, and how many more there are."""
    heads = bands.sort_values("value", ascending=False, kind="stable").drop_duplicates(["layer", "head"])
    shown = [f"L{row.layer}H{row.head}" for row in heads.head(count).itertuples()]
    return ", ".join([*shown, *[f"and {len(heads) - count} more"] * (len(heads) > count)])
