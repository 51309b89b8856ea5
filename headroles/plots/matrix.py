"""Maps of layers x heads: a measurement, or who does what, one cell per head (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from headroles.analysis.role_rules import held, names
from headroles.plots.scales import scale
from headroles.tables.frame import LEVELS, Kind
from headroles.tables.kv_groups import ends

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {"enc-self": "encoder self-attention", "dec-self": "decoder self-attention", "cross": "cross-attention"}
STABLE = 0.95  # a role kept in fewer of the bootstrap resamples is marked
FAMILIES = {  # family of roles -> where such a head looks; their colours are fixed
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

    `order="sorted"` puts the heads of each layer in descending order (Voita et al. 2019, Fig. 1a). `annotate` writes
    the values, or a text per head, into the cells. The scale is that of the whole column, also where one `kind` is
    drawn: it begins at 0, and is diverging around 0 for effects of ablation, in which red is harm by every metric, and
    where values are negative. Heads that are not in the table stay blank, heads without a value are hatched. Lines
    stand between groups of query heads that share keys and values.
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
    """Draw the heatmap of each kind that has values, side by side on one scale; `options` are those of `heatmap`."""
    _check(values)
    known: Any = values.dropna()
    kinds, indices = _kinds(known), (known.index.get_level_values(level) for level in ("layer", "head"))
    axes = new_axes([each.max() + 1 for each in indices], panels=len(kinds))
    for kind, ax in zip(kinds, axes, strict=True):
        heatmap(values, kind=kind, ax=ax, **options)
    for mesh in (ax.collections[0] for ax in axes[:-1]):
        mesh.colorbar.remove()  # type: ignore[union-attr]
    return axes


def roles(table: pd.DataFrame, *, kind: Kind | None = None, legend: bool = True, ax: Axes | None = None) -> Axes:
    """Draw who does what (Voita et al. 2019, Fig. 1c): a cell per head, in it a band per role it holds.

    The hue is the role's family, the strength of the colour its score from 0 to 1. Roles of one text (sink[first] and
    sink[special]) are one band, of the larger score. Italics and "?" mark a role kept in fewer than 95 % of the
    resamples; a head without a role is pale grey.
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


def _kinds(table: Any) -> list[Kind]:
    known = isinstance(table, pd.Series | pd.DataFrame) and list(table.index.names) == LEVELS
    if not known or table.empty or table.index.has_duplicates:
        raise ValueError(f"expected one row per head, indexed by kind, layer and head; got {said(table)}")
    return list(table.index.unique("kind"))


def of_kind(table: Any, kind: Kind | None) -> tuple[Any, Kind]:
    """The rows of one kind, indexed by layer and head, and that kind."""
    present = _kinds(table)
    if kind not in present and (kind is not None or len(present) > 1):
        raise ValueError(f"kind={kind!r}, but the table holds {', '.join(present)}; choose one of these")
    return table.xs(kind or present[0], level="kind"), kind or present[0]


def needs(table: Any, columns: set[str], made_by: str) -> None:
    """Raises ValueError for what is no table with these columns."""
    if not isinstance(table, pd.DataFrame) or not columns <= set(table):
        raise ValueError(f"expected the table of {made_by} ({', '.join(sorted(columns))}); got {said(table)}")


def said(given: object) -> str:
    """What was given, in the words of an error."""
    if not isinstance(given, pd.Series | pd.DataFrame):
        return f"{given!r:.60}"
    what = str(given.dtype) if isinstance(given, pd.Series) else ", ".join(map(str, given)) or "no columns"
    return f"a {type(given).__name__} ({what}) with {len(given)} rows, index {', '.join(map(str, given.index.names))}"


def _check(values: Any) -> None:
    """Raise ValueError for what cannot be drawn."""
    if not isinstance(values, pd.Series) or not pd.api.types.is_numeric_dtype(values):
        raise ValueError(f"a heatmap draws one column of numbers, such as heads['confidence']; got {said(values)}")
    if values.isna().all():
        raise ValueError(f"nothing to draw: {values.name!r} has no value for any of {len(values)} heads")


def _ordered(drawn: pd.DataFrame, order: str) -> pd.DataFrame:
    """The rows of layers and heads as rows of layers and places from 0, by falling value where `order` is "sorted"."""
    if order not in ("head", "sorted"):
        raise ValueError(f"order={order!r}; expected 'head' or 'sorted'")
    if order == "sorted":
        drawn = drawn.sort_values("value", ascending=False, kind="stable")
        drawn.index = pd.MultiIndex.from_arrays([drawn.index.get_level_values(0), drawn.groupby("layer").cumcount()])
    return drawn


