"""Figures of pruning: what is left at each size, of which kind and layer, with which function; gates (no torch)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headroles.plots.matrix import TITLES, needs, new_axes, said
from headroles.tables.frame import KINDS, LEVELS, Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FUNCTIONS = {  # family of roles -> its colour in seaborn's "colorblind"; the same as on the maps of roles
    "positional": 0,
    "syntactic": 2,
    "rare": 3,
    "alignment": 8,
    "sink": 4,
    "several": 1,
}
THIRDS = ("lower", "middle", "upper")  # of the layers
LOW, HIGH = -0.1, 1.1  # where Concrete variables are stretched to (Voita et al. 2019, section 6.1)


def survival(
    tables: pd.DataFrame | Mapping[str, pd.DataFrame], *, label: str = "metric", ax: Axes | None = None
) -> Axes:
    """Draw what models pruned to several sizes are worth, with 95 % intervals (Voita et al. 2019, Fig. 7).

    Tables are those of `hr.sparsity_sweep`; several are a mapping by name. The line across is the control, the whole model
    after the same training.
    """
    import seaborn as sns

    named = {"": tables} if isinstance(tables, pd.DataFrame) else dict(tables)
    for table in named.values():
        needs(table, {"heads", "of", "value", "low", "high"}, "hr.sparsity_sweep")
    ax = new_axes((9, 13), cell=0.4, beside=2.2 * (len(named) > 1))[0] if ax is None else ax
    for (name, table), hue in zip(named.items(), sns.color_palette("colorblind"), strict=False):
        gone = table["of"] - table["heads"]
        ax.errorbar(
            gone, table["value"], [table["value"] - table["low"], table["high"] - table["value"]], color=hue,
            marker="o", markersize=4, capsize=2, linewidth=1.2, label=name,
        )  # fmt: skip
        ax.axhline(table["value"].iloc[0], color=hue, linestyle=":", linewidth=1)
    ax.set(xlabel="heads that are gone", ylabel=label)
    of = int(next(iter(named.values()))["of"].iloc[0])
    top = ax.secondary_xaxis("top", functions=(lambda gone: of - np.asarray(gone), lambda left: of - np.asarray(left)))
    top.set_xlabel("heads left")
    if len(named) > 1:
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    sns.despine(ax=ax, top=False)
    return ax


def functions(table: pd.DataFrame, *, kind: Kind = "enc-self", ax: Axes | None = None) -> Axes:
    """Draw which functions the heads left at each size have (Voita et al. 2019, Fig. 8): a column per size.

    The table is `functions-...` of `hr.sparsity_sweep`; "several" are heads with roles of more than one family.
    """
    import seaborn as sns

    needs(table, {"kind", "function", "count", "heads"}, "hr.sparsity_sweep with scored=")
    shown = table[table["kind"] == kind]
    if shown.empty:
        raise ValueError(f"no heads of kind {kind!r} in the table, which has {', '.join(table['kind'].unique())}")
    wide = shown.pivot_table(index="heads", columns="function", values="count", fill_value=0, observed=True)
    wide = wide.sort_index(ascending=False)
    ax = new_axes((8, len(wide) + 2), cell=0.5, beside=1.6)[0] if ax is None else ax
    bottom = np.zeros(len(wide))
    palette = sns.color_palette("colorblind")
    names = [name for name in ("none", *FUNCTIONS) if name in wide]
    for name in names:
        hue = "0.88" if name == "none" else palette[FUNCTIONS[name]]
        heights = wide[name].to_numpy(float)
        ax.bar(range(len(wide)), heights, 0.8, bottom, color=hue, label=name)
        for x, (height, base) in enumerate(zip(heights, bottom, strict=True)):
            if height:
                ax.text(x, base + height / 2, f"{height:.0f}", ha="center", va="center", fontsize=8)
        bottom += heights
    ax.set_xticks(range(len(wide)), [f"{one:.0f}" for one in wide.index])
    ax.set(title=TITLES[kind], xlabel="heads left of those that may go", ylabel="heads")
    handles, labels = ax.get_legend_handles_labels()
    box: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "borderaxespad": 0, "frameon": False}
    ax.legend(handles[::-1], labels[::-1], **box)
    sns.despine(ax=ax)
    return ax


def by_kind(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how many heads of each kind are left (Voita et al. 2019, Fig. 9). The table is that of `hr.sparsity_sweep`."""
    import seaborn as sns

    needs(table, {"heads", "of"}, "hr.sparsity_sweep")
    ax = new_axes((9, 13), cell=0.4, beside=2.2)[0] if ax is None else ax
    hues = dict(zip(KINDS, sns.color_palette("colorblind"), strict=False))
    for kind, marker in zip((kind for kind in KINDS if kind in table), "osD", strict=False):
        ax.plot(table["of"] - table["heads"], table[kind], color=hues[kind], marker=marker, label=TITLES[kind])
    ax.set(xlabel="heads that are gone", ylabel="heads of the kind that are left", ylim=(0, None))
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    sns.despine(ax=ax)
    return ax


