"""Standards of the verdicts: the cost of removing all heads, lengths of training, chance (no torch)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import stats

from headroles.experiments.papers.intervals import Holds, Interval, bounded
from headroles.experiments.papers.tables import Bench, Missing, gains, metric_of
from headroles.plots.effects import correlations
from headroles.plots.scales import SMALLER_IS_BETTER
from headroles.tables.frame import Kind

VALUES = ["value", "low", "high"]
LITTLE = 0.03  # of the score of the whole model, or nats of a loss: a small change (our choice)
TWICE = 2  # trainings with steps that differ by a larger factor are not comparable (our choice)
CLEAR = 0.05  # p below which a tendency counts as shown (our choice)


def scale(metric: str, value: float) -> float:
    """Return the unit of changes of a metric: the score of the whole model, or one nat of a loss."""
    return 1.0 if metric == "loss" else abs(value)


def costs(rows: Any, whole: Any, metric: str) -> dict[str, Any]:
    """Return `cost` with its interval, the lost share of the whole model's score; paired where `rows` has changes."""
    if "change" in rows:
        changes = rows[bounded("change")].to_numpy()
    else:
        changes = np.array([Interval(*row).minus(Interval(*whole[VALUES])) for row in rows[VALUES].to_numpy()])
    value, low, high = (-gains(changes, metric) / (scale(metric, whole["value"]) or math.nan)).T
    return {"cost": value, "cost.low": high, "cost.high": low}


def stake(bench: Bench, kind: Kind | None = None) -> dict[str, float]:
    """Return `all` with its interval, the cost of removing all heads or all of a kind; NaN without a curve."""
    name = "importance" if kind is None else f"{kind} by importance"
    unknown = dict.fromkeys(bounded("all"), math.nan)
    try:
        table: Any = bench.table("curves" if kind is None else "kinds")
    except Missing:
        return unknown
    rows = table[table["order"] == name]
    if rows.empty:
        return unknown
    last = rows.loc[[rows["closed"].idxmax()]]
    cost = costs(last, rows.loc[rows["closed"].idxmin()], metric_of(table))
    return {name.replace("cost", "all"): float(values[0]) for name, values in cost.items()}


def at_stake(table: Any) -> Holds:
    """Return whether removing all heads costs more than a little, by the columns `all` of a table."""
    return Interval.of(table.iloc[0], "all").above(LITTLE)


def trained(bench: Bench, model: str, column: str) -> float:
    """Return how long a model was trained, in `steps` or in `epochs` of all data of its task; NaN if unknown."""
    try:
        table: Any = bench.table("trainings").set_index("what")
    except Missing:
        return math.nan
    return float(table.loc[model, column]) if model in table.index else math.nan


def within_layers(pair: Any) -> Any:
    """Correlate two columns of heads after subtracting the mean of each layer."""
    inside = pair - pair.groupby(level="layer").transform("mean")
    return correlations(inside.iloc[:, 0], inside.iloc[:, 1]).loc["all"]


def better(metric: str) -> int:
    """Return 1 if larger values of a metric are better, else -1."""
    return -1 if metric in SMALLER_IS_BETTER else 1


def reached(bound: float) -> str:
    """Describe the bound of untrained models in words."""
    return "the value of untrained models is unknown" if math.isnan(bound) else f"untrained models reach {bound:.2f}"


def rises(table: Any, column: str, along: str) -> bool:
    """Return whether a column rises along another beyond chance (Kendall's tau, one-sided)."""
    return bool(stats.kendalltau(table[along], table[column], alternative="greater").pvalue < CLEAR)
