"""Corrections of p for many tests: Holm against any false finding, Benjamini-Hochberg for their share (no torch)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

Array = npt.NDArray[np.floating[Any]]


def holm(p: Array) -> Array:
    """p corrected for the number of tests by Holm (1979): controls the chance of any false finding."""
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    found = np.empty_like(p)
    found[order] = np.minimum(steps, 1)
    return found


def benjamini_hochberg(p: Array) -> Array:
    """p corrected by Benjamini and Hochberg (1995): controls the share of false findings among the findings."""
    found: Array = stats.false_discovery_control(p) if np.isfinite(p).all() else np.full_like(p, np.nan)
    return found


def corrected(table: pd.DataFrame) -> pd.DataFrame:
    """The table with `holm` and `bh` after `p`, over the rows that have one."""
    known = table["p"].notna().to_numpy()
    at = list(table).index("p")
    for place, (name, correct) in enumerate((("holm", holm), ("bh", benjamini_hochberg)), at + 1):
        values = np.full(len(table), np.nan)
        values[known] = correct(table["p"].to_numpy(float)[known]) if known.any() else []
        table.insert(place, name, values)
    return table
