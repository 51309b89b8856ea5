"""Corrections of p for multiple tests: Holm (any false finding), Benjamini-Hochberg (their share) (no torch)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from headroles.analysis.intervals import Array


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


def corrections(p: Array) -> dict[str, Array]:
    """Correct p, of any shape, over all that are not NaN: "holm" and "bh"."""
    values, known = {name: np.full(p.shape, np.nan) for name in ("holm", "bh")}, np.isfinite(p)
    if known.any():
        values["holm"][known], values["bh"][known] = holm(p[known]), benjamini_hochberg(p[known])
    return values


def corrected(table: pd.DataFrame) -> pd.DataFrame:
    """Add columns `holm` and `bh` after `p`, computed over the rows that have one."""
    for place, (name, values) in enumerate(corrections(table["p"].to_numpy(float)).items(), list(table).index("p") + 1):
        table.insert(place, name, values)
    return table