def _grid(values: pd.Series[Any]) -> pd.DataFrame:
    """Values by layer and place as a grid from layer 0 and place 0."""
    deep, wide = (values.index.get_level_values(level).max() + 1 for level in (0, 1))
    return values.unstack().reindex(index=range(deep), columns=range(wide))


def new_axes(
    shape: Sequence[float], *, cell: float = 0, panels: int = 1, beside: float = 0, tall: float = 0
) -> list[Axes]:
    """The axes of a new figure: panels of rows and columns of `cell` inches, room for labels; at least `tall`."""
    import matplotlib.pyplot as plt

    cell = cell or float(np.clip(7 / max(shape), 0.28, 0.55))
    size = (panels * (shape[1] * cell + 0.5) + 0.8 + beside, max(shape[0] * cell + 1, tall))
    return list(plt.subplots(1, panels, figsize=size, layout="constrained", squeeze=False)[1][0])


def _layers(ax: Axes, grid: pd.DataFrame, kind: Kind, **looks: Any) -> None:
    """A seaborn heatmap with layer 0 at the bottom."""
    import seaborn as sns

    sns.heatmap(grid, cbar=False, ax=ax, **looks)
    ax.invert_yaxis()
    ax.tick_params(rotation=0, length=0)
    ax.set(title=TITLES[kind], xlabel="head", ylabel="layer")


def font(ax: Axes, shape: Sequence[float], text: str, share: float = 1.0) -> float:
    """The size in points, at most 9, at which a text fits a share of a cell's height; 0 where it could not be read."""
    box = ax.get_window_extent()
    wide, high = 72 / ax.figure.dpi * box.width / shape[1], 72 / ax.figure.dpi * box.height / shape[0]
    size = min(9, wide / (0.8 * max(len(text), 1)), share * high / 1.2)
    return float(size) if size >= 4 else 0.0


def _bands(table: pd.DataFrame, kind: Kind) -> Any:
    """A row for each role of each head that holds it: family, value, text, and the place of its band in the cell."""
    if not names(table):
        raise ValueError(f"no roles in the table; hr.roles(heads) makes them from scores; got {said(table)}")
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
    """What a cell says of a role: −1, s→v, rare, sink, align, induct, dupl."""
    family, _, detail = role.rstrip("]").partition("[")
    if family != "syntactic":
        return detail.replace("-", "−") if family == "positional" else _SHORT.get(family, family)
    relation, _, way = detail.partition(" ")
    if relation not in _ENDS:
        return relation + ("↑" if way == "dep>head" else "↓")
    return "→".join(_ENDS[relation] if way == "dep>head" else reversed(_ENDS[relation]))


def colours(roles: list[str]) -> dict[str, Any]:
    """The colour of each family of these roles, as red, green and blue from 0 to 1."""
    import seaborn as sns

    palette, others = sns.color_palette("colorblind"), cycle((9, 6, 7))
    families = dict.fromkeys(name.split("[")[0] for name in roles)
    return {family: palette[_HUES[family] if family in _HUES else next(others)] for family in families}


def _legend(ax: Axes, bands: pd.DataFrame, hues: dict[str, Any], heads: int) -> None:
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found = bands[["layer", "head", "family"]].drop_duplicates()
    entries: dict[str, Any] = {}
    for family, colour in hues.items():
        looks = f": {FAMILIES[family]}" if family in FAMILIES else ""
        entries[f"{family} ({(found['family'] == family).sum()}){looks}"] = Patch(color=colour)
    entries[f"no role ({heads - found.groupby(['layer', 'head']).ngroups})"] = Patch(color="0.93")
    entries["score 0, ½, 1"] = tuple(Patch(color=grey) for grey in ("0.9", "0.6", "0.3"))
    if bands["unsure"].any():
        entries[f"kept in < {100 * STABLE:g} % of resamples"] = Line2D([], [], ls="", marker="$?$", color="0.1")
    handlers: dict[Any, Any] = {tuple: HandlerTuple(ndivide=None, pad=0)}
    box: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "borderaxespad": 0, "frameon": False}
    ax.legend([*entries.values()], [*entries], handler_map=handlers, fontsize=9, **box)
    ax.figure.canvas.draw()  # the legend takes room from the cells, which the texts must fit
