"""Tests of means that allow for skewness, by scipy: what the library's own p is held against."""

from __future__ import annotations

import numpy as np
from scipy import stats


def hall(ratio, skewness):
    """The cubic transformation of Hall (1992), with the skewness of the mean."""
    return np.polyval([skewness**2 / 27, skewness / 3, 1, skewness / 6], ratio)


def p_of_mean(changes):
    """Two-sided p of a mean of 0: the larger of t and of t after Hall's transformation."""
    ratio, count = stats.ttest_1samp(changes, 0).statistic, len(changes)
    corrected = hall(ratio, stats.skew(changes) / np.sqrt(count))
    return max(2 * stats.t.sf(abs(value), count - 1) for value in (ratio, corrected))
