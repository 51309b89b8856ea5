"""Figures of effects and scores: per head or key-value group, their distribution, their agreement (no torch)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from headroles.analysis.summaries import correlations, of_both
from headroles.plots.axes import TITLES, colour_bar, font, legend, needs, new_axes, of_kind
from headroles.plots.labels import label_of
from headroles.plots.matrix import DEEP, WIDTH, heatmap
from headroles.plots.styling import colours, readable
from headroles.tables.columns import COST, Column, of_name
from headroles.tables.declared import costs, quality, signature_of
from headroles.tables.frame import LEVELS, Kind, described

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RANKS = (("Pearson", "pearson"), ("Spearman", "spearman"))
ABLATED = {"all_but_one": "all but one", "layer": "whole layers", "kind": "whole kinds"}
SURE = 0.01  # p below which an effect is marked (Michel et al. 2019, Table 1)


def ablation(table: pd.DataFrame, *, kind: Kind | None = None, ax: Axes | None = None) -> Axes:
    """Draw the cost of ablating each head as layers x heads.

    Above 0, and red, is harm by every metric, white no effect; all kinds share one scale. "*" marks p < 0.01, "**"
    p < 0.01 after Holm's correction for all heads (after Michel et al. 2019, Table 1).

    Args:
        table: Table of `hr.ablate`.
        kind: The kind of attention; may be left out if the table has one kind.
        ax: Axes to draw on; by default a new figure.
    """
    name = effect_of(table)
    decimals = 2 if table[name].abs().max() >= 0.5 else 3
    marks = (table[f"{name}.p"] < SURE).astype(float) + (table[f"{name}.holm"] < SURE)
    texts = costs(table[name]).map(f"{{:z.{decimals}f}}".format).str.replace("-", "−")
    texts += marks.map({0: "", 1: "*", 2: "**"})
    ax = heatmap(table[name], kind=kind, annotate=texts, label=f"cost in {_measured(table)}\n({COST})", ax=ax)
    stars = of_kind(marks[table[name].notna()], kind)[0]
    sure = f"p < {SURE:g} for {(stars > 0).sum()} of {len(stars)} heads, {(stars > 1).sum()} by Holm"
    ax.set_title(f"{ax.get_title()}\n{sure}" if table[f"{name}.p"].notna().any() else ax.get_title())
    return ax


def histogram(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the distribution of the costs of ablating single heads, by kind (Michel et al. 2019, Fig. 1).

    Args:
        table: Table of `hr.ablate`.
        ax: Axes to draw on; by default a new figure.
    """
    import seaborn as sns

    name = effect_of(table)
    ax = ax or new_axes((9, 13), cell=0.4)[0]
    kinds = [kind for kind in TITLES if kind in table.index.unique("kind")]
    rows, legend = costs(table[name]).reset_index(), len(kinds) > 1
    sns.histplot(
        rows, x=name, hue="kind", hue_order=kinds, multiple="stack", palette=colours(kinds), alpha=0.9, legend=legend,
        ax=ax,
    )  # fmt: skip
    ax.axvline(0, color="0.2", linestyle="--", linewidth=1)
    ax.set(xlabel=f"cost in {_measured(table)} when one head is ablated\n({COST})", ylabel="heads")
    if legend:
        sns.move_legend(ax, "best", title="", frameon=False, labels=[TITLES[kind] for kind in kinds])
    sns.despine(ax=ax)
    return ax


def agreement(
    first: pd.DataFrame, second: pd.DataFrame, *, names: tuple[str, str] = ("", ""), ax: Axes | None = None
) -> Axes:
    """Draw the costs of the same heads on two corpora against each other.

    The title has their correlations with 95 % intervals (Michel et al. 2019, Fig. 2).

    Args:
        first: Table of `hr.ablate` on the first corpus.
        second: Table of `hr.ablate` on the second corpus.
        names: Names of the corpora.
        ax: Axes to draw on; by default a new figure.
    """
    import seaborn as sns

    columns = effect_of(first), effect_of(second)
    shown = [costs(table[name]) for table, name in zip((first, second), columns, strict=True)]
    both = of_both(*shown)
    numbers = correlations(*shown).loc["all"]
    ax = ax or new_axes((10, 11), cell=0.45)[0]
    kinds = [kind for kind in TITLES if kind in both.index.unique("kind")]
    rows = both.reset_index().replace({"kind": TITLES})
    palette = {TITLES[kind]: face for kind, face in colours(kinds).items()}
    sns.scatterplot(rows, x="one", y="other", hue="kind", palette=palette, ax=ax)
    ax.plot(0, 0, marker="*", markersize=13, color="0.1", linestyle="", label="no head ablated")
    ax.legend(frameon=False)
    lines = (
        f"{name} {numbers[key]:.2f} [{numbers[f'{key}.low']:.2f}, {numbers[f'{key}.high']:.2f}]" for name, key in RANKS
    )
    ax.set_title("\n".join(lines))
    x, y = (f"cost in {_measured(table)}" for table in (first, second))
    ax.set(xlabel=x + f" on {names[0]}" * bool(names[0]), ylabel=y + f" on {names[1]}" * bool(names[1]))
    sns.despine(ax=ax)
    return ax


