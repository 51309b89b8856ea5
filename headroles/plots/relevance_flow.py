"""Figures of relevance: the share of each head, and its conservation from output to inputs (no torch)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from headroles.plots.axes import font, legend, needs, new_axes, of_kind, points, stack
from headroles.plots.labels import label_of
from headroles.plots.matrix import heatmap
from headroles.plots.styling import hue
from headroles.tables.frame import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar

WAYS = {  # column of the conservation report -> its label and hue, in the order of the bars
    "leaves": ("down the stream", 0),
    "source": ("to the source, by cross-attention", 2),
    "biases": ("absorbed by biases", 1),
    "residue": ("residue", 4),
}
LEAST = 5e-4  # of the target; a way with less in every layer is no part of the legend
INPUT = ("input", 0)  # the row of the inputs


def relevance(values: pd.Series[float], *, kind: Kind | None = None, ax: Axes | None = None) -> Axes:
    """Draw relevance, the heads of each layer in descending order.

    Each cell has the number of its head. If the values of each layer sum to 1, as in `relevance[cp].size`, and
    all layers have equally many heads, a line on the colour bar marks the uniform share (Voita et al. 2019, Fig. 1a).

    Args:
        values: A column of relevance, such as `heads["relevance[cp].size"]`.
        kind: The kind of attention; may be left out if the table has one kind.
        ax: Axes to draw on; by default a new figure.
    """
    part, kind = of_kind(values, kind)
    numbers = pd.Series(values.index.get_level_values("head").astype(str), values.index)
    sums, heads = part.groupby("layer").sum(min_count=1).dropna(), part.dropna().groupby("layer").size().unique()
    shares = bool((part.dropna() >= 0).all() and np.isclose(sums.astype(float), 1, atol=1e-3).all())
    label = "\n".join([label_of(values.name)] * (values.name is not None) + ["share of the layer"] * shares)
    ax = heatmap(values, kind=kind, order="sorted", annotate=numbers, label=label, ax=ax)
    bar = ax.collections[0].colorbar
    if shares and len(heads) == 1 and bar is not None:
        _mark(bar, 1 / heads[0])
    return ax


def conservation(report: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw a conservation report: where relevance flows from the output to the inputs.

    A row for each layer, the inputs at the bottom. Its bars are the relevance that leaves in each way, negative values
    left of zero; the black line is the relevance that arrives. The title has the shares of the inputs, the biases and
    the residue.

    Args:
        report: Report of `headroles.scores.lrp.conservation_report.balance`.
        ax: Axes to draw on; by default a new figure.
    """
    needs(report, {"arrives", *WAYS}, "headroles.scores.lrp.conservation")
    part = pd.Series(report.index.get_level_values("part"))
    place = np.arange(len(report)) + 0.5 * (part.ne(part.shift()).cumsum().to_numpy() - 1)  # a gap between the stacks
    tall = place[-1] + 1
    ax = ax or new_axes((tall, 24), cell=0.24, beside=2.6, tall=2.3)[0]
    labels = {way: text if report[way].abs().max() >= LEAST else f"_{text}" for way, (text, _) in WAYS.items()}
    faces = {way: hue(face) for way, (_, face) in WAYS.items()}
    stack(ax, place, report[[*WAYS]], faces, labels=labels, across=True)
    ax.vlines(report["arrives"], place - 0.46, place + 0.46, color="0.1", linewidth=1.2, label="arrives")
    ax.use_sticky_edges = False  # a margin also where a bar ends
    ax.axvline(0, color="0.1", linewidth=0.8)
    rows = [name if name in ("output", "input") else f"{name} {layer}" for name, layer in report.index]
    ax.set_yticks(place, rows, fontsize=font(ax, (tall, 1), "output") or 4)
    ax.set(ylim=(tall - 0.4, -0.6), xlabel="share of the target", title=_total(report))
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    legend(ax, *ax.get_legend_handles_labels(), size=9)
    return ax


def _mark(bar: Colorbar, uniform: float) -> None:
    """Draw a line at `uniform` across the colour bar, with a tick that replaces ticks too near to it."""
    bar.ax.axhline(uniform, color="0.1", linewidth=1)
    low, high = bar.ax.get_ylim()
    near = 14 / points(bar) * (high - low)  # a line of text
    ticks = [tick for tick in bar.get_ticks() if low <= tick <= high and abs(tick - uniform) > near]
    texts = bar.formatter.format_ticks(ticks)
    bar.set_ticks([*ticks, uniform], labels=[*texts, "uniform"])


def _total(report: pd.DataFrame) -> str:
    inputs, biases = float(report["leaves"].loc[INPUT]), float(report["biases"].sum())
    parts = {"inputs": inputs, "biases": biases, "residue": 1 - inputs - biases}
    return ", ".join(f"{name} {100 * share:z.1f} %" for name, share in parts.items()).replace("-", "−")
