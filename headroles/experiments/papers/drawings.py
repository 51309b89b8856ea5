"""Drawings of the papers' figures that need more than one call of `hr.plots` (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from headroles import plots
from headroles.experiments.papers.tables import of_kind
from headroles.plots.axes import new_axes


def ranked(pair: pd.DataFrame) -> Any:
    """Draw the first column, the heads of each layer by falling values of the second, with their numbers."""
    ranks = pair.iloc[:, 1].groupby(level="layer").rank(ascending=False, method="first").astype(int) - 1
    kinds, layers, heads = (pair.index.get_level_values(name) for name in ("kind", "layer", "head"))
    index = pd.MultiIndex.from_arrays([kinds, layers, ranks], names=["kind", "layer", "head"])
    values = pair.iloc[:, 0].set_axis(index).sort_index()
    ax = plots.heatmap(values, annotate=pd.Series(heads.astype(str), index), kind="enc-self")
    ax.set_xlabel("head, by falling relevance; its number in the cell")
    return ax


def corpora(panels: Sequence[tuple[Any, Any, str]]) -> Any:
    """Draw confidence and functions side by side; a panel is a table of scores, its roles and its corpus."""
    import matplotlib.pyplot as plt

    deep, wide = (of_kind(panels[0][1]).index.get_level_values(level).max() + 1 for level in ("layer", "head"))
    size = (2 * (wide * 0.5 + 1.2), len(panels) * (deep * 0.5 + 1.2))
    _, grid = plt.subplots(len(panels), 2, figsize=size, layout="constrained", squeeze=False)
    most = max(of_kind(table)["confidence"].max() for table, _, _ in panels)  # one scale for all panels
    for (left, right), (table, roles, name) in zip(grid, panels, strict=True):
        plots.heatmap(table["confidence"], kind="enc-self", vmax=most, ax=left).set_title(
            f"confidence on {name}", fontsize=9
        )
        plots.roles(roles, kind="enc-self", legend=False, ax=right).set_title(f"functions on {name}", fontsize=9)
    return grid[0, 0]


def weights(part: Any) -> Any:
    """Return the attention weights of one sentence, queries by keys."""
    return part.pivot_table(index="query", columns="key", values="weight")


def sentences(table: Any) -> Any:
    """Draw the attention of one head on each sentence."""
    parts = [part for _, part in table.groupby("sentence", sort=False)]
    axes = new_axes((10, 10), cell=0.4, panels=len(parts))
    for ax, part in zip(axes, parts, strict=True):
        wide = weights(part)
        names = [*part.drop_duplicates("key").set_index("key")["token"].loc[wide.columns]]
        plots.attention(wide.set_axis(names, axis=0).set_axis(names, axis=1), vmax=1, ax=ax)
    axes[0].set_title("layer {layer} head {head}".format(**parts[0].iloc[0]))
    return axes[0]


def histories(tables: Sequence[pd.DataFrame], sizes: Sequence[int]) -> Any:
    """Draw P(gate != 0) of the encoder's heads over training, a panel for each size."""
    count = len(tables[0].query("kind == 'enc-self' and step == step.max()"))
    axes = new_axes((count, 26), cell=0.13, panels=len(tables))
    for ax, table, size in zip(axes, tables, sizes, strict=True):
        plots.gates(table, kind="enc-self", ax=ax).set_title(f"{size} heads left")
    for mesh in (ax.collections[0] for ax in axes[:-1]):
        mesh.colorbar.remove()  # type: ignore[union-attr]
    return axes[0]
