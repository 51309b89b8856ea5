"""Colour scales: limits and colours of a column, and the direction of harm of a metric (no torch)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

WORSE = {  # metric -> the sign of a change for the worse
    **{"loss": 1, "perplexity": 1},
    **{"agreement": -1, "accuracy": -1, "f1": -1, "matthews": -1, "bleu": -1, "chrf": -1},
}
SMALLER_IS_BETTER = tuple(metric for metric, sign in WORSE.items() if sign > 0)


def scale(values: pd.Series[Any], vmin: float | None, vmax: float | None, cmap: str | None) -> dict[str, Any]:
    """Choose limits and colours of a heatmap: from 0, or around 0 for effects of ablation and negative values."""
    known = values.astype(float)[np.isfinite(values.astype(float))]
    low, high = min([0.0, *known]), max([0.0, *known])
    around = cmap is None and (low < 0 or harm(values.name) != 0)
    if around:
        far = max((abs(end) for end in (vmin, vmax) if end is not None), default=max(-low, high)) or 1.0
        return {"vmin": -far, "vmax": far, "cmap": palette(values.name)}
    return {"vmin": low if vmin is None else vmin, "vmax": high if vmax is None else vmax, "cmap": cmap or "YlGnBu"}


def harm(column: object) -> int:
    """Return the sign of harm in a column.

    Args:
        column: Name of the column.

    Returns:
        1 or -1 for effects of ablation, 0 for other columns. Of an unknown metric, more is taken to be better, as by
        `Metric` of `headroles.ablation.metrics`.
    """
    metric = _metric(column)
    return 0 if metric is None else WORSE.get(metric, -1)


def palette(column: object) -> str:
    """Return the colours around zero: red is harm in effects of ablation, other measurements have no red."""
    return {1: "vlag", -1: "vlag_r", 0: "BrBG"}[harm(column)]


def red(column: object) -> str:
    """Return what red means in a column of effects: "worse" or "less"."""
    return "worse" if _metric(column) in WORSE else "less"


def _metric(column: object) -> str | None:
    """Metric of a column of effects: `loss` of `ablation[loss rest]`; None for other columns."""
    match = re.match(r"ablation\[([^\] ]+)", str(column))
    return None if match is None else match[1]
