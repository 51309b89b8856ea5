"""Figures of relations: roles against outcomes, predictors, role changes (no torch)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from headroles.analysis.role_rules import VERDICTS, role_style
from headroles.plots.axes import FEW, any_of, evenly, finish, legend, needs, new_axes, stack
from headroles.plots.labels import axis_label, direction, label_of, role_label
from headroles.plots.styling import GREY, RGB, colours, hue
from headroles.tables.columns import Column
from headroles.tables.declared import relation_costs, signature_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SURE = 0.05  # p below which a mark is filled
CHANGES = {  # column -> label, hue
    "kept": ("kept", 2),
    "new": ("new", 0),
    "lost": ("lost", 1),
    "removed": ("pruned", GREY),
    "unknown": ("not measured", 8),
}
COSTS = {  # column -> label, mark, hue
    "removed": ("removed", "s", 3),
    "removed_local": ("removed where the pattern applies", "v", 4),
    "uniform": ("uniform attention", "^", GREY),
    "wrong": ("as sharp elsewhere", "D", 1),
    "placebo_removed": ("other heads of the layer removed", "X", 5),
    "placebo_pattern": ("other heads of the layer with this pattern", "P", 2),
    "role_pattern": ("pattern of the role", "o", 0),
}


def relation(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how well each role separates each outcome, with 95 % intervals.

    The axis is the chance that a head with the role has the larger outcome: a row per outcome, with the values that
    mean that a head matters more, and a colour per role. A mark is filled where p < 0.05 within layers, after Holm's
    correction for all rows. Roles without heads are left out. Effects of ablation are costs.

    Args:
        table: Table of `hr.relate`.
        ax: Axes to draw on; by default a new figure.
    """
    needs(table, {"role", "outcome", "matters", "auc", "auc.low", "auc.high", "holm"}, "hr.relate")
    rows = relation_costs(any_of(table[table["auc"].notna()], "; ".join(dict.fromkeys(table["note"]))))
    label = "chance that a head with the role has the larger outcome"
    rows = rows.rename(columns={"role": "hue", "outcome": "row"})
    under = {row: direction(matters, row) for row, matters in zip(rows["row"], rows["matters"], strict=True)}
    return _forest(rows, "auc", 0.5, label, ax, under)


