"""Maps of layers x heads: one measurement, or the roles of each head, one cell per head (no torch)."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from headroles.analysis.role_rules import held, names
from headroles.plots.axes import OUTSIDE, TITLES, font, kinds_of, new_axes, of_kind, readable, said
from headroles.plots.scales import scale
from headroles.tables.frame import LEVELS, Kind
from headroles.tables.kv_groups import ends

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STABLE = 0.95  # a role found in a smaller share of the bootstrap resamples is marked
FAMILIES = {  # family of roles -> where its heads attend; their colours are fixed
    "positional": "at a fixed offset",
    "syntactic": "along a dependency;\ns subject, o object, v verb, a adjective,\nn noun, adv adverb",
    "rare": "at the rarest token",
    "sink": "at a special or the first token",
    "alignment": "onward through the source",
    "induction": "after the same token before",
    "duplicate": "at the same token before",
}
_HUES = {  # places in seaborn's "colorblind"
    **{"positional": 0, "syntactic": 2, "rare": 3, "sink": 4},
    **{"alignment": 8, "induction": 1, "duplicate": 5},
}
_SHORT = {"alignment": "align", "induction": "induct", "duplicate": "dupl"}
_ENDS = {"nsubj": ("s", "v"), "obj": ("o", "v"), "amod": ("a", "n"), "advmod": ("adv", "v")}  # (dependent, its head)


def heatmap(
    values: pd.Series[Any],
    *,
    kind: Kind | None = None,
    order: Literal["head", "sorted"] = "head",
    annotate: pd.Series[Any] | Literal[True] | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    cmap: str | None = None,
    label: str | None = None,
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
        label: Label of the colour bar; by default the column's name.
        ax: Axes to draw on; by default those of a new figure.

    Returns:
        The axes.

    Example:
        >>> import headroles as hr
        >>> heads = hr.load_table("study/heads.parquet")  # doctest: +SKIP
        >>> hr.plots.heatmap(heads["confidence"], kind="enc-self")  # doctest: +SKIP
    """
    shown, kind = of_kind(values, kind)
    _check(values)
    texts = values.astype(float).map("{:z.2f}".format).str.replace("-", "−") if annotate is True else annotate
    notes = None if texts is None else of_kind(texts, kind)[0].reindex(shown.index).fillna("")
    drawn = _ordered(pd.DataFrame({"value": shown.astype(float), "text": notes}), order)
    grid = _grid(drawn["value"])
    ax = new_axes(grid.shape)[0] if ax is None else ax
    looks = scale(values, vmin, vmax, cmap) | {"annot": None if notes is None else _grid(drawn["text"]), "fmt": ""}
    _layers(ax, grid, kind, linewidths=0.5, **looks)
    for bottom, head in ends(values, kind) if order == "head" else []:
        ax.vlines(head, bottom, bottom + 1, color="0.2", linewidth=1.2)
    if order == "sorted":
        ax.set(xlabel="rank in the layer", xticks=ax.get_xticks(), xticklabels=ax.get_xticks().astype(int) + 1)
    layer, place = drawn.index[drawn["value"].isna()].to_frame().to_numpy(float).T
    ax.bar(place + 0.5, 1, 1, layer, color="0.95", edgecolor="0.7", hatch="////", linewidth=0)
    bar = max(3.0, 6 * ax.get_window_extent().height / ax.figure.dpi)  # a sixth of an inch wide
    text = values.name if label is None else label
    ax.figure.colorbar(ax.collections[0], ax=ax, label="" if text is None else str(text), aspect=bar, pad=0.02)
    size = min((font(ax, grid.shape, note.get_text()) for note in ax.texts), default=0.0)
    for note in list(ax.texts):
        note.set_fontsize(size) if size else note.remove()
    return ax


