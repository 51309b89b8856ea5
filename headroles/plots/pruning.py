"""Figures of pruning: what is left at each size, strategies, gates, speed, and dynamics of training (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from headroles.analysis.summaries import THIRDS, gate_density, sizes_of, thirds
from headroles.plots.axes import TITLES, colour_bar, evenly, finish, line, needs, new_axes, stack
from headroles.plots.labels import SIDES, label_of, strategy_label, value_label
from headroles.plots.styling import colours, hue, readable
from headroles.tables.arguments import one_of
from headroles.tables.columns import Column, of_name
from headroles.tables.declared import signature_of
from headroles.tables.frame import KINDS, LEVELS, Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FUNCTIONS = ("positional", "syntactic", "rare", "alignment", "sink", "several")
WHOLE = "all heads"  # the row of the whole model
WAYS = {"cut": "removed", "gates": "masked"}  # entry of the column `way` -> its label


def survival(table: pd.DataFrame, *, label: str = "", ax: Axes | None = None) -> Axes:
    """Draw the quality of models pruned to several sizes, with 95 % intervals.

    The dotted line is the control: the whole model after the same training (Voita et al. 2019, Fig. 7).

    Args:
        table: Table of `hr.sparsity_sweep`.
        label: Name of the metric; by default from the table.
        ax: Axes to draw on; by default a new figure.
    """
    needs(table, {"heads", "of", "value", "low", "high"}, "hr.sparsity_sweep")
    ax = ax or new_axes((9, 13), cell=0.4)[0]
    pruned, spread = table["of"] - table["heads"], [table["value"] - table["low"], table["high"] - table["value"]]
    ax.errorbar(pruned, table["value"], spread, color=hue(0), marker="o", markersize=4, capsize=2, linewidth=1.2)
    ax.axhline(table["value"].iloc[0], color=hue(0), linestyle=":", linewidth=1)
    of = int(table["of"].iloc[0])
    top = ax.secondary_xaxis("top", functions=(partial(np.subtract, of), partial(np.subtract, of)))
    top.set_xlabel("heads left")
    ax.set(xlabel="heads pruned", ylabel=label or value_label(table))
    finish(ax)
    ax.spines["top"].set_visible(True)
    return ax


def functions(table: pd.DataFrame, *, kind: Kind = "enc-self", ax: Axes | None = None) -> Axes:
    """Draw the functions of the heads left at each size (Voita et al. 2019, Fig. 8): a column per size.

    Args:
        table: Table `functions-...` of `hr.sparsity_sweep`; "several" are heads with roles of more than one family.
        kind: The kind of attention.
        ax: Axes to draw on; by default a new figure.
    """
    needs(table, {"kind", "function", "count", "heads"}, "hr.sparsity_sweep with scored=")
    rows = table[table["kind"] == one_of("kind", kind, table["kind"].unique())]
    wide = rows.pivot_table(index="heads", columns="function", values="count", fill_value=0, observed=True)
    names = [name for name in ("none", *FUNCTIONS) if name in wide]
    wide = wide.sort_index(ascending=False)[[*names, *wide.columns.difference(names)]].astype(float)
    ax = ax or new_axes((8, len(wide) + 2), cell=0.5, beside=1.6)[0]
    faces = colours(map(str, wide)) | {"none": (0.88, 0.88, 0.88)}
    stacked = stack(ax, range(len(wide)), wide, faces, labels={"none": "no role"})
    for name, bars in zip(map(str, wide), stacked, strict=True):
        counts = [f"{count:.0f}" if count else "" for count in wide[name]]
        ax.bar_label(bars, counts, label_type="center", fontsize=8, color=readable(faces[name]))
    ax.set_xticks(range(len(wide)), [f"{size:.0f}" for size in wide.index])
    ax.set(title=TITLES[kind], xlabel="heads left of the prunable ones", ylabel="heads")
    finish(ax, reverse=True)
    return ax


def by_kind(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how many heads of each kind are left at each size (Voita et al. 2019, Fig. 9).

    Args:
        table: Table of `hr.sparsity_sweep`.
        ax: Axes to draw on; by default a new figure.
    """
    needs(table, {"heads", "of"}, "hr.sparsity_sweep")
    ax = ax or new_axes((9, 13), cell=0.4, beside=2.2)[0]
    pruned, hues = table["of"] - table["heads"], colours(KINDS)
    for kind, marker in zip((kind for kind in KINDS if kind in table), "osD", strict=False):
        line(ax, pruned, table[kind], color=hues[kind], marker=marker, label=TITLES[kind])
    ax.set(xlabel="heads pruned", ylabel="heads left of this kind", ylim=(0, None))
    finish(ax)
    return ax