def predictors(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how well each score predicts survival, with 95 % intervals.

    A row per score, a colour per outcome; of more than five sizes a few are drawn. The axis is the AUC or, if no
    outcome is 0 or 1, Spearman's correlation. A mark is filled where p < 0.05 within layers, after Holm's correction
    for all rows.

    Args:
        table: Table of `hr.predict_outcome`.
        ax: Axes to draw on; by default a new figure.
    """
    needs(table, {"score", "outcome", "auc", "spearman", "holm"}, "hr.predict_outcome")
    column, middle = ("auc", 0.5) if table["auc"].notna().any() else ("spearman", 0.0)
    rows = any_of(table[table[column].notna()], "; ".join(dict.fromkeys(table["note"])))
    label = "chance that a surviving head has the larger score" if column == "auc" else "Spearman's correlation"
    shown = _few(list(dict.fromkeys(rows["outcome"])))
    if lacks := rows["outcome"].nunique() - len(shown):
        rows, label = rows[rows["outcome"].isin(shown)], f"{label}\n({lacks} outcomes between these are in the table)"
    return _forest(rows.rename(columns={"outcome": "hue", "score": "row"}), column, middle, label, ax)


def role_costs(table: pd.DataFrame, *, sets: bool = False, ax: Axes | None = None) -> Axes:
    """Draw what each head costs under the pattern of its role, beside removal and other attention.

    A row per head, grouped by role, with 95 % intervals. The mark of the role's pattern is filled where the role is
    what the head does, or a part of it. Of the three patterns as sharp elsewhere the one that costs least is drawn.

    Args:
        table: Table of `hr.test_roles`.
        sets: Whether to draw the heads of each role together, in place of each alone.
        ax: Axes to draw on; by default a new figure.
    """
    from matplotlib.lines import Line2D

    needs(table, {"removed", "role_pattern", "verdict"}, "hr.test_roles")
    costs = {name: style for name, style in COSTS.items() if name in table}
    part = table[table.index.get_level_values("heads").str.startswith("all ") == sets]
    part = any_of(part, f"got no {'sets of heads' if sets else 'heads alone'} in the table")
    part = part.iloc[np.argsort([[*part.index.unique("role")].index(role) for _, role in part.index], kind="stable")]
    roles = [role for _, role in part.index]
    width = 0.1 * max(len(f"{heads} {role}") for heads, role in part.index) + 3
    ax = ax or new_axes((len(part), 5 / 0.4), cell=0.4, beside=width, tall=2.2)[0]
    for y, row in enumerate(part.to_dict("records")):
        for place, (name, (_, marker, shade)) in enumerate(costs.items()):
            height = y + 0.12 * (place - (len(costs) - 1) / 2)
            color = hue(shade)
            ax.plot([row[f"{name}.low"], row[f"{name}.high"]], [height, height], color=color, linewidth=1.3)
            face = "white" if name == "role_pattern" and not row["verdict"].startswith(VERDICTS[:2]) else color
            ax.plot(row[name], height, marker, color=color, markerfacecolor=face, markersize=4)
    starts = [y for y, role in enumerate(roles) if y and role != roles[y - 1]]
    for y in starts:
        ax.axhline(y - 0.5, color="0.85", linewidth=0.8)
    ax.axvline(0, color="0.4", linestyle=":", linewidth=1)
    names = [
        f"{role_label(role)}  {heads}" if y in (0, *starts) else heads for y, (heads, role) in enumerate(part.index)
    ]
    ax.set_yticks(range(len(part)), names)
    label = f"cost: change of {axis_label(signature_of(table, 'role_pattern'))} towards worse"
    ax.set(xlabel=label, ylim=(len(part) - 0.4, -0.6))
    marks = {text: Line2D([], [], color=hue(shade), marker=marker) for text, marker, shade in costs.values()}
    text, marker, shade = COSTS["role_pattern"]
    marks[f"{text}, not shown to be what the head does"] = Line2D([], [], color=hue(shade), marker=marker, mfc="white")
    legend(ax, [*marks.values()], [*marks])
    finish(ax)
    return ax


def role_changes(table: pd.DataFrame) -> list[Axes]:
    """Draw how roles change at each size (Voita et al. 2019, Fig. 8): a panel per role that any head has.

    Above zero are heads that have the role after pruning: they had it before (kept), or not (new).
    Below zero are heads that had it and lost it, were pruned, or were not measured afterwards.

    Args:
        table: Table of `hr.role_changes` with several sizes. Of several prunings, which differ in further columns,
            the mean is drawn.
    """
    from matplotlib.ticker import MaxNLocator

    table = table if "unknown" in table else table.assign(unknown=0)
    needs(table, {"role", "heads", *CHANGES}, "hr.role_changes with several sizes")
    table = table.groupby(["role", "heads"], sort=False)[["before", *CHANGES]].mean().reset_index()
    held = table.groupby("role", sort=False).filter(lambda part: part[[*CHANGES]].to_numpy().any())
    parts = [*any_of(held, "no head has a role, before or after").groupby("role", sort=False)]
    drawn = new_axes((6, 8), cell=0.42, panels=len(parts), beside=1.4)
    labels = {name: text if table[name].any() else f"_{text}" for name, (text, _) in CHANGES.items()}  # "_": no legend
    faces = {name: hue(place) for name, (_, place) in CHANGES.items()}
    for ax, (name, part) in zip(drawn, parts, strict=True):
        part = part.sort_values("heads", ascending=False)
        ax.use_sticky_edges = False  # a margin also where a bar ends
        places = np.arange(len(part))
        signed = part[[*CHANGES]].astype(float) * [1, 1, -1, -1, -1]
        stack(ax, places, signed, faces, labels=labels)
        ax.axhline(0, color="0.2", linewidth=0.8)
        ax.set_xticks(places, part["heads"].astype(str))
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
        ax.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
        ax.set(title=f"{name} ({round(part['before'].iloc[0], 1):g} before)", xlabel="heads left")
    drawn[0].set_ylabel("heads with it (above), without (below)")
    finish(*drawn)
    return drawn


def _forest(
    table: pd.DataFrame,
    column: str,
    middle: float,
    label: str,
    ax: Axes | None,
    under: Mapping[str, str] | None = None,
) -> Axes:
    """Draw points with intervals: a line for each `row`, a text `under` its label, a mark for each `hue`."""
    import seaborn as sns
    from matplotlib.lines import Line2D

    signature = signature_of(table, "p")
    rows, hues = list(dict.fromkeys(table["row"])), list(dict.fromkeys(table["hue"]))
    lines = [[label_of(name, signature), *filter(None, [(under or {}).get(name)])] for name in rows]
    names = {name: label_of(name, signature) for name in hues}
    sure = f"p < {SURE:g} within layers, after Holm's correction"
    height = 0.4 + (0.12 if len(hues) <= 6 else 0.07) * (len(hues) - 1)
    longest = max(len(line) for row in lines for line in row)
    width = 0.11 * longest + 0.09 * max(map(len, [*names.values(), sure]))
    ax = ax or new_axes((max(len(rows), 2), 5 / height), cell=height, beside=width)[0]
    shades, markers = _shades(hues, table), _markers(hues, table)
    for point in table.to_dict("records"):
        y = rows.index(point["row"]) + 0.7 * ((hues.index(point["hue"]) + 0.5) / len(hues) - 0.5)
        color = shades[point["hue"]]
        ax.plot([point[f"{column}.low"], point[f"{column}.high"]], [y, y], color=color, linewidth=1.3)
        face = color if point["holm"] < SURE else "white"
        ax.plot(point[column], y, markers[point["hue"]], color=color, markerfacecolor=face, markersize=4)
    ax.axvline(middle, color="0.4", linestyle=":", linewidth=1)
    ax.set_yticks(range(len(rows)), ["\n".join(row) for row in lines])
    ax.set(xlabel=label, xlim=(-1.02 if middle == 0 else -0.02, 1.02), ylim=(len(rows) - 0.4, -0.6))
    marks = {names[name]: Line2D([], [], color=shades[name], marker=markers[name]) for name in hues}
    marks[sure] = Line2D([], [], color="0.3", marker="o", linestyle="")
    marks[f"p ≥ {SURE:g}, or too few heads"] = Line2D([], [], color="0.3", marker="o", mfc="white", linestyle="")
    legend(ax, [*marks.values()], [*marks])
    sns.despine(ax=ax)
    return ax


def _shades(hues: list[str], table: pd.DataFrame) -> dict[str, RGB]:
    """Return the colours of roles, or of the sizes of each strategy, in order."""
    import seaborn as sns

    if len(hues) == 1 or _are_roles(hues, table):
        return colours(hues, table, shade=0.8)
    places = {name: [other for other in hues if _strategy(other) == _strategy(name)].index(name) for name in hues}
    palette = sns.color_palette("viridis_r", max(places.values()) + 1)
    return {name: palette[place] for name, place in places.items()}


def _are_roles(hues: list[str], table: pd.DataFrame) -> bool:
    """Return whether some of the hues are roles, of the package or of the table."""
    return any(role_style(name, table).hue is not None for name in hues)


def _markers(hues: list[str], table: pd.DataFrame) -> dict[str, str]:
    """Return the marks of strategies; roles have circles."""
    strategies = [""] if _are_roles(hues, table) else list(dict.fromkeys(map(_strategy, hues)))
    return {name: "osD^vP*X"[strategies.index(_strategy(name)) % 8 if len(strategies) > 1 else 0] for name in hues}


def _few(outcomes: list[str]) -> list[str]:
    """Return at most a few outcomes: the first, the last and some in between for each strategy."""
    strategies = list(dict.fromkeys(map(_strategy, outcomes)))
    if len(outcomes) <= FEW:
        return outcomes
    parts = ([name for name in outcomes if _strategy(name) == strategy] for strategy in strategies)
    return [name for part in parts for name in evenly(part, max(FEW // len(strategies), 1))]


def _strategy(outcome: str) -> str:
    """Return an outcome without its number of heads: `survival[l0 36]` and `survival[l0 72]` share a strategy."""
    pruning = Column.parse(outcome).pruning
    return outcome if pruning is None else " ".join([pruning.strategy, *pruning.kinds])
