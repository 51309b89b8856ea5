"""What verdicts are measured against: what all heads are worth, how long models were trained (no torch)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import stats

from headroles.experiments.papers.artefact import less
from headroles.experiments.papers.tables import Bench, Missing, gains, metric_of
from headroles.plots.effects import correlations
from headroles.plots.scales import SMALLER_IS_BETTER
from headroles.tables.frame import Kind

VALUES = ["value", "low", "high"]


def scale(metric: str, value: float) -> float:
    """What a change of a metric is a share of: the score of the whole model; of a loss, one nat."""
    return 1.0 if metric == "loss" else abs(value)


def costs(rows: Any, whole: Any, metric: str) -> dict[str, Any]:
    """What is lost, as a share of the whole model's score, with an interval; paired where the table has changes."""
    if "change" in rows:
        changes = rows[["change", "change.low", "change.high"]].to_numpy()
    else:
        changes = np.array([less(row, whole) for row in rows[VALUES].to_numpy()])
    value, low, high = (-gains(changes, metric) / (scale(metric, whole["value"]) or math.nan)).T
    return {"cost": value, "cost.low": high, "cost.high": low}


def stake(bench: Bench, kind: Kind | None = None) -> tuple[float, float, float]:
    """What removing all heads costs, or all of a kind: a share of the score with its interval; NaN without a curve."""
    name = "importance" if kind is None else f"{kind} by importance"
    try:
        table: Any = bench.table("curves" if kind is None else "kinds")
    except Missing:
        return math.nan, math.nan, math.nan
    rows = table[table["order"] == name]
    if rows.empty:
        return math.nan, math.nan, math.nan
    last = rows.loc[[rows["closed"].idxmax()]]
    cost = costs(last, rows.loc[rows["closed"].idxmin()], metric_of(table))
    return float(cost["cost"][0]), float(cost["cost.low"][0]), float(cost["cost.high"][0])


def trained(bench: Bench, what: str, column: str) -> float:
    """How long a model was trained, in steps or in epochs of all data of its task; NaN where no table says."""
    try:
        table: Any = bench.table("trainings").set_index("what")
    except Missing:
        return math.nan
    return float(table.loc[what, column]) if what in table.index else math.nan


def within_layers(pair: Any) -> Any:
    """Correlations of two columns of heads, each less its layer's mean."""
    inside = pair - pair.groupby(level="layer").transform("mean")
    return correlations(inside.iloc[:, 0], inside.iloc[:, 1]).loc["all"]


def better(metric: str) -> int:
    """1 where more of a metric is better, else -1."""
    return -1 if metric in SMALLER_IS_BETTER else 1


CLEAR = 0.05  # p below which a tendency counts as shown (our choice)


def reached(bound: float) -> str:
    """What untrained models reach, in words."""
    return "nothing says what untrained models reach" if bound != bound else f"untrained ones reach {bound:.2f}"


def unlike_chance(row: Any, table: Any) -> bool:
    """Whether fewer encoder heads are left than a draw by chance leaves."""
    whole = table.loc[table["heads"] == row["of"]].dropna(subset="enc-self").iloc[0]
    return bool(stats.hypergeom.cdf(row["enc-self"], row["of"], whole["enc-self"], row["heads"]) < CLEAR)


def placed(row: Any) -> bool:
    """Whether the decoder's own heads are left below and those of cross-attention above, together beyond chance."""
    ends = ["dec-self lower", "cross upper"], ["dec-self upper", "cross lower"]
    left = [[sum(row[name] for name in names), sum(row[f"{name}.of"] for name in names)] for names in ends]
    return bool(stats.fisher_exact([[count, of - count] for count, of in left], "greater").pvalue < CLEAR)


def rises(table: Any, column: str, along: str) -> bool:
    """Whether a column rises along another beyond chance (Kendall's tau, one-sided)."""
    return bool(stats.kendalltau(table[along], table[column], alternative="greater").pvalue < CLEAR)
