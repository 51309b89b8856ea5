"""Figures of relations: roles against outcomes, odds of survival, predictors, role changes (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from headroles.analysis.role_rules import look
from headroles.plots.axes import colour_bar, finish, legend, needs, new_axes, panels_of, stack
from headroles.plots.labels import label_of
from headroles.plots.styling import GREY, RGB, colours, hue
from headroles.tables.columns import Column
from headroles.tables.declared import signature_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SURE = 0.05  # p below which a mark is filled
CHANGES = {"stayed": "stayed", "new": "new", "lost": "lost", "went": "pruned"}  # column -> label
CONTROLS = {  # strategy -> the heads that it keeps
    **{"l0": "L0 gates' choice", "importance": "most important", "-importance": "least important"},
    **{"roles": "nearest to a role", "-roles": "farthest from a role", "random": "random"},
}
_HUES = {"stayed": 2, "new": 0, "lost": 1, "went": GREY}  # places in seaborn's "colorblind"


def relation(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how well each role separates each outcome, with 95 % intervals.

    The axis is the chance that a head with the role has the larger outcome: a row per outcome, a colour per role. A
    mark is filled where p < 0.05 within layers. Roles without heads are left out.

    Args:
        table: Table of `hr.relate`.
        ax: Axes to draw on; by default those of a new figure.

    Returns:
        The axes.

    Raises:
        ValueError: If no role has an interval to draw.
    """
    needs(table, {"role", "outcome", "auc", "auc.low", "auc.high", "p"}, "hr.relate")
    rows = table[table["auc"].notna()]
    if rows.empty:
        raise ValueError(f"nothing to draw: {'; '.join(dict.fromkeys(table['note']))}")
    label = "chance that a head with the role has the larger outcome"
    return _forest(rows.rename(columns={"role": "hue", "outcome": "row"}), "auc", 0.5, label, ax)


