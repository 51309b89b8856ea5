"""Pictures of trained models: which heads survive and what predicts it, and the best heads through training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from headroles.plots.axes import colour_bar, finish, line, needs, new_axes
from headroles.plots.labels import label_of
from headroles.plots.styling import GREY, hue

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SURE = 0.05  # p below which a mark is filled
CONTROLS = {  # strategy -> the heads that it keeps
    **{"l0": "L0 gates' choice", "importance": "most important", "-importance": "least important"},
    **{"roles": "nearest to a role", "-roles": "farthest from a role", "random": "random"},
}


def specialists(
    heads: pd.DataFrame,
    survival: pd.DataFrame,
    sizes: pd.DataFrame,
    controls: pd.DataFrame | None = None,
    *,
    left: int | None = None,
    label: str = "metric",
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
    drawn = new_axes((9, 10), cell=0.42, panels=3, beside=2.5)
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
    return f"{outcome.partition('[')[2].rstrip(']')} left"


def probes(
    tables: Mapping[str, pd.DataFrame],
    *,
    scores: Sequence[str] = ("position[-1]", "position[+1]"),
) -> list[Axes]:
    """Draw the largest score of a head through the training of several translators.

    Args:
        tables: Name of a translator -> its table of `specialise`, of which the first corpus is drawn.
        scores: Names of scores, a panel each.

    Returns:
        One axes per score. Steps are those of translation; steps of a masked language model before it are negative.
    """
    panels = new_axes((8, 10), cell=0.42, panels=len(scores), beside=1)
    before = False  # whether any encoder was a masked language model first
    for place, (name, table) in enumerate(tables.items()):
        needs(table, {"phase", "step", "corpus", "score", "rank", "value"}, "specialise")
        best = table[(table["rank"] == 0) & (table["corpus"] == table["corpus"].iloc[0])]
        masked = best["phase"] == "masked"
        steps = best["step"] - best["step"].where(masked).max() * masked if masked.any() else best["step"]
        before = before or bool(masked.any())
        for ax, score in zip(panels, scores, strict=True):
            rows = best["score"] == score
            line(ax, steps[rows], best.loc[rows, "value"], color=hue(place % 10, 0.8), label=name)
    for ax, score in zip(panels, scores, strict=True):
        ax.axvline(0, color="0.6", linewidth=0.8)
        label = "step of translation" + ("\n(below 0: of the masked language model)" if before else "")
        ax.set(xlabel=label, ylabel=f"best head: {label_of(score)}", ylim=(0, 1.02))
    finish(*panels)
    return panels