def score_map(table: pd.DataFrame, value: Literal["all", "within"] = "all", *, ax: Axes | None = None) -> Axes:
    """Draw the correlations of all scores as a map, similar scores side by side.

    Scores are ordered by average linkage on 1 - |correlation|; the tree is at the right. Numbers are correlations in
    hundredths. Pale ones have an interval that includes 0.

    Args:
        table: Table of `hr.analysis.score_correlations`.
        value: Correlations over "all" heads, or "within" layers.
        ax: Axes to draw on; by default a new figure.
    """
    import seaborn as sns
    from scipy.cluster.hierarchy import dendrogram, linkage
    from scipy.spatial.distance import squareform

    needs(table, {"first", "second", f"{value}", f"{value}.low", f"{value}.high"}, "hr.analysis.score_correlations")
    scores = list(dict.fromkeys([*table["first"], *table["second"]]))
    both = pd.concat([table, table.rename(columns={"first": "second", "second": "first"})])
    both["unsure"] = (both[f"{value}.low"] <= 0) & (both[f"{value}.high"] >= 0)
    grids = {name: both.pivot(index="first", columns="second", values=name) for name in (value, "unsure")}
    distance = 1 - grids[value].loc[scores, scores].abs().fillna(0).to_numpy()
    np.fill_diagonal(distance, 0)
    tree = linkage(squareform(distance, checks=False), "average", optimal_ordering=True)
    order = [scores[place] for place in dendrogram(tree, no_plot=True)["leaves"]]
    grid, unsure = grids[value].loc[order, order], grids["unsure"].loc[order, order]
    labels = [label_of(score, signature_of(table, value)) for score in order]
    cell, room = 0.34, 0.075 * max(map(len, labels)) + 0.5  # inches; cells are nearly square: `square` cuts labels
    ax = ax or new_axes(grid.shape, cell=cell, beside=0.1 * cell * len(order) + room, tall=cell * len(order) + room)[0]
    sns.heatmap(grid, cmap="vlag", vmin=-1, vmax=1, cbar=False, ax=ax, linewidths=0.5)
    ax.set(xlabel="", ylabel="", xticklabels=labels, yticklabels=labels)
    ax.tick_params(length=0)
    branch = ax.inset_axes((1.005, 0, 0.1, 1))
    dendrogram(tree, orientation="right", ax=branch, no_labels=True, color_threshold=0, above_threshold_color="0.4")
    branch.invert_yaxis()
    branch.set_axis_off()
    colour_bar(ax, ax.collections[0], f"rank correlation, {'all heads' if value == 'all' else 'within layers'}")
    size = font(ax, grid.shape, "−00")
    for (row, column), number in np.ndenumerate(grid.to_numpy()):
        if size and np.isfinite(number):
            face = ax.collections[0].cmap((number + 1) / 2)
            colour = "0.65" if unsure.iloc[row, column] else readable(face[:3])
            text = f"{100 * number:z.0f}".replace("-", "−")
            ax.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=colour, fontsize=size)
    return ax


def effect_of(table: pd.DataFrame) -> str:
    """Return the column of effects in a table of `hr.ablate`; raise ValueError for another table, or without values."""
    names = list(map(str, table)) if isinstance(table, pd.DataFrame) else []
    effects = of_name(names, "ablation")
    if len(effects) != 1 or not {f"{effects[0]}.p", f"{effects[0]}.holm"} <= set(names):
        raise ValueError(
            f"not a table of hr.ablate: got {described(table)}; expected one column ablation[...], with .p and .holm"
        )
    if np.isnan(table[effects[0]]).all():
        raise ValueError(f"nothing to draw: {effects[0]!r} has no value for any of {len(table)} heads")
    return effects[0]


def _measured(table: pd.DataFrame) -> str:
    """Return metric, unit and heads of an effect: `ablation[loss all_but_one]` -> loss (nats), all but one."""
    name = effect_of(table)
    metric, *unit = Column.parse(name).words
    return ", ".join([str(quality(metric, signature_of(table, name))), *(ABLATED.get(word, word) for word in unit)])


def budget(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw a budget as layers x key-value heads, layer 0 at the bottom, or at the left for more than 16 layers.

    The colour is the effect of streaming on the loss of answers, red where it costs. A frame marks the groups that keep
    their whole cache. Layers with a window are blank.

    Args:
        table: Table of `hr.cache_budget`.
        ax: Axes to draw on; by default a new figure.
    """
    from matplotlib.patches import Rectangle

    needs(table, {"effect", "retrieval", "streaming"}, "hr.cache_budget")
    effect = pd.Series(table["effect"].to_numpy(float), index=table.index.set_names(LEVELS), name="effect")
    far = float(np.nanmax(np.abs(effect))) or 1.0
    layers, groups = (int(table.index.get_level_values(level).max()) + 1 for level in ("layer", "group"))
    deep = layers > DEEP
    if ax is None:
        if deep:
            ax = new_axes((groups, layers), cell=WIDTH / layers, tall=2.6)[0]
        else:  # with room for a colour bar and a legend, also of two layers
            ax = new_axes((layers, groups), cell=0.5, beside=2.2, below=0.4, tall=3)[0]
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