def by_layer(table: pd.DataFrame, *, kind: Kind = "enc-self", ax: Axes | None = None) -> Axes:
    """Draw how many heads each layer has left at each size (Voita et al. 2019, Fig. 10).

    Args:
        table: Table `survival-...` of `hr.sparsity_sweep`: a column `survival[...]` for each size.
        kind: The kind of attention.
        ax: Axes to draw on; by default a new figure.
    """
    import seaborn as sns

    columns = sizes_of(table)
    rows = table[table.index.get_level_values("kind") == kind]
    left, of = rows[columns].groupby(level="layer").sum(), int(rows.groupby(level="layer").size().max())
    names = [str(Column.parse(name).detail) for name in columns]
    prunings = [pruning for name in columns if (pruning := Column.parse(name).pruning)]
    labels = {strategy_label(pruning, signature_of(table, columns[0])) for pruning in prunings}
    if len(labels) == 1 and all(pruning.heads is not None and pruning.strategy for pruning in prunings):
        names = [str(pruning.heads) for pruning in prunings]  # one strategy: its numbers alone say which size
    ax = ax or new_axes(left.shape, cell=0.5, beside=1)[0]
    sns.heatmap(left, annot=True, fmt=".0f", cmap="YlGnBu", vmin=0, vmax=of, linewidths=0.5, cbar=False, ax=ax)
    colour_bar(ax, ax.collections[0], "heads left")
    ax.invert_yaxis()
    ax.tick_params(rotation=0, length=0)
    label = f"prunable heads left, by {labels.pop()}" if len(labels) == 1 else ""
    ax.set(title=TITLES[kind], ylabel="layer", xlabel=label)
    ax.set_xticks(ax.get_xticks(), names)
    return ax


def by_third(table: pd.DataFrame) -> list[Axes]:
    """Draw how many heads the lower, middle and upper layers of a decoder have left: a panel per kind.

    This is Fig. 10 of Voita et al. 2019.

    Args:
        table: Table `survival-...` of `hr.sparsity_sweep`.
    """
    kind_of_row = table.index.get_level_values("kind")
    pruned = pd.Series([0, *((table[name] == 0).sum() for name in sizes_of(table))])
    kinds = [kind for kind in ("dec-self", "cross") if kind in kind_of_row]
    drawn = new_axes((8, 10), cell=0.42, panels=len(kinds), beside=1)
    for ax, kind in zip(drawn, kinds, strict=True):
        left = thirds(table[kind_of_row == kind])
        for place, (third, marker) in enumerate(zip(THIRDS, "osD", strict=True)):
            counts = pd.Series([left[f"{kind} {third}.of"].iloc[0], *left[f"{kind} {third}"]])
            line(ax, pruned, counts, color=hue(place), marker=marker, label=third)
        ax.set(title=TITLES[kind], xlabel="heads pruned", ylabel="heads left", ylim=(0, None))
    finish(*drawn, title="layers")
    return drawn


def gates(history: pd.DataFrame, *, kind: Kind | None = None, ax: Axes | None = None) -> Axes:
    """Draw P(gate != 0) of every head over the steps of training.

    Args:
        history: Table `gates-...` that `hr.prune` keeps in a study.
        kind: The kind of attention; by default all.
        ax: Axes to draw on; by default a new figure.
    """
    import seaborn as sns
    from matplotlib.ticker import MaxNLocator

    needs(history, {*LEVELS, "step", "open"}, "hr.prune with learned gates")
    rows = history if kind is None else history[history["kind"] == kind]
    wide = rows.pivot_table(index=LEVELS, columns="step", values="open", observed=True, sort=False)
    cell = float(np.clip(9 / len(wide), 0.06, 0.13))
    ax = ax or new_axes((len(wide), 8 / cell), cell=cell, beside=1)[0]
    sns.heatmap(wide, cmap="YlGnBu", vmin=0, vmax=1, cbar=False, ax=ax, rasterized=True)
    colour_bar(ax, ax.collections[0], "P(gate ≠ 0)")
    layers = [head[:2] for head in wide.index]
    starts = [place for place in range(len(wide)) if place == 0 or layers[place] != layers[place - 1]]
    ax.hlines(starts[1:], 0, wide.shape[1], color="white", linewidth=0.8)
    ends = [*starts[1:], len(wide)]
    several_kinds = len({name for name, _ in layers}) > 1
    names = [
        f"{SIDES[layers[start][0]]} {layers[start][1]}" if several_kinds else str(layers[start][1]) for start in starts
    ]
    ax.set_yticks([(start + end) / 2 for start, end in zip(starts, ends, strict=True)], names, rotation=0)
    first, last = float(wide.columns[0]), float(wide.columns[-1])
    ticks = [step for step in MaxNLocator(6, integer=True).tick_values(first, last) if first <= step <= last]
    places = np.interp(ticks, wide.columns, np.arange(wide.shape[1]) + 0.5)
    ax.set_xticks(places, [f"{step:.0f}" for step in ticks], rotation=0)
    ax.set(xlabel="step", ylabel="layer; a row per head")
    return ax


