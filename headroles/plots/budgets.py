"""Figures of cache budgets: which key-value heads keep their whole cache, and what streaming costs (no torch)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headroles.plots.axes import legend, needs, new_axes
from headroles.plots.matrix import DEEP, WIDTH, heatmap
from headroles.tables.frame import LEVELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def budget(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw a budget as layers x key-value heads, layer 0 at the bottom, or of more than 16 layers at the left.

    The colour is the effect of streaming on the loss of answers, red where it costs. A frame marks the groups that keep
    their whole cache. Layers with a window are blank.

    Args:
        table: Table of `hr.cache_budget`.
        ax: Axes to draw on; by default those of a new figure.

    Returns:
        The axes.
    """
    from matplotlib.patches import Rectangle

    needs(table, {"effect", "retrieval", "streaming"}, "hr.cache_budget")
    effect = pd.Series(table["effect"].to_numpy(float), index=table.index.set_names(LEVELS), name="effect")
    far = float(np.nanmax(np.abs(effect))) or 1.0
    layers, groups = (int(table.index.get_level_values(level).max()) + 1 for level in ("layer", "group"))
    deep = layers > DEEP
    if ax is None:
        ax = new_axes((groups, layers), cell=WIDTH / layers, tall=2.6)[0] if deep else _flat((layers, groups))
    heatmap(effect, vmin=-far, vmax=far, cmap="vlag", label="effect of streaming\non the loss (nats)", ax=ax)
    kept = table.index[table["retrieval"] == 1]
    options: dict[str, Any] = {"fill": False, "edgecolor": "0.1", "linewidth": 1.6}
    for _, layer, group in kept:
        x, y = (layer, group) if deep else (group, layer)
        ax.add_patch(Rectangle((x + 0.08, y + 0.08), 0.84, 0.84, **options))
    (ax.set_ylabel if deep else ax.set_xlabel)("key-value head")
    ax.set_title("cache budget")
    text = f"keeps its whole cache ({len(kept)} of {len(table)})"
    legend(ax, [Rectangle((0, 0), 1, 1, **options)], [text], below=True)
    return ax


def _flat(shape: tuple[int, int]) -> Axes:
    """Make axes that have room for a colour bar and a legend, also of two layers."""
    return new_axes(shape, cell=0.5, beside=2.2, below=0.4, tall=3)[0]
