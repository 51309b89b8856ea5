"""Plots: tables in, matplotlib Axes out; nothing is shown or saved, what is drawn is exactly the table (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headroles.plots.matrix import TITLES, font, new_axes, of_kind, said, short
from headroles.tables.frame import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def attention(weights: pd.DataFrame, *, vmax: float | None = None, ax: Axes | None = None) -> Axes:
    """Draw one head on one sentence: `weights` has a row for each query token and a column for each key token."""
    import seaborn as sns

    if not isinstance(weights, pd.DataFrame) or weights.empty:
        raise ValueError(f"expected a DataFrame, a row per query token, a column per key token; got {said(weights)}")
    keys, queries = ([str(token).replace("$", r"\$") for token in line] for line in (weights.columns, weights.index))
    cell = float(np.clip(7.5 / max(weights.shape), 0.16, 0.4))
    across, up = (0.08 / cell * max(map(len, line)) for line in (queries, keys))  # cells taken by the tokens
    ax = new_axes((weights.shape[0] + up, weights.shape[1] + across), cell=cell)[0] if ax is None else ax
    bar = ax.inset_axes((1 + 0.15 / cell / len(keys), 0, 0.15 / cell / len(keys), 1))
    looks = {"cmap": "Blues", "square": True, "cbar_ax": bar, "cbar_kws": {"label": "weight"}}
    sns.heatmap(weights.to_numpy(), vmin=0, vmax=vmax, xticklabels=keys, yticklabels=queries, ax=ax, **looks)
    size = font(ax, weights.shape, "m") or 4
    ax.tick_params(axis="x", rotation=90, length=0, labelsize=size)
    ax.tick_params(axis="y", rotation=0, length=0, labelsize=size)
    ax.set(xlabel=weights.columns.name or "key", ylabel=weights.index.name or "query")
    return ax


def offsets(table: pd.DataFrame, *, limit: int = 10, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """Draw how far heads are from their dependents (Voita et al. 2019, Fig. 3): one histogram per relation.

    `table` is that of `hr.data.offsets`; offsets beyond `limit` are gathered at the ends.
    """
    import matplotlib.pyplot as plt
    import seaborn as sns

    if not isinstance(table, pd.DataFrame) or table.empty or not {"relation", "offset", "count", "share"} <= {*table}:
        raise ValueError(f"expected a table with columns relation, offset, count, share; got {said(table)}")
    parts = list(table.groupby("relation", sort=False))
    drawn = new_axes((4, 5), panels=len(parts)) if axes is None else list(np.ravel(np.asarray(axes)))
    if len(drawn) != len(parts):
        raise ValueError(f"the table has {len(parts)} relations and needs as many axes; got {len(drawn)}")
    for ax, (name, part) in zip(drawn, parts, strict=True):
        near = part.assign(offset=part["offset"].clip(-limit - 1, limit + 1))
        looks = {"color": sns.color_palette("colorblind")[2], "alpha": 1, "shrink": 0.8, "linewidth": 0}
        sns.histplot(near, x="offset", weights="share", discrete=True, ax=ax, **looks)
        ax.set(title=f"{name} (n = {part['count'].sum():,})", xlabel="offset of the head (words)", ylabel="")
        ax.set_xticks([-limit - 1, -(limit // 2), 0, limit // 2, limit + 1])
        ax.set_xticklabels([f"<−{limit}", f"−{limit // 2}", "0", f"+{limit // 2}", f">+{limit}"])
        sns.despine(ax=ax)
    drawn[0].set_ylabel("share")
    top = max(ax.get_ylim()[1] for ax in drawn)
    plt.setp(drawn, xlim=(-limit - 1.8, limit + 1.8), ylim=(0, top))
    return drawn


def dependency(heads: pd.DataFrame, *, kind: Kind | None = None, ax: Axes | None = None) -> Axes:
    """Draw the best head of each relation and way beside the best fixed offset (Voita et al. 2019, Fig. 4).

    n is over how many query words, where the table says.
    """
    import seaborn as sns

    shown, kind = of_kind(heads, kind)
    best = best_heads(shown)
    ax = new_axes((5, 2 * len(best)), cell=0.4, beside=2.2)[0] if ax is None else ax
    x = np.arange(len(best)) + 0.4 * best["relation"].ne(best["relation"].shift()).cumsum()
    ax.bar(x - 0.2, best["accuracy"], 0.4, color=sns.color_palette("colorblind")[2], label="best head, 95 % interval")
    ax.bar(x + 0.2, best["baseline"], 0.4, color="0.75", label="best fixed offset")
    ax.vlines(x - 0.2, best["low"], best["high"], color="0.1", linewidth=1.2)
    for place, name, top in zip(x - 0.2, best["name"], best[["accuracy", "high"]].max(axis=1), strict=True):
        ax.annotate(name, (place, top), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    words = best["words"].map(lambda n: "" if np.isnan(n) else f"\nn = {n:,.0f}")
    ax.set_xticks(x, best["text"] + "\n" + best["relation"] + words, fontsize=8)
    ax.set(title=TITLES[kind], ylabel="accuracy", ylim=(0, 1.06))
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    sns.despine(ax=ax)
    return ax


def curves(table: pd.DataFrame, *, label: str = "metric", ax: Axes | None = None) -> Axes:
    """Draw what is left when heads are closed in several orders, with 95 % intervals (Michel et al. 2019, Fig. 3).

    `table` is that of `headroles.ablation_curve`. Orders called "random 0", "random 1" ... are one grey line, their mean,
    in a band from the lowest to the highest.
    """
    import seaborn as sns

    needed = {"order", "share", "value", "low", "high"}
    if not isinstance(table, pd.DataFrame) or not needed <= set(table):
        raise ValueError(
            f"expected the table of headroles.ablation_curve ({', '.join(sorted(needed))}); got {said(table)}"
        )
    ax = new_axes((9, 12), cell=0.45, beside=3)[0] if ax is None else ax
    chance = table[table["order"].str.startswith("random ")].groupby("share")["value"].agg(["mean", "min", "max"])
    if len(chance):
        ax.fill_between(chance.index, chance["min"], chance["max"], color="0.85", linewidth=0)
        ax.plot(chance.index, chance["mean"], color="0.5", label="random")
    named = table[~table["order"].str.startswith("random ")]
    best_first = named.groupby("order")["value"].mean().sort_values(ascending=False, kind="stable").index
    hues = [hue for i, hue in enumerate(sns.color_palette("colorblind")) if i != 7]  # grey is chance
    looks = zip(cycle(product(("-", "--", ":"), hues)), cycle("osD^vP*X"), strict=False)
    for name, ((line, hue), marker) in zip(best_first, looks, strict=False):
        part = named[named["order"] == name]
        ax.fill_between(part["share"], part["low"], part["high"], color=hue, alpha=0.15, linewidth=0)
        ax.plot(part["share"], part["value"], line, color=hue, marker=marker, markersize=4, label=str(name))
    ax.set(xlabel="share of heads closed", ylabel=label, xlim=(0, 1))
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    sns.despine(ax=ax)
    return ax


def best_heads(table: Any) -> pd.DataFrame:
    """The best head of each relation and way, with its interval, the best fixed offset, and over how many words.

    Raises ValueError for a table without syntax.
    """
    names = [str(name) for name in table if str(name).startswith("syntax[") and str(name).endswith("]")]
    names = [name for name in names if table[name].notna().any()]
    if not names:
        raise ValueError(f"no values of syntax; hr.score(..., ['syntax']) makes them; got {said(table)}")
    rows = []
    for name in names:
        row = table.loc[table[name].idxmax()]
        relation, way = name[len("syntax[") : -1].split(" ")
        text, head = short(name.replace("syntax", "syntactic")), "L{}H{}".format(*row.name[-2:])
        rest = (row.get(f"{name}.{part}", np.nan) for part in ("low", "high", "baseline", "words"))
        rows.append((relation, way, text, head, row[name], *rest))
    columns = ["relation", "way", "text", "name", "accuracy", "low", "high", "baseline", "words"]
    return pd.DataFrame(rows, columns=columns)