def densities(log_alphas: Sequence[float] = (0, 2, -3), *, ax: Axes | None = None) -> Axes:
    """Draw the Hard Concrete distribution for values of log alpha (Voita et al. 2019, Fig. 6b).

    Args:
        log_alphas: Location parameters.
        ax: Axes to draw on; by default a new figure.
    """
    import seaborn as sns

    ax = ax or new_axes((8, 12), cell=0.42, beside=2.4)[0]
    x = np.linspace(0, 1, 400)[1:-1]
    for place, log_alpha in enumerate(log_alphas):
        density, zero, full = gate_density(x, log_alpha)
        text = f"log α = {log_alpha:g}: P(0) = {zero:.3f}, P(1) = {full:.3f}".replace("-", "−")
        ax.plot(x, density, color=hue(place), label=text)
        shift = 0.012 * (place - (len(log_alphas) - 1) / 2)
        ax.vlines([shift, 1 + shift], 0, [zero, full], color=hue(place), linewidth=4, alpha=0.6)
    ax.set(xlabel="gate", ylabel="density; bars: probability of 0 and of 1", xlim=(-0.06, 1.06), ylim=(0, None))
    ax.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.01), borderaxespad=0)
    sns.despine(ax=ax)
    return ax


def compare_pruning(table: pd.DataFrame, seeds: pd.DataFrame | None = None, *, label: str = "") -> list[Axes]:
    """Draw the quality of each pruning strategy, masked and retrained: a panel per number of heads left.

    Args:
        table: Table `compare-pruning` of `hr.compare_pruning`: means with 95 % intervals; dotted lines: all heads.
        seeds: Table `compare-pruning-seeds` of `hr.compare_pruning`; each seed is a small mark.
        label: Name of the metric; by default from the table.
    """
    needs(table, {"strategy", "heads", "tuned", "value", "value.low", "value.high"}, "hr.compare_pruning")
    whole = table[table["strategy"] == WHOLE]
    rest = table[table["strategy"] != WHOLE]
    sizes = sorted(rest["heads"].unique(), reverse=True)
    names = list(dict.fromkeys(rest["strategy"]))
    drawn = new_axes((len(names) + 2, 11), cell=0.42, panels=len(sizes), beside=1.2)
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
        ax.set(title=f"{size} heads left", xlabel=label or value_label(table))
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
        ax: Axes to draw on; by default a new figure.
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


def dynamics(curves: pd.DataFrame, *, label: str = "", ax: Axes | None = None) -> Axes:
    """Draw the quality kept by pruning at each epoch of training (Michel et al. 2019, Fig. 5).

    Args:
        curves: Table `dynamics-curves` of `hr.dynamics`; a checkpoint is a line, and of many five are drawn.
        label: Name of the metric; by default from the table.
        ax: Axes to draw on; by default a new figure.
    """
    import seaborn as sns

    needs(curves, {"epoch", "share", "kept", "value"}, "hr.dynamics")
    ax, label = ax or new_axes((9, 12), cell=0.42, beside=2)[0], label or value_label(curves)
    epochs = evenly(sorted(curves["epoch"].unique()))
    for epoch, color in zip(epochs, sns.color_palette("flare", len(epochs)), strict=True):
        part = curves[curves["epoch"] == epoch].sort_values("share")
        line(ax, part["share"], part["kept"], color=color, label=f"{epoch:.3g} ({part['value'].iloc[0]:.3g})")
    ax.axhline(1, color="0.6", linewidth=0.8)
    ax.set(xlabel="share of heads pruned", ylabel=f"share of the {label} that is kept")
    finish(ax, title=f"epoch (its {label})")
    return ax


def settling(order: pd.DataFrame) -> list[Axes]:
    """Draw when the ranking of heads converges during training, and when roles appear.

    The first panel has the rank correlation with the last ranking, the second the number of heads with each role.

    Args:
        order: Table `dynamics-order` of `hr.dynamics`.
    """
    needs(order, {"epoch", "all", "all.low", "all.high", "within"}, "hr.dynamics")
    roles = {str(Column.parse(name).detail): name for name in of_name(order, "roles") if order[name].any()}
    left, right = new_axes((8, 10), cell=0.42, panels=2, beside=1)
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
