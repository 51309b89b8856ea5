"""Rounding is no fault, and a fault is not rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.close import MANY, bound, close


def test_a_sum_in_another_order_is_equal_and_a_changed_number_is_not():
    """The sum of 50 nats that differed by 1e-5 on another CPU; the effect of a head on it is 0.01 and more."""
    nats = np.random.default_rng(0).random(100).astype(np.float32)
    forwards, backwards = np.cumsum(nats)[-1], np.cumsum(nats[::-1])[-1]
    assert forwards != backwards
    close([forwards, np.nan], [backwards, np.nan])
    close([50.00001], [50.0])
    for wrong in (50.001, np.nan):
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            close([wrong], [50.0])


def test_differences_are_as_exact_as_what_they_are_of():
    close([0.1 + 1e-6], [0.1], size=[-5, 2])
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        close([0.1 + 1e-4], [0.1], size=[-5, 2])
    assert bound(-2.0, operations=MANY, dtype=torch.float64) == MANY * 2 * 2.0**-52
