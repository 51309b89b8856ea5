"""Figures of ablation: the effect of every head, its distribution, and its agreement between two corpora (no torch)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headroles.analysis.association import finite
from headroles.analysis.intervals import correlation, rank_correlation
from headroles.plots.matrix import TITLES, heatmap, new_axes, of_kind, said
from headroles.plots.scales import red
from headroles.tables.frame import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RANKS = (("Pearson", "pearson"), ("Spearman", "spearman"))
HOW = {"rest": "all but one", "layer": "whole layers", "kind": "whole kinds", "early": "stopped early"}
SURE = 0.01  # p below which an effect is marked (Michel et al. 2019, Table 1)


def ablation(table: pd.DataFrame, *, kind: Kind | None = None, ax: Axes | None = None) -> Axes:
    """Draw the effect of closing each head as layers x heads (Michel et al. 2019, Table 1).

    `table` is that of `hr.ablate`. Red is harm by every metric, white no effect; the scale is that of all kinds of
    heads. "*" marks p < 0.01, "**" p < 0.01 after Holm's correction for all heads.
    """
    name = effect_of(table)
    decimals = 2 if table[name].abs().max() >= 0.5 else 3
    shown = table[name].map(f"{{:z.{decimals}f}}".format).str.replace("-", "−")
    marks = (table[f"{name}.p"] < SURE).astype(int) + (table[f"{name}.holm"] < SURE).astype(int)
    notes = shown + marks.map({0: "", 1: "*", 2: "**"})
    ax = heatmap(table[name], kind=kind, annotate=notes, label=f"change in {_metric(name)} (red: {red(name)})", ax=ax)
    told = of_kind(marks.to_frame("marks"), kind)[0]["marks"]
    ax.set_title(
        f"{ax.get_title()}\np < {SURE:g} for {(told > 0).sum()} of {len(told)} heads, {(told > 1).sum()} by Holm"
    )
    return ax


def histogram(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how the effects of single heads are distributed, by kind (Michel et al. 2019, Fig. 1)."""
    import seaborn as sns

    name = effect_of(table)
    ax = new_axes((9, 13), cell=0.4)[0] if ax is None else ax
    kinds = [kind for kind in TITLES if kind in table.index.unique("kind")]
    rows = table[[name]].reset_index()
    hues = dict(zip(kinds, sns.color_palette("colorblind"), strict=False))
    sns.histplot(rows, x=name, hue="kind", hue_order=kinds, multiple="stack", palette=hues, alpha=0.9, ax=ax)
    ax.axvline(0, color="0.2", linestyle="--", linewidth=1)
    ax.set(xlabel=f"change in {_metric(name)} when one head is closed", ylabel="heads")
    sns.move_legend(ax, "best", title="", frameon=False)
    sns.despine(ax=ax)
    return ax


def agreement(
    one: pd.DataFrame, other: pd.DataFrame, *, names: tuple[str, str] = ("", ""), ax: Axes | None = None
) -> Axes:
    """Draw the effects of the same heads on two corpora against each other, with their correlation (Fig. 2)."""
    import seaborn as sns

    columns = effect_of(one), effect_of(other)
    both = _both(one[columns[0]], other[columns[1]])
    told = correlations(one[columns[0]], other[columns[1]]).loc["all"]
    ax = new_axes((10, 11), cell=0.45)[0] if ax is None else ax
    kinds = [kind for kind in TITLES if kind in both.index.unique("kind")]
    sns.scatterplot(both.reset_index(), x="one", y="other", hue="kind", hue_order=kinds, palette="colorblind", ax=ax)
    ax.plot(0, 0, marker="*", markersize=13, color="0.1", linestyle="", label="no head closed")
    ax.legend(frameon=False)
    said = (f"{name} {told[key]:.2f} [{told[f'{key}.low']:.2f}, {told[f'{key}.high']:.2f}]" for name, key in RANKS)
    ax.set_title("\n".join(said))
    x, y = (f"change in {_metric(column)}" for column in columns)
    ax.set(xlabel=x + f" on {names[0]}" * bool(names[0]), ylabel=y + f" on {names[1]}" * bool(names[1]))
    sns.despine(ax=ax)
    return ax


def correlations(one: pd.Series[float], other: pd.Series[float]) -> pd.DataFrame:
    """Pearson's and Spearman's correlation of the same heads' measurements on two corpora: a row for all, and by kind.

    Columns: `heads`, and `pearson` and `spearman` with `.low` and `.high`, a 95 % interval over heads: after Fisher's
    z, of Pearson's with the spread of bootstrap resamples, of Spearman's by Bonett and Wright (2000); none for fewer
    than eight heads or a perfect correlation. Raises ValueError for tables of different heads, and an infinite number.
    """
    both = _both(one, other)
    parts = {"all": both} | {str(kind): part for kind, part in both.groupby(level="kind", sort=False, observed=True)}
    rows: dict[str, dict[str, float]] = {}
    for name, part in parts.items() if len(parts) > 2 else [("all", both)]:
        again = np.random.default_rng(0).integers(len(part), size=(1000, len(part)))
        values = _pearson(part.to_numpy()[np.concatenate([np.arange(len(part))[None], again])])
        rank = float(_pearson(part.rank().to_numpy()[None])[0])
        found = {"pearson": (values[0], *correlation(float(values[0]), values[1:], len(part)))}
        found["spearman"] = (rank, *rank_correlation(rank, len(part)))
        rows[name] = {"heads": len(part)}
        rows[name] |= {
            f"{key}{end}": each for key in found for end, each in zip(("", ".low", ".high"), found[key], strict=True)
        }
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("heads of")
    table.attrs["signatures"] = dict.fromkeys(table.columns, "correlations over heads; see the two studies")
    return table


def _pearson(draws: Any) -> Any:
    """The correlation of the two columns of each draw [draw, head, 2]; NaN where one is constant."""
    a, b = np.moveaxis(draws - draws.mean(1, keepdims=True), -1, 0)
    constant = (np.ptp(draws, axis=1) == 0).any(-1)  # whose mean need not be exactly what they are
    with np.errstate(invalid="ignore"):
        found = (a * b).sum(1) / np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return np.where(constant, np.nan, found)


def _both(one: pd.Series[float], other: pd.Series[float]) -> pd.DataFrame:
    both = pd.DataFrame({"one": finite(one), "other": finite(other)}).dropna()
    if len(both) < 3 or len(both) < max(len(one), len(other)):
        raise ValueError(f"the tables are of different heads: {len(one)} and {len(other)} rows, {len(both)} in common")
    return both


def effect_of(table: Any) -> str:
    """The column of a table of `hr.ablate` that holds the effects. Raises ValueError for another table."""
    names = list(map(str, table)) if isinstance(table, pd.DataFrame) else []
    found = [name for name in names if name.startswith("ablation[") and name.endswith("]")]
    if len(found) != 1 or not {f"{found[0]}.p", f"{found[0]}.holm"} <= set(names):
        raise ValueError(f"expected the table of one hr.ablate (ablation[...], .p, .holm); got {said(table)}")
    if np.isnan(table[found[0]]).all():
        raise ValueError(f"nothing to draw: {found[0]!r} has no value for any of {len(table)} heads")
    return found[0]


def _metric(name: str) -> str:
    """What an effect is of: ablation[loss rest] -> loss, all but one head."""
    metric, *how = name.removeprefix("ablation[").removesuffix("]").split(" ")
    return ", ".join([metric, *(HOW.get(one, one) for one in how)])
