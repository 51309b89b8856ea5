"""Figures of strategies, speed and training: pruning comparison, efficiency, dynamics (no torch)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headroles.plots.axes import OUTSIDE, needs, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WHOLE = "all heads"  # the row of the whole model


def contest(
    table: pd.DataFrame, seeds: pd.DataFrame | None = None, *, label: str = "metric", axes: Any = None
) -> list[Axes]:
    """Draw the quality of each pruning strategy, masked and retrained.

    There is a panel per number of heads left.

    Args:
        table: Table `contest` of `hr.compare_pruning`: means with 95 % intervals. Dotted lines are the whole model.
        seeds: Table `contest-seeds` of `hr.compare_pruning`; each seed is a small mark.
        label: Name of the metric.
        axes: Axes to draw on, one per number of heads; by default those of a new figure.

    Returns:
        One axes per number of heads.
    """
    import seaborn as sns

    needs(table, {"strategy", "heads", "tuned", "value", "value.low", "value.high"}, "hr.compare_pruning")
    whole = table[table["strategy"] == WHOLE]
    rest = table[table["strategy"] != WHOLE]
    sizes = sorted(rest["heads"].unique(), reverse=True)
    names = list(dict.fromkeys(rest["strategy"]))
    drawn = new_axes((len(names) + 2, 11), cell=0.42, panels=len(sizes), beside=1.2) if axes is None else list(axes)
    hues = dict(zip((False, True), sns.color_palette("colorblind"), strict=False))
    for ax, size in zip(drawn, sizes, strict=True):
        for tuned in (False, True):
            part = rest[(rest["heads"] == size) & (rest["tuned"] == tuned)].set_index("strategy").loc[names]
            y = np.arange(len(names)) + (0.17 if tuned else -0.17)
            spread = [part["value"] - part["value.low"], part["value.high"] - part["value"]]
            text = "removed, retrained" if tuned else "masked, not retrained"
            ax.errorbar(part["value"], y, xerr=spread, fmt="o", color=hues[tuned], capsize=2, label=text)
            if seeds is not None:
                runs = seeds[(seeds["heads"] == size) & (seeds["tuned"] == tuned) & (seeds["strategy"] != WHOLE)]
                rows = y[[names.index(name) for name in runs["strategy"]]] + 0.12
                ax.plot(runs["value"], rows, "|", color=hues[tuned], alpha=0.7)
            for value in whole.loc[whole["tuned"] == tuned, "value"]:
                ax.axvline(value, color=hues[tuned], linestyle=":", linewidth=1)
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.set(title=f"{size} heads left", xlabel=label)
        sns.despine(ax=ax)
    for ax in drawn[1:]:
        ax.tick_params(axis="y", labelleft=False)
    drawn[-1].legend(**OUTSIDE)
    return drawn


def efficiency(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the speedup of a model with removed heads, and with masks.

    The dotted line is the speedup that the number of operations allows.

    Args:
        table: Table of `hr.efficiency`.
        ax: Axes to draw on; by default those of a new figure.

    Returns:
        The axes.
    """
    import seaborn as sns

    needs(table, {"share", "way", "batch", "speedup", "speedup.low", "speedup.high", "allowed"}, "hr.efficiency")
    ax = new_axes((9, 12), cell=0.42, beside=2.6)[0] if ax is None else ax
    sizes = sorted(table["batch"].unique())
    for size, hue in zip(sizes, sns.color_palette("crest", len(sizes)), strict=True):
        for way, line in (("cut", "-"), ("gates", "--")):
            part = table[(table["batch"] == size) & (table["way"] == way)].sort_values("share")
            ax.plot(
                part["share"], part["speedup"], line, color=hue, marker="o", markersize=3, label=f"{way}, batch {size}"
            )
            ax.fill_between(
                part["share"], part["speedup.low"], part["speedup.high"], color=hue, alpha=0.12, linewidth=0
            )
    allowed = table[(table["way"] == "cut") & (table["batch"] == sizes[-1])].sort_values("share")
    ax.plot(allowed["share"], allowed["allowed"], ":", color="0.2", label="cut: allowed by operations")
    ax.axhline(1, color="0.6", linewidth=0.8)
    ax.set(xlabel="share of heads pruned", ylabel="speed / speed of the whole model")
    ax.legend(**OUTSIDE)
    sns.despine(ax=ax)
    return ax


def dynamics(curves: pd.DataFrame, *, label: str = "metric", ax: Axes | None = None) -> Axes:
    """Draw the quality kept by pruning at each epoch of training.

    See Michel et al. 2019, Fig. 5.

    Args:
        curves: Table `dynamics-curves` of `hr.dynamics`; each checkpoint is a line.
        label: Name of the metric.
        ax: Axes to draw on; by default those of a new figure.

    Returns:
        The axes.
    """
    import seaborn as sns

    needs(curves, {"epoch", "share", "kept", "value"}, "hr.dynamics")
    ax = new_axes((9, 12), cell=0.42, beside=2)[0] if ax is None else ax
    epochs = sorted(curves["epoch"].unique())
    for epoch, hue in zip(epochs, sns.color_palette("flare", len(epochs)), strict=True):
        part = curves[curves["epoch"] == epoch].sort_values("share")
        ax.plot(
            part["share"],
            part["kept"],
            color=hue,
            marker="o",
            markersize=3,
            label=f"{epoch:.0f} ({part['value'].iloc[0]:.1f})",
        )
    ax.axhline(1, color="0.6", linewidth=0.8)
    ax.set(xlabel="share of heads pruned", ylabel=f"share of the {label} that is kept")
    ax.legend(title=f"epoch (its {label})", **OUTSIDE)
    sns.despine(ax=ax)
    return ax


def settling(order: pd.DataFrame, *, axes: Any = None) -> list[Axes]:
    """Draw when the ranking of heads converges during training, and when roles appear.

    Args:
        order: Table `dynamics-order` of `hr.dynamics`.
        axes: Two axes to draw on; by default those of a new figure.

    Returns:
        Two axes: rank correlation with the last ranking, and number of heads with each role.
    """
    import seaborn as sns

    needs(order, {"epoch", "all", "all.low", "all.high", "within"}, "hr.dynamics")
    roles = [name for name in map(str, order) if name.startswith("roles[") and order[name].any()]
    drawn = new_axes((8, 10), cell=0.42, panels=2) if axes is None else list(axes)
    hues = sns.color_palette("colorblind")
    for name, hue, text in (("all", hues[0], "all heads"), ("within", hues[1], "within layers")):
        drawn[0].plot(order["epoch"], order[name], color=hue, marker="o", markersize=4, label=text)
        drawn[0].fill_between(
            order["epoch"], order[f"{name}.low"], order[f"{name}.high"], color=hue, alpha=0.15, linewidth=0
        )
    drawn[0].set(xlabel="epoch", ylabel="rank correlation with the last ranking", ylim=(None, 1.02))
    for name, hue in zip(roles, hues[2:], strict=False):
        drawn[1].plot(order["epoch"], order[name], color=hue, marker="o", markersize=4, label=name[len("roles[") : -1])
    drawn[1].set(xlabel="epoch", ylabel="heads with the role", ylim=(0, None))
    for ax in drawn:
        if ax.get_legend_handles_labels()[0]:
            ax.legend(frameon=False, loc="best")
        sns.despine(ax=ax)
    return drawn
