"""Tests of means that allow for skewness, by scipy: what the library's own p is held against."""

from __future__ import annotations

import numpy as np
from scipy import optimize, stats


def hall(ratio, skewness):
    """The cubic transformation of Hall (1992), with the skewness of the mean."""
    return np.polyval([skewness**2 / 27, skewness / 3, 1, skewness / 6], ratio)


def p_of_mean(changes):
    """Two-sided p of a mean of 0: the larger of t and of t after Hall's transformation."""
    ratio, count = stats.ttest_1samp(changes, 0).statistic, len(changes)
    corrected = hall(ratio, stats.skew(changes) / np.sqrt(count))
    return max(2 * stats.t.sf(abs(value), count - 1) for value in (ratio, corrected))


def ends_of_mean(changes):
    """The 95 % interval of a mean: the values on both sides that `p_of_mean` does not reject, by bisection."""
    mean, far = changes.mean(), 100 * changes.std()
    return [optimize.brentq(lambda at: p_of_mean(changes - at) - 0.05, mean, mean + side * far) for side in (-1, 1)]
