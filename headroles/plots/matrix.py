"""Maps of layers x heads: one measurement, or the roles of each head, one cell per head (no torch)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

import pandas as pd

from headroles.analysis.role_rules import held, look, names
from headroles.plots.axes import TITLES, colour_bar, font, kinds_of, lay_out, legend, new_axes, of_kind
from headroles.plots.labels import label_of
from headroles.plots.styling import RGB, colours, readable, scale
from headroles.tables.columns import Column
from headroles.tables.declared import signature_of
from headroles.tables.frame import LEVELS, Kind, described
from headroles.tables.kv_groups import ends

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

STABLE = 0.95  # a role found in a smaller share of the bootstrap resamples is marked
_ENDS = {"nsubj": ("s", "v"), "obj": ("o", "v"), "amod": ("a", "n"), "advmod": ("adv", "v")}  # (dependent, its head)


class HeatmapOptions(TypedDict, total=False):
    """Options of `heatmap`."""

    order: Literal["head", "sorted"]
    annotate: pd.Series[str] | Literal[True] | None
    vmin: float | None
    vmax: float | None
    cmap: str | None
    label: str | None


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
    """Draw one measurement as layers x heads, layer 0 at the bottom.

    Missing heads stay blank, heads without a value are hatched. Lines separate groups of query heads that share keys
    and values.

    Args:
        values: A column of a head table.
        kind: The kind of attention; may be left out if the table has one kind.
        order: "head", or "sorted" for the heads of each layer in descending order (Voita et al. 2019, Fig. 1a).
        annotate: True writes the values into the cells; a series writes its texts.
        vmin: Lower end of the scale. The scale is that of the whole column, also if one `kind` is drawn.
        vmax: Upper end of the scale.
        cmap: Colour map. By default the scale begins at 0. It diverges around 0 for negative values and for effects of
            ablation, where red is harm by every metric.
        label: Label of the colour bar; by default the column in words.
        cbar: Whether to draw the colour bar.
        ax: Axes to draw on; by default those of a new figure.

    Returns:
        The axes.

    Example:
        >>> import headroles as hr
        >>> heads = hr.load_table("study/heads.parquet")  # doctest: +SKIP
        >>> hr.plots.heatmap(heads["confidence"], kind="enc-self")  # doctest: +SKIP
    """
    part, kind = of_kind(values, kind)
    check_numbers(values)
    texts = values.astype(float).map("{:z.2f}".format).str.replace("-", "−") if annotate is True else annotate
    notes = None if texts is None else of_kind(texts.to_frame("text"), kind)[0]["text"].reindex(part.index).fillna("")
    cells = _ordered(pd.DataFrame({"value": part.astype(float), "text": notes}), order)
    grid = _grid(cells["value"])
    limits = scale(values, vmin, vmax, cmap)
    ax = ax or new_axes(grid.shape)[0]
    _layers(ax, grid, kind, limits["cmap"], limits=(limits["vmin"], limits["vmax"]))
    for bottom, head in ends(values, kind) if order == "head" else []:
        ax.vlines(head, bottom, bottom + 1, color="0.2", linewidth=1.2)
    if order == "sorted":
        ax.set(xlabel="rank in the layer", xticks=ax.get_xticks(), xticklabels=ax.get_xticks().astype(int) + 1)
    layer, place = cells.index[cells["value"].isna()].to_frame().to_numpy(float).T
    ax.bar(place + 0.5, 1, 1, layer, color="0.95", edgecolor="0.7", hatch="////", linewidth=0)
    if cbar:
        colour_bar(
            ax,
            ax.collections[0],
            label if label is not None else label_of(values.name or "", signature_of(values, values.name)),
        )
    if notes is not None:
        _write(ax, grid, cells["text"])
    return ax


def heatmaps(values: pd.Series[float], **options: Unpack[HeatmapOptions]) -> list[Axes]:
    """Draw the heatmap of each kind that has values, side by side on one scale.

    Args:
        values: A column of a head table.
        **options: Options of `heatmap`.

    Returns:
        One axes per kind.
    """
    check_numbers(values)
    known = values.dropna()
    kinds, indices = kinds_of(known), (known.index.get_level_values(level) for level in ("layer", "head"))
    axes = new_axes([numbers.max() + 1 for numbers in indices], panels=len(kinds))
    for kind, ax in zip(kinds, axes, strict=True):
        heatmap(values, kind=kind, ax=ax, cbar=ax is axes[-1], **options)
    return axes


def roles(table: pd.DataFrame, *, kind: Kind | None = None, legend: bool = True, ax: Axes | None = None) -> Axes:
    """Draw the roles of each head: a cell per head, a band per role.

    The hue is the role's family, the strength of the colour its score from 0 to 1. Roles with one text (sink[first] and
    sink[special]) are one band, of the larger score. Italics and "?" mark a role that is found in fewer than 95 % of
    the resamples; a head without a role is pale grey (after Voita et al. 2019, Fig. 1c).

    Args:
        table: Table of `hr.roles`.
        kind: The kind of attention; may be left out if the table has one kind.
        legend: Whether to draw the legend.
        ax: Axes to draw on; by default those of a new figure.

    Returns:
        The axes.
    """
    part, kind = of_kind(table, kind)
    bands = _bands(table, kind)
    families = (Column.parse(name).name for name in names(table) if part[f"{name}.value"].notna().any())
    hues = colours(families, table)
    grid = _grid(pd.Series(0.0, index=part.index))
    tall = 0.22 * len(hues) + 1.6  # inches of the legend
    ax = ax or new_axes(grid.shape, beside=3.2 * legend, tall=tall * legend)[0]
    _layers(ax, grid, kind, ["0.93"], linewidths=1.5)
    if legend:
        _explain(ax, bands, hues, table, len(part))
    for band in bands.to_dict("records"):
        strength, x, y = 0.15 + 0.85 * min(max(band["value"], 0), 1), band["head"] + 0.5, band["bottom"]
        face = [1 - strength * (1 - part) for part in hues[band["family"]]]
        ax.bar(x, band["height"], 0.92, y, color=face, edgecolor="white", linewidth=0.6)
        text, style = (f"{band['text']}?", "italic") if band["unsure"] else (band["text"], "normal")
        if size := font(ax, grid.shape, text, band["height"]):
            y += band["height"] / 2
            ax.text(x, y, text, ha="center", va="center", color=readable(face), fontsize=size, fontstyle=style)
    return ax


def check_numbers(values: object) -> None:
    """Raise ValueError for values that cannot be drawn."""
    if not isinstance(values, pd.Series) or not pd.api.types.is_numeric_dtype(values):
        raise ValueError(f"not a column of numbers: got {described(values)}; expected one such as heads['confidence']")
    if values.isna().all():
        raise ValueError(f"nothing to draw: {values.name!r} has no value for any of {len(values)} heads")


def _ordered(cells: pd.DataFrame, order: str) -> pd.DataFrame:
    """Rows of layers and places from 0, in descending order of value if `order` is "sorted"."""
    if order not in ("head", "sorted"):
        raise ValueError(f"unknown order: got {order!r}; expected 'head' or 'sorted'")
    if order == "sorted":
        cells = cells.sort_values("value", ascending=False, kind="stable")
        cells.index = pd.MultiIndex.from_arrays([cells.index.get_level_values(0), cells.groupby("layer").cumcount()])
    return cells


def _grid(values: pd.Series[float]) -> pd.DataFrame:
    """Values by layer and place as a grid from layer 0 and place 0."""
    deep, wide = (values.index.get_level_values(level).max() + 1 for level in (0, 1))
    return values.unstack().reindex(index=range(deep), columns=range(wide))


def _layers(
    ax: Axes,
    grid: pd.DataFrame,
    kind: Kind,
    cmap: str | list[str],
    *,
    limits: tuple[float, float] | None = None,
    linewidths: float = 0.5,
) -> None:
    """A seaborn heatmap with layer 0 at the bottom."""
    import seaborn as sns

    low, high = limits or (None, None)
    ax.figure.set_visible(False)  # seaborn draws the whole figure to rotate labels, which stay upright here
    sns.heatmap(grid, cbar=False, ax=ax, cmap=cmap, vmin=low, vmax=high, linewidths=linewidths)
    ax.figure.set_visible(True)
    ax.invert_yaxis()
    ax.tick_params(rotation=0, length=0)
    ax.set(title=TITLES[kind], xlabel="head", ylabel="layer")


def _write(ax: Axes, grid: pd.DataFrame, texts: pd.Series[str]) -> None:
    """Write texts into the cells that have a value, in one size, if it can be read."""
    size = min(font(ax, grid.shape, text) for text in texts)
    faces = ax.collections[0].to_rgba(grid.to_numpy())  # [layer, place, 4]
    layers, places = (texts.index.get_level_values(level) for level in (0, 1))
    for layer, place, text in zip(layers, places, texts, strict=True) if size else []:
        if pd.notna(grid.to_numpy()[layer, place]):
            color = readable(faces[layer, place])
            ax.text(place + 0.5, layer + 0.5, text, ha="center", va="center", color=color, fontsize=size)


def _bands(table: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    """A row per role of each head: family, value, text, and the place of its band in the cell."""
    if not names(table):
        raise ValueError(f"no roles in the table: got {described(table)}; make them with hr.roles(heads)")
    bands = held(table[table.index.get_level_values("kind") == kind])
    bands["family"] = [Column.parse(role).name for role in bands["role"]]
    bands["text"] = [short(role, table) for role in bands["role"]]
    bands = bands.sort_values("value", kind="stable").drop_duplicates([*LEVELS, "family", "text"], keep="last")
    bands = bands.sort_index()
    cells = bands.groupby(["layer", "head"])["text"]
    bands["height"] = 0.92 / cells.transform("size")
    bands["bottom"] = bands["layer"] + 0.96 - bands["height"] * (cells.cumcount() + 1)
    bands["unsure"] = bands["stability"] < STABLE
    return bands


def short(role: str, *tables: pd.DataFrame) -> str:
    """Return the text of a role in a cell: −1, s→v, rare, sink, align, induct, dupl; by norms ‖−1‖."""
    column = Column.parse(role)
    if column.is_by_norm:
        return f"‖{short(str(column.plain), *tables)}‖"
    if column.name == "positional":
        return (column.detail or "").replace("-", "−")
    if column.name != "syntactic":
        return look(column.name, *tables).short
    relation, way = [*column.words, "", ""][:2]
    if relation not in _ENDS:
        return relation + ("↑" if way == "dep>head" else "↓")
    return "→".join(_ENDS[relation] if way == "dep>head" else reversed(_ENDS[relation]))


def _explain(ax: Axes, bands: pd.DataFrame, hues: Mapping[str, RGB], table: pd.DataFrame, heads: int) -> None:
    """Draw the legend: families with their numbers of heads, and the meaning of strength and question mark."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    holders = bands[["layer", "head", "family"]].drop_duplicates()
    entries: dict[str, Artist | tuple[Artist, ...]] = {}
    counts = holders["family"].value_counts()
    for family in (family for family in hues if family in counts):
        column, about = Column.parse(family), look(family, table).about
        name = f"{column.plain}, by norm" if column.is_by_norm else family
        entries[f"{name} ({counts[family]}){f': {about}' if about else ''}"] = Patch(color=hues[family])
    entries[f"no role ({heads - holders.groupby(['layer', 'head']).ngroups})"] = Patch(color="0.93")
    entries["score 0, ½, 1"] = tuple(Patch(color=grey) for grey in ("0.9", "0.6", "0.3"))
    if bands["unsure"].any():
        entries[f"kept in < {100 * STABLE:g} % of resamples"] = Line2D([], [], ls="", marker="$?$", color="0.1")
    legend(ax, [*entries.values()], [*entries], size=9)
    lay_out(ax)  # the legend takes room from the cells, which the texts must fit
