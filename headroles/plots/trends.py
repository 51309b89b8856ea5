"""Figures of strategies, speed and training: pruning comparison, efficiency, dynamics (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from headroles.plots.axes import evenly, finish, line, needs, new_axes, panels_of
from headroles.plots.labels import label_of
from headroles.plots.styling import colours, hue
from headroles.tables.columns import Column, of_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WHOLE = "all heads"  # the row of the whole model
WAYS = {"cut": "removed", "gates": "masked"}  # entry of the column `way` -> its label


def contest(
    table: pd.DataFrame, seeds: pd.DataFrame | None = None, *, label: str = "metric", axes: Sequence[Axes] | None = None
) -> list[Axes]:
    """Draw the quality of each pruning strategy, masked and retrained: a panel per number of heads left.

    Args:
        table: Table `contest` of `hr.compare_pruning`: means with 95 % intervals. Dotted lines are the whole model.
        seeds: Table `compare-pruning-seeds` of `hr.compare_pruning`; each seed is a small mark.
        label: Name of the metric.
        axes: Axes to draw on, one per number of heads; by default those of a new figure.

    Returns:
        One axes per number of heads.
    """
    needs(table, {"strategy", "heads", "tuned", "value", "value.low", "value.high"}, "hr.compare_pruning")
    whole = table[table["strategy"] == WHOLE]
    rest = table[table["strategy"] != WHOLE]
    sizes = sorted(rest["heads"].unique(), reverse=True)
    names = list(dict.fromkeys(rest["strategy"]))
    drawn = panels_of(axes, len(sizes), "numbers of heads", (len(names) + 2, 11), beside=1.2)
    for ax, size in zip(drawn, sizes, strict=True):
        for tuned, text in ((False, "masked, not retrained"), (True, "removed, retrained")):
            part = rest[(rest["heads"] == size) & (rest["tuned"] == tuned)].set_index("strategy").loc[names]
            y = np.arange(len(names)) + (0.17 if tuned else -0.17)
            spread = [part["value"] - part["value.low"], part["value.high"] - part["value"]]
            ax.errorbar(part["value"], y, xerr=spread, fmt="o", color=hue(tuned), capsize=2, label=text)
            if seeds is not None:
                runs = seeds[(seeds["heads"] == size) & (seeds["tuned"] == tuned) & (seeds["strategy"] != WHOLE)]
                rows = y[[names.index(name) for name in runs["strategy"]]] + 0.12
                ax.plot(runs["value"], rows, "|", color=hue(tuned), alpha=0.7)
            for value in whole.loc[whole["tuned"] == tuned, "value"]:
                ax.axvline(value, color=hue(tuned), linestyle=":", linewidth=1, label=f"{WHOLE}, {text.split(', ')[1]}")
        ax.set_yticks(range(len(names)), [label_of(name) for name in names])
        ax.invert_yaxis()
        ax.set(title=f"{size} heads left", xlabel=label)
    ends = [end for ax in drawn for end in ax.get_xlim()]
    for ax in drawn:
        ax.set_xlim(min(ends), max(ends))
        ax.tick_params(axis="y", labelleft=ax is drawn[0])
    finish(*drawn)
    return drawn


def efficiency(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the speedup of a model with removed heads, and with masks.

    The dotted line is the speedup that the number of operations allows. Drawn are the smallest and the largest batch.

    Args:
        table: Table of `hr.efficiency`.
        ax: Axes to draw on; by default those of a new figure.

    Returns:
        The axes.
    """
    import seaborn as sns

    needs(table, {"share", "way", "batch", "speedup", "speedup.low", "speedup.high", "allowed"}, "hr.efficiency")
    ax = ax or new_axes((9, 12), cell=0.42, beside=2.8)[0]
    sizes = evenly(sorted(table["batch"].unique()), 2)
    for size, color in zip(sizes, sns.color_palette("crest", len(sizes)), strict=True):
        for way, style in (("cut", "-"), ("gates", "--")):
            part = table[(table["batch"] == size) & (table["way"] == way)].sort_values("share")
            ends, label = (part["speedup.low"], part["speedup.high"]), f"{WAYS[way]}, batch {size}"
            line(ax, part["share"], part["speedup"], color=color, label=label, ends=ends, style=style)
    allowed = table[(table["way"] == "cut") & (table["batch"] == sizes[-1])].sort_values("share")
    ax.plot(allowed["share"], allowed["allowed"], ":", color="0.2", label="removed: allowed by operations")
    ax.axhline(1, color="0.6", linewidth=0.8)
    ax.set(xlabel="share of heads pruned", ylabel="speed / speed of the whole model")
    finish(ax)
    return ax


def dynamics(curves: pd.DataFrame, *, label: str = "metric", ax: Axes | None = None) -> Axes:
    """Draw the quality kept by pruning at each epoch of training (Michel et al. 2019, Fig. 5).

    Args:
        curves: Table `dynamics-curves` of `hr.dynamics`; a checkpoint is a line, and of many five are drawn.
        label: Name of the metric.
        ax: Axes to draw on; by default those of a new figure.

    Returns:
        The axes.
    """
    import seaborn as sns

    needs(curves, {"epoch", "share", "kept", "value"}, "hr.dynamics")
    ax = ax or new_axes((9, 12), cell=0.42, beside=2)[0]
    epochs = evenly(sorted(curves["epoch"].unique()))
    for epoch, color in zip(epochs, sns.color_palette("flare", len(epochs)), strict=True):
        part = curves[curves["epoch"] == epoch].sort_values("share")
        line(ax, part["share"], part["kept"], color=color, label=f"{epoch:.3g} ({part['value'].iloc[0]:.3g})")
    ax.axhline(1, color="0.6", linewidth=0.8)
    ax.set(xlabel="share of heads pruned", ylabel=f"share of the {label} that is kept")
    finish(ax, title=f"epoch (its {label})")
    return ax


def settling(order: pd.DataFrame, *, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """Draw when the ranking of heads converges during training, and when roles appear.

    Args:
        order: Table `dynamics-order` of `hr.dynamics`.
        axes: Two axes to draw on; by default those of a new figure.

    Returns:
        Two axes: rank correlation with the last ranking, and number of heads with each role.
    """
    needs(order, {"epoch", "all", "all.low", "all.high", "within"}, "hr.dynamics")
    roles = {str(Column.parse(name).detail): name for name in of_name(order, "roles") if order[name].any()}
    left, right = panels_of(axes, 2, "panels", (8, 10), beside=1)
    for place, (name, text) in enumerate((("all", "all heads"), ("within", "within layers"))):
        ends = order[f"{name}.low"], order[f"{name}.high"]
        line(left, order["epoch"], order[name], color=hue(place), label=text, ends=ends)
    left.set(xlabel="epoch", ylabel="rank correlation with the last ranking", ylim=(None, 1.02))
    left.legend(frameon=False, loc="best")
    for role, color in colours(roles, shade=0.8).items():
        line(right, order["epoch"], order[roles[role]], color=color, label=role)
    right.set(xlabel="epoch", ylabel="heads with the role", ylim=(0, None))
    finish(left, right)
    return [left, right]
