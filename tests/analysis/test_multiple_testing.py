"""Corrections of p are those of textbooks."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from helpers.sweeps import ablated

from headroles.analysis.multiple_testing import benjamini_hochberg, holm


@pytest.mark.parametrize("seed", range(5))
def test_corrections_are_those_of_textbooks(seed):
    rng = np.random.default_rng(seed)
    p = np.round(rng.random(30) ** 3, 2)  # some are equal
    many, order = len(p), np.argsort(p)
    stepped_down, stepped_up = np.empty(many), np.empty(many)
    for rank, place_ in enumerate(order):
        stepped_down[place_] = min(1, max((many - i) * p[order[i]] for i in range(rank + 1)))
        stepped_up[place_] = min(1, min(many / (i + 1) * p[order[i]] for i in range(rank, many)))
    np.testing.assert_allclose(holm(p), stepped_down)
    np.testing.assert_allclose(benjamini_hochberg(p), stepped_up)
    np.testing.assert_allclose(benjamini_hochberg(p), scipy.stats.false_discovery_control(p))


def test_what_was_tested_once_counts_once():
    """The heads of a kind share a test: three tests are corrected for, not 24."""
    table = ablated("marian", unit="kind")
    p = table["ablation[loss kind].p"].groupby("kind", sort=False).first()
    np.testing.assert_allclose(table["ablation[loss kind].holm"].groupby("kind", sort=False).first(), holm(p.array))
