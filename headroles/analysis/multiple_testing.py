"""Corrections of p for multiple tests: Holm (any false finding), Benjamini-Hochberg (their share) (no torch)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

Array = npt.NDArray[np.floating[Any]]


def holm(p: Array) -> Array:
    """Correct p by Holm (1979), which controls the chance of any false finding."""
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected_p = np.empty_like(p)
    corrected_p[order] = np.minimum(steps, 1)
    return corrected_p


def benjamini_hochberg(p: Array) -> Array:
    """Correct p by Benjamini and Hochberg (1995), which controls the share of false findings."""
    corrected_p: Array = stats.false_discovery_control(p) if np.isfinite(p).all() else np.full_like(p, np.nan)
    return corrected_p


def corrected(table: pd.DataFrame) -> pd.DataFrame:
    """Add columns `holm` and `bh` after `p`, computed over the rows that have one."""
    known = table["p"].notna().to_numpy()
    at = list(table).index("p")
    for place, (name, correct) in enumerate((("holm", holm), ("bh", benjamini_hochberg)), at + 1):
        values = np.full(len(table), np.nan)
        values[known] = correct(table["p"].to_numpy(float)[known]) if known.any() else []
        table.insert(place, name, values)
    return table