def heatmaps(values: pd.Series[Any], **options: Any) -> list[Axes]:
    """Draw the heatmap of each kind that has values, side by side on one scale.

    Args:
        values: A column of a head table.
        **options: Options of `heatmap`.

    Returns:
        One axes per kind.
    """
    _check(values)
    known: Any = values.dropna()
    kinds, indices = kinds_of(known), (known.index.get_level_values(level) for level in ("layer", "head"))
    axes = new_axes([numbers.max() + 1 for numbers in indices], panels=len(kinds))
    for kind, ax in zip(kinds, axes, strict=True):
        heatmap(values, kind=kind, ax=ax, **options)
    for mesh in (ax.collections[0] for ax in axes[:-1]):
        mesh.colorbar.remove()  # type: ignore[union-attr]
    return axes


def roles(table: pd.DataFrame, *, kind: Kind | None = None, legend: bool = True, ax: Axes | None = None) -> Axes:
    """Draw the roles of each head: a cell per head, a band per role.

    See Voita et al. 2019, Fig. 1c.

    The hue is the role's family, the strength of the colour its score from 0 to 1. Roles with one text (sink[first] and
    sink[special]) are one band, of the larger score. Italics and "?" mark a role that is found in fewer than 95 % of
    the resamples; a head without a role is pale grey.

    Args:
        table: Table of `hr.roles`.
        kind: The kind of attention; may be left out if the table has one kind.
        legend: Whether to draw the legend.
        ax: Axes to draw on; by default those of a new figure.

    Returns:
        The axes.
    """
    from seaborn.utils import relative_luminance

    shown, kind = of_kind(table, kind)
    possible = [name for name in names(table) if shown[f"{name}.value"].notna().any()]
    bands, hues = _bands(table, kind), colours(possible)
    grid = _grid(pd.Series(0.0, index=shown.index))
    tall = 0.22 * len(hues) + 1.6  # inches of the legend
    ax = new_axes(grid.shape, beside=3.2 * legend, tall=tall * legend)[0] if ax is None else ax
    _layers(ax, grid, kind, cmap=["0.93"], linewidths=1.5)
    if legend:
        _legend(ax, bands, hues, len(shown))
    for role in bands.itertuples():
        strength, middle = 0.15 + 0.85 * min(max(role.value, 0), 1), (role.head + 0.5, role.bottom + role.height / 2)
        face = [1 - strength * (1 - part) for part in hues[role.family]]
        ax.bar(role.head + 0.5, role.height, 0.92, role.bottom, color=face, edgecolor="white", linewidth=0.6)
        text, style = (f"{role.text}?", "italic") if role.unsure else (role.text, "normal")
        ink = "0.1" if relative_luminance(face) > 0.28 else "white"
        if size := font(ax, grid.shape, text, role.height):
            ax.text(*middle, text, ha="center", va="center", color=ink, fontsize=size, fontstyle=style)
    return ax


def _check(values: Any) -> None:
    """Raise ValueError for values that cannot be drawn."""
    if not isinstance(values, pd.Series) or not pd.api.types.is_numeric_dtype(values):
        raise ValueError(f"not a column of numbers: got {said(values)}; expected one such as heads['confidence']")
    if values.isna().all():
        raise ValueError(f"nothing to draw: {values.name!r} has no value for any of {len(values)} heads")


def _ordered(drawn: pd.DataFrame, order: str) -> pd.DataFrame:
    """Rows of layers and places from 0, in descending order of value if `order` is "sorted"."""
    if order not in ("head", "sorted"):
        raise ValueError(f"unknown order: got {order!r}; expected 'head' or 'sorted'")
    if order == "sorted":
        drawn = drawn.sort_values("value", ascending=False, kind="stable")
        drawn.index = pd.MultiIndex.from_arrays([drawn.index.get_level_values(0), drawn.groupby("layer").cumcount()])
    return drawn


