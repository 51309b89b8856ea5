"""Figures of relations: roles against outcomes, odds of survival, predictors, role changes (no torch)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headroles.plots.axes import OUTSIDE, needs, new_axes
from headroles.plots.sparsity import FUNCTIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SURE = 0.05  # p below which a mark is filled
CHANGES = {"stayed": 2, "new": 0, "lost": 1, "went": 7}  # colours in seaborn's "colorblind"


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
    shown = table[table["auc"].notna()]
    if shown.empty:
        raise ValueError(f"nothing to draw: {'; '.join(dict.fromkeys(table['note']))}")
    label = "chance that a head with the role has the larger outcome"
    return _forest(shown.rename(columns={"role": "hue", "outcome": "row"}), "auc", 0.5, label, ax)


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
    shown = table[table[column].notna()]
    if shown.empty:
        raise ValueError(f"nothing to draw: {'; '.join(dict.fromkeys(table['note']))}")
    label = "chance that a surviving head has the larger score" if column == "auc" else "Spearman's correlation"
    return _forest(shown.rename(columns={"outcome": "hue", "score": "row"}), column, middle, label, ax)


def odds(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw by what factor each role multiplies the odds of survival.

    Intervals are of 95 %.

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
    shown = table[table["odds"].notna() & ~table["term"].str.match(r"(kind|depth) ")]
    if shown.empty:
        raise ValueError("nothing to draw: no role is in the model")
    finite = shown.replace({"odds.high": {np.inf: 1e6}, "odds.low": {0.0: 1e-6}})
    label = "factor of the odds of survival, adjusted for layer and kind"
    ax = _forest(finite.rename(columns={"term": "hue", "outcome": "row"}), "odds", 1, label, ax, log=True)
    ax.set_xscale("log")
    return ax


def drift(table: pd.DataFrame, *, axes: Any = None) -> list[Axes]:
    """Draw how roles change at each size: a panel per role that any head has.

    See Voita et al. 2019, Fig. 8.

    Above zero are heads that have the role after pruning: those that had it (stayed) and those that had not (new).
    Below zero are heads that had it and lost it, or were pruned (went).

    Args:
        table: Table of `hr.role_changes` with several sizes.
        axes: Axes to draw on, one per role; by default those of a new figure.

    Returns:
        One axes per role.

    Raises:
        ValueError: If no head has a role, or for another number of axes.
    """
    import seaborn as sns

    needs(table, {"role", "heads", *CHANGES}, "hr.role_changes with several sizes")
    parts = [(name, part) for name, part in table.groupby("role", sort=False) if part[[*CHANGES]].to_numpy().any()]
    if not parts:
        raise ValueError("nothing to draw: no head has a role, before or after")
    drawn = new_axes((6, 8), cell=0.42, panels=len(parts), beside=1.4) if axes is None else list(np.ravel(axes))
    if len(drawn) != len(parts):
        raise ValueError(f"the table has {len(parts)} roles with heads and needs as many axes; got {len(drawn)}")
    palette = sns.color_palette("colorblind")
    for ax, (name, part) in zip(drawn, parts, strict=True):
        part = part.sort_values("heads", ascending=False)
        places, base = np.arange(len(part)), {1: np.zeros(len(part)), -1: np.zeros(len(part))}
        for change, hue in CHANGES.items():
            sign = -1 if change in ("lost", "went") else 1
            heights = sign * part[change].to_numpy(float)
            ax.bar(places, heights, 0.8, base[sign], color=palette[hue], label=change)
            base[sign] = base[sign] + heights
        ax.axhline(0, color="0.2", linewidth=0.8)
        ax.set_xticks(places, part["heads"].astype(str))
        ax.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
        ax.set(title=f"{name} ({part['before'].iloc[0]} before)", xlabel="heads left")
        sns.despine(ax=ax)
    drawn[0].set_ylabel("heads with it (above), without (below)")
    drawn[-1].legend(**OUTSIDE)
    return drawn


def _forest(table: pd.DataFrame, column: str, middle: float, label: str, ax: Axes | None, *, log: bool = False) -> Axes:
    """Points with intervals: a line of the figure for each `row`, a mark on it for each `hue`."""
    import seaborn as sns
    from matplotlib.lines import Line2D

    rows, hues = list(dict.fromkeys(table["row"])), list(dict.fromkeys(table["hue"]))
    height = 0.4 + 0.12 * (len(hues) - 1)
    width = 0.11 * max(map(len, rows)) + 0.11 * max(map(len, hues))
    ax = new_axes((max(len(rows), 2), 5 / height), cell=height, beside=width)[0] if ax is None else ax
    palette = sns.color_palette("colorblind")
    free_hues = iter([hue for place, hue in enumerate(palette) if place not in FUNCTIONS.values()] * len(hues))
    colours = {hue: palette[FUNCTIONS[hue]] if hue in FUNCTIONS else next(free_hues) for hue in hues}
    colours = {hue: [0.8 * part for part in colour] for hue, colour in colours.items()}  # lines are thin
    if len(hues) > 1 and not set(hues) & set(FUNCTIONS):
        colours = dict(zip(hues, sns.color_palette("viridis_r", len(hues)), strict=True))  # sizes have an order
    for line in table.to_dict("records"):
        y = rows.index(line["row"]) + 0.7 * ((hues.index(line["hue"]) + 0.5) / len(hues) - 0.5)
        hue, sure = colours[line["hue"]], line["p"] < SURE
        ax.plot([line[f"{column}.low"], line[f"{column}.high"]], [y, y], color=hue, linewidth=1.3)
        ax.plot(line[column], y, "o", color=hue, markerfacecolor=hue if sure else "white", markersize=4)
    ax.axvline(middle, color="0.4", linestyle=":", linewidth=1)
    ax.set_yticks(range(len(rows)), rows)
    ax.set(xlabel=label, ylim=(len(rows) - 0.4, -0.6))
    if not log:
        ax.set_xlim(-1.02 if middle == 0 else -0.02, 1.02)
    beside = " adjusted for layer and kind" if log else " within layers"
    marks = [Line2D([], [], color=colours[hue], marker="o", label=hue) for hue in hues]
    marks += [Line2D([], [], color="0.3", marker="o", linestyle="", label=f"p < {SURE:g}{beside}, uncorrected")]
    marks += [Line2D([], [], color="0.3", marker="o", markerfacecolor="white", linestyle="", label=f"p ≥ {SURE:g}")]
    ax.legend(handles=marks, **OUTSIDE)
    sns.despine(ax=ax)
    return ax