def by_layer(table: pd.DataFrame, *, kind: Kind = "enc-self", ax: Axes | None = None) -> Axes:
    """Draw how many heads each layer has left at each size (Voita et al. 2019, Fig. 10).

    The table has a column `survival[...]` for each size, as `survival-...` of `hr.sparsity_sweep`.
    """
    import seaborn as sns

    columns = _sizes(table)
    own = table[table.index.get_level_values("kind") == kind]
    left = own[columns].groupby(level="layer").sum()
    left.columns = [name[len("survival[") : -1] for name in columns]
    ax = new_axes(left.shape, cell=0.5, beside=1)[0] if ax is None else ax
    of = int(own.groupby(level="layer").size().max())
    sns.heatmap(left, annot=True, fmt=".0f", cmap="YlGnBu", vmin=0, vmax=of, linewidths=0.5, ax=ax)
    ax.collections[0].colorbar.set_label("heads left")  # type: ignore[union-attr]
    ax.invert_yaxis()
    ax.tick_params(axis="x", rotation=30, length=0)
    ax.tick_params(axis="y", rotation=0, length=0)
    ax.set(title=TITLES[kind], xlabel="", ylabel="layer")
    return ax


def by_third(table: pd.DataFrame, *, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """Draw how many decoder heads the lower, middle and upper layers have left (Voita et al. 2019, Fig. 10).

    The table is `survival-...` of `hr.sparsity_sweep`; a panel for the decoder's own heads, one for cross-attention.
    """
    import seaborn as sns

    own = table.index.get_level_values("kind")
    gone = [0, *((table[name] == 0).sum() for name in _sizes(table))]
    kinds = [kind for kind in ("dec-self", "cross") if kind in own]
    drawn = new_axes((8, 10), cell=0.4, panels=len(kinds), beside=1) if axes is None else list(axes)
    for ax, kind in zip(drawn, kinds, strict=True):
        left = thirds(table[own == kind])
        for third, hue, marker in zip(THIRDS, sns.color_palette("colorblind"), "osD", strict=False):
            whole, counts = left[f"{kind} {third}.of"].iloc[0], left[f"{kind} {third}"]
            ax.plot(gone, [whole, *counts], color=hue, marker=marker, markersize=4, label=third)
        ax.set(title=TITLES[kind], xlabel="heads that are gone", ylabel="heads left", ylim=(0, None))
        sns.despine(ax=ax)
    drawn[-1].legend(title="layers", frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    return drawn


def thirds(table: pd.DataFrame) -> pd.DataFrame:
    """How many heads of one kind the lower, middle and upper third of the layers have left: a row per column survival.

    Columns `KIND lower`, `KIND middle`, `KIND upper`, and `.of`, how many there were; thirds are of equal size where
    the layers allow it.
    """
    kind, layers = str(table.index.get_level_values("kind")[0]), table.index.get_level_values("layer")
    third = pd.Series(np.digitize(layers, [len(set(layers)) / 3, len(set(layers)) * 2 / 3]), table.index)
    rows = {}
    for name in _sizes(table):
        left = [table.loc[third == place, name] for place in range(3)]
        counts = {f"{kind} {one}": int(part.sum()) for one, part in zip(THIRDS, left, strict=True)}
        rows[name] = counts | {f"{kind} {one}.of": len(part) for one, part in zip(THIRDS, left, strict=True)}
    return pd.DataFrame.from_dict(rows, orient="index")


def _sizes(table: pd.DataFrame) -> list[str]:
    """The columns of survival, one for each size."""
    columns = [name for name in map(str, table) if re.fullmatch(r"survival\[[^\]]*\]", name)]
    if not columns or list(table.index.names) != LEVELS:
        raise ValueError(f"expected columns survival[...] over heads, as hr.prune makes; got {said(table)}")
    return columns


def gates(history: pd.DataFrame, *, kind: Kind | None = None, ax: Axes | None = None) -> Axes:
    """Draw P(gate != 0) of every head over the steps of training. The table is `gates.parquet` of `hr.prune`."""
    import seaborn as sns

    needs(history, {*LEVELS, "step", "open"}, "hr.prune with learnt gates")
    rows = history if kind is None else history[history["kind"] == kind]
    wide = rows.pivot_table(index=LEVELS, columns="step", values="open", observed=True, sort=False)
    ax = new_axes((len(wide), 60), cell=0.13, beside=1)[0] if ax is None else ax
    sns.heatmap(wide, cmap="YlGnBu", vmin=0, vmax=1, ax=ax, cbar_kws={"label": "P(gate ≠ 0)"}, rasterized=True)
    layers = [head[:2] for head in wide.index]
    starts = [place for place in range(len(wide)) if place == 0 or layers[place] != layers[place - 1]]
    ax.hlines(starts[1:], 0, wide.shape[1], color="white", linewidth=0.8)
    ends = [*starts[1:], len(wide)]
    many = len({one for one, _ in layers}) > 1
    names = [f"{layers[start][0]} {layers[start][1]}" if many else str(layers[start][1]) for start in starts]
    ax.set_yticks([(start + end) / 2 for start, end in zip(starts, ends, strict=True)], names, rotation=0)
    shown = np.linspace(0, wide.shape[1] - 1, 6).round().astype(int)
    ax.set_xticks(shown + 0.5, [f"{wide.columns[place]:.0f}" for place in shown], rotation=0)
    ax.set(xlabel="step", ylabel="layer; a row per head")
    return ax


def densities(log_alphas: Sequence[float] = (0, 2, -3), *, temperature: float = 0.5, ax: Axes | None = None) -> Axes:
    """Draw the Hard Concrete distribution for values of log alpha (Voita et al. 2019, Fig. 6b)."""
    import seaborn as sns
    from scipy.special import expit

    ax = new_axes((8, 12), cell=0.42, beside=2.4)[0] if ax is None else ax
    x = np.linspace(0, 1, 400)[1:-1]
    soft = (x - LOW) / (HIGH - LOW)
    for place, (log_alpha, hue) in enumerate(zip(log_alphas, sns.color_palette("colorblind"), strict=False)):
        slope = temperature * (np.log(soft) - np.log1p(-soft)) - log_alpha
        density = temperature * expit(slope) * expit(-slope) / (soft * (1 - soft)) / (HIGH - LOW)
        closed = expit(temperature * np.log(-LOW / HIGH) - log_alpha)
        whole = expit(log_alpha - temperature * np.log((1 - LOW) / (HIGH - 1)))
        text = f"log α = {log_alpha:g}: P(0) = {closed:.3f}, P(1) = {whole:.3f}".replace("-", "−")
        ax.plot(x, density, color=hue, label=text)
        shift = 0.012 * (place - (len(log_alphas) - 1) / 2)
        ax.vlines([shift, 1 + shift], 0, [closed, whole], color=hue, linewidth=4, alpha=0.6)
    ax.set(xlabel="gate", ylabel="density; bars: probability of 0 and of 1", xlim=(-0.06, 1.06), ylim=(0, None))
    ax.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.01), borderaxespad=0)
    sns.despine(ax=ax)
    return ax