def _grid(values: pd.Series[Any]) -> pd.DataFrame:
    """Values by layer and place as a grid from layer 0 and place 0."""
    deep, wide = (values.index.get_level_values(level).max() + 1 for level in (0, 1))
    return values.unstack().reindex(index=range(deep), columns=range(wide))


def _layers(ax: Axes, grid: pd.DataFrame, kind: Kind, **looks: Any) -> None:
    """A seaborn heatmap with layer 0 at the bottom."""
    import seaborn as sns
    from matplotlib.colors import to_rgba_array

    sns.heatmap(grid, cbar=False, ax=ax, **looks)
    faces = to_rgba_array(ax.collections[0].get_facecolor())
    for note in ax.texts:
        column, row = map(int, note.get_position())
        note.set_color(readable(faces[row * grid.shape[1] + column]))
    ax.invert_yaxis()
    ax.tick_params(rotation=0, length=0)
    ax.set(title=TITLES[kind], xlabel="head", ylabel="layer")


def _bands(table: pd.DataFrame, kind: Kind) -> Any:
    """A row per role of each head: family, value, text, and the place of its band in the cell."""
    if not names(table):
        raise ValueError(f"no roles in the table: got {said(table)}; make them with hr.roles(heads)")
    bands = held(table[table.index.get_level_values("kind") == kind])
    bands["family"], bands["text"] = bands["role"].str.split("[").str[0], bands["role"].map(short)
    bands = (
        bands.sort_values("value", kind="stable").drop_duplicates([*LEVELS, "family", "text"], keep="last").sort_index()
    )
    cells = bands.groupby(["layer", "head"])["text"]
    bands["height"] = 0.92 / cells.transform("size")
    bands["bottom"] = bands["layer"] + 0.96 - bands["height"] * (cells.cumcount() + 1)
    bands["unsure"] = bands["stability"] < STABLE
    return bands


def short(role: str) -> str:
    """Return the text of a role in a cell: −1, s→v, rare, sink, align, induct, dupl."""
    family, _, detail = role.rstrip("]").partition("[")
    if family != "syntactic":
        return detail.replace("-", "−") if family == "positional" else _SHORT.get(family, family)
    relation, _, way = detail.partition(" ")
    if relation not in _ENDS:
        return relation + ("↑" if way == "dep>head" else "↓")
    return "→".join(_ENDS[relation] if way == "dep>head" else reversed(_ENDS[relation]))


def colours(roles: list[str]) -> dict[str, Any]:
    """Return the colour of each family of these roles, as red, green and blue from 0 to 1."""
    import seaborn as sns

    palette, others = sns.color_palette("colorblind"), cycle((9, 6, 7))
    families = dict.fromkeys(name.split("[")[0] for name in roles)
    return {family: palette[_HUES[family] if family in _HUES else next(others)] for family in families}


def _legend(ax: Axes, bands: pd.DataFrame, hues: dict[str, Any], heads: int) -> None:
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    holders = bands[["layer", "head", "family"]].drop_duplicates()
    entries: dict[str, Any] = {}
    for family, colour in hues.items():
        description = f": {FAMILIES[family]}" if family in FAMILIES else ""
        entries[f"{family} ({(holders['family'] == family).sum()}){description}"] = Patch(color=colour)
    entries[f"no role ({heads - holders.groupby(['layer', 'head']).ngroups})"] = Patch(color="0.93")
    entries["score 0, ½, 1"] = tuple(Patch(color=grey) for grey in ("0.9", "0.6", "0.3"))
    if bands["unsure"].any():
        entries[f"kept in < {100 * STABLE:g} % of resamples"] = Line2D([], [], ls="", marker="$?$", color="0.1")
    handlers: dict[Any, Any] = {tuple: HandlerTuple(ndivide=None, pad=0)}
    ax.legend([*entries.values()], [*entries], handler_map=handlers, fontsize=9, **OUTSIDE)
    ax.figure.canvas.draw()  # the legend takes room from the cells, which the texts must fit