def predictors(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how well each score predicts survival, with 95 % intervals.

    A row per score, a colour per outcome. The axis is the AUC or, if no outcome is 0 or 1, Spearman's correlation. A
    mark is filled where p < 0.05 within layers.

    Args:
        table: Table of `hr.predict_outcome`.
        ax: Axes to draw on; by default those of a new figure.

    Returns:
        The axes.

    Raises:
        ValueError: If no score has a value to draw.
    """
    needs(table, {"score", "outcome", "auc", "spearman", "p"}, "hr.predict_outcome")
    column, middle = ("auc", 0.5) if table["auc"].notna().any() else ("spearman", 0.0)
    rows = table[table[column].notna()]
    if rows.empty:
        raise ValueError(f"nothing to draw: {'; '.join(dict.fromkeys(table['note']))}")
    label = "chance that a surviving head has the larger score" if column == "auc" else "Spearman's correlation"
    return _forest(rows.rename(columns={"outcome": "hue", "score": "row"}), column, middle, label, ax)


def odds(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw by what factor each role multiplies the odds of survival, with 95 % intervals.

    The model adjusts for layer and kind; only roles are drawn, and those without heads are left out.

    Args:
        table: Table of `hr.survival_odds`.
        ax: Axes to draw on; by default those of a new figure.

    Returns:
        The axes.

    Raises:
        ValueError: If no role is in the model.
    """
    needs(table, {"outcome", "term", "odds", "odds.low", "odds.high", "p"}, "hr.survival_odds")
    rows = table[table["odds"].notna() & ~table["term"].str.match(r"(kind|depth) ")]
    if rows.empty:
        raise ValueError("nothing to draw: no role is in the model")
    finite = rows.replace({"odds.high": {np.inf: 1e6}, "odds.low": {0.0: 1e-6}})
    label = "factor of the odds of survival"
    return _forest(finite.rename(columns={"term": "hue", "outcome": "row"}), "odds", 1, label, ax, log=True)


def drift(table: pd.DataFrame, *, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """Draw how roles change at each size (Voita et al. 2019, Fig. 8): a panel per role that any head has.

    Above zero are heads that have the role after pruning: those that had it (stayed) and those that had not (new).
    Below zero are heads that had it and lost it, or were pruned.

    Args:
        table: Table of `hr.role_changes` with several sizes. Of several prunings, such as the table `changes` of
            `pool_models`, the mean is drawn.
        axes: Axes to draw on, one per role; by default those of a new figure.

    Returns:
        One axes per role.

    Raises:
        ValueError: If no head has a role, or for another number of axes.
    """
    from matplotlib.ticker import MaxNLocator

    needs(table, {"role", "heads", *CHANGES}, "hr.role_changes with several sizes")
    table = table.groupby(["role", "heads"], sort=False)[["before", *CHANGES]].mean().reset_index()
    parts = [(name, part) for name, part in table.groupby("role", sort=False) if part[[*CHANGES]].to_numpy().any()]
    if not parts:
        raise ValueError("nothing to draw: no head has a role, before or after")
    drawn = panels_of(axes, len(parts), "roles with heads", (6, 8), beside=1.4)
    present = table[[*CHANGES]].any()
    labels = {change: text if present[change] else f"_{text}" for change, text in CHANGES.items()}  # "_": no legend
    for ax, (name, part) in zip(drawn, parts, strict=True):
        part = part.sort_values("heads", ascending=False)
        ax.use_sticky_edges = False  # a margin also where a bar ends
        places = np.arange(len(part))
        signed = part[[*CHANGES]].astype(float) * [1, 1, -1, -1]
        stack(ax, places, signed, {change: hue(place) for change, place in _HUES.items()}, labels=labels)
        ax.axhline(0, color="0.2", linewidth=0.8)
        ax.set_xticks(places, part["heads"].astype(str))
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
        ax.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
        ax.set(title=f"{name} ({round(part['before'].iloc[0], 1):g} before)", xlabel="heads left")
    drawn[0].set_ylabel("heads with it (above), without (below)")
    finish(*drawn)
    return drawn


def specialists(
    heads: pd.DataFrame,
    survival: pd.DataFrame,
    sizes: pd.DataFrame,
    controls: pd.DataFrame | None = None,
    *,
    left: int | None = None,
    label: str = "metric",
    axes: Sequence[Axes] | None = None,
) -> list[Axes]:
    """Draw, over several trained models, which heads survive, what predicts it, and what pruning costs.

    The first panel has a mark per head, coloured by the share of gate seeds in which the head survives. The second has
    the rank correlations of roles and other scores with survival, with 95 % intervals over models; a mark is filled
    where Holm's p < 0.05, over the rows of one analysis. The third has the metric of pruned models, and of controls,
    less that of all heads trained as long: a small mark per model, the mean over models and its 95 % interval (t).

    Args:
        heads: Heads of all models, the first table of `pool_models`.
        survival: Its second table.
        sizes: Its third table.
        controls: Its fourth table.
        left: Number of heads left in the first panel, and of controls; by default the middle one.
        label: Name of the metric.
        axes: Three axes to draw on; by default those of a new figure.

    Returns:
        The three axes.

    Raises:
        ValueError: If no model is pruned to this number of heads.
    """
    from scipy import stats

    needs(survival, {"analysis", "outcome", "predictor", "r", "r.low", "r.high", "holm"}, "pool_models")
    needs(sizes, {"model", "heads", "value"}, "pool_models")
    *pruned, all_heads = sorted(set(sizes["heads"]))
    left = left or pruned[len(pruned) // 2]
    if left not in pruned:
        raise ValueError(f"no model has {left} heads left: got {', '.join(map(str, pruned))}; try one of these")
    drawn = panels_of(axes, 3, "panels", (9, 10), beside=2.5)
    every = heads.sort_values(f"survival[{left}]")
    marks = drawn[0].scatter(
        every["positional"], every["syntactic"], c=every[f"survival[{left}]"], cmap="Blues", vmin=0, vmax=1, s=22,
        edgecolors="0.4", linewidths=0.4,
    )  # fmt: skip
    colour_bar(drawn[0], marks, f"share of gate seeds in which it is one of {left} heads left")
    drawn[0].set(xlabel="positional: share of tokens at offset −1 or +1", ylabel="syntactic: accuracy less baseline")
    _analyses(survival, drawn[1], left)
    whole = sizes[sizes["heads"] == all_heads]
    means = {f"{size} heads, L0 gates": _change(sizes[sizes["heads"] == size], whole) for size in pruned}
    if controls is not None:
        runs = controls[controls["tuned"]]
        whole = runs[runs["strategy"] == "all heads"]
        same = runs[runs["heads"] == left].groupby("strategy")
        means |= {f"{left} heads, {CONTROLS.get(str(name), str(name))}": _change(part, whole) for name, part in same}
    names = sorted(means, key=lambda name: -means[name].mean())
    for y, name in enumerate(names):
        half = stats.t.ppf(0.975, len(means[name]) - 1) * means[name].sem()
        drawn[2].plot(means[name], np.full(len(means[name]), y + 0.18), "|", color=hue(GREY, 0.8))
        drawn[2].errorbar(means[name].mean(), y, xerr=half, fmt="o", color=hue(0), capsize=2)
    drawn[2].set_yticks(range(len(names)), names)
    drawn[2].axvline(0, color="0.4", linestyle=":", linewidth=1)
    drawn[2].set(
        xlabel=f"{label} less that of all heads, trained as long\nsmall marks: models", ylim=(len(names) - 0.4, -0.6)
    )
    finish(*drawn)
    return drawn


def _change(runs: pd.DataFrame, whole: pd.DataFrame) -> pd.Series[float]:
    """Mean of each model over its runs, less that of all its heads."""
    return runs.groupby("model")["value"].mean() - whole.groupby("model")["value"].mean()


def _analyses(survival: pd.DataFrame, ax: Axes, left: int) -> None:
    """Correlations with survival: those of the primary analysis, and of others with so many heads left."""
    measures = [str(name) for name in survival["predictor"] if name in set(survival["analysis"])]
    given = {"primary": " given confidence and sink"} | dict.fromkeys(measures, "")
    given |= {f"positional given {name}": f" given {label_of(name)}" for name in measures}
    given["importance given positional"] = " given positional"
    shown = (survival["analysis"] == "primary") | (survival["outcome"] == f"survival[{left}]")
    chosen = survival[survival["analysis"].isin([*given]) & shown].to_dict("records")
    names = []
    for y, row in enumerate(chosen):
        names.append(f"{label_of(row['predictor'])}{given[row['analysis']]} ({_left(row['outcome'])})")
        color = hue(GREY if row["analysis"] != "primary" else 0, 0.8)
        ax.plot([row["r.low"], row["r.high"]], [y, y], color=color)
        ax.plot(row["r"], y, "o", color=color, markerfacecolor=color if row["holm"] < SURE else "white")
    ax.axvline(0, color="0.4", linestyle=":", linewidth=1)
    ax.set_yticks(range(len(names)), names)
    note = f"blue: primary analysis; filled: Holm's p < {SURE:g}"
    ax.set(xlabel=f"rank correlation with survival within layers\n{note}", xlim=(-1.02, 1.02))
    ax.set(ylim=(len(names) - 0.4, -0.6))


def _left(outcome: str) -> str:
    """Number of heads in a column of survival."""
    return f"{Column.parse(outcome).detail} left"


def _forest(table: pd.DataFrame, column: str, middle: float, label: str, ax: Axes | None, *, log: bool = False) -> Axes:
    """Points with intervals: a line of the figure for each `row`, a mark on it for each `hue`."""
    import seaborn as sns
    from matplotlib.lines import Line2D

    signature = signature_of(table, "p")
    table = table.assign(row=[label_of(name, signature) for name in table["row"]])
    rows, hues = list(dict.fromkeys(table["row"])), list(dict.fromkeys(table["hue"]))
    names = {name: label_of(name, signature) for name in hues}
    sure = f"p < {SURE:g} {'adjusted for layer and kind' if log else 'within layers'}, uncorrected"
    height = 0.4 + (0.12 if len(hues) <= 6 else 0.07) * (len(hues) - 1)
    width = 0.11 * max(map(len, rows)) + 0.09 * max(map(len, [*names.values(), sure]))
    ax = ax or new_axes((max(len(rows), 2), 5 / height), cell=height, beside=width)[0]
    shades, markers = _shades(hues, table), _markers(hues, table)
    for point in table.to_dict("records"):
        y = rows.index(point["row"]) + 0.7 * ((hues.index(point["hue"]) + 0.5) / len(hues) - 0.5)
        color = shades[point["hue"]]
        ax.plot([point[f"{column}.low"], point[f"{column}.high"]], [y, y], color=color, linewidth=1.3)
        face = color if point["p"] < SURE else "white"
        ax.plot(point[column], y, markers[point["hue"]], color=color, markerfacecolor=face, markersize=4)
    ax.axvline(middle, color="0.4", linestyle=":", linewidth=1)
    ax.set_yticks(range(len(rows)), rows)
    ax.set(xlabel=label, ylim=(len(rows) - 0.4, -0.6))
    if log:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
    else:
        ax.set_xlim(-1.02 if middle == 0 else -0.02, 1.02)
    marks = {names[name]: Line2D([], [], color=shades[name], marker=markers[name]) for name in hues}
    marks[sure] = Line2D([], [], color="0.3", marker="o", linestyle="")
    marks[f"p ≥ {SURE:g}"] = Line2D([], [], color="0.3", marker="o", markerfacecolor="white", linestyle="")
    legend(ax, [*marks.values()], [*marks])
    sns.despine(ax=ax)
    return ax


def _shades(hues: list[str], table: pd.DataFrame) -> dict[str, RGB]:
    """Colours of roles, or, as sizes have an order, of the sizes of each strategy."""
    import seaborn as sns

    if len(hues) == 1 or _are_roles(hues, table):
        return colours(hues, table, shade=0.8)
    places = {name: [other for other in hues if _strategy(other) == _strategy(name)].index(name) for name in hues}
    palette = sns.color_palette("viridis_r", max(places.values()) + 1)
    return {name: palette[place] for name, place in places.items()}


def _are_roles(hues: list[str], table: pd.DataFrame) -> bool:
    """Whether some of the hues are roles, of the package or as the table says."""
    return any(look(name, table).hue is not None for name in hues)


def _markers(hues: list[str], table: pd.DataFrame) -> dict[str, str]:
    """Marks of strategies; of roles circles."""
    strategies = [""] if _are_roles(hues, table) else list(dict.fromkeys(map(_strategy, hues)))
    return {name: "osD^vP*X"[strategies.index(_strategy(name)) % 8 if len(strategies) > 1 else 0] for name in hues}


def _strategy(outcome: str) -> str:
    """Outcome without its number of heads: `survival[l0 36]` and `survival[l0 72]` are of one strategy."""
    pruning = Column.parse(outcome).pruning
    return outcome if pruning is None else " ".join([pruning.strategy, *pruning.kinds])
