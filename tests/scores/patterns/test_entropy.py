"""Entropy: that of scipy, of the whole distribution, zeros and special tokens included."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from helpers.letters import observation, value

from headroles.scores.patterns.entropy import Entropy


@pytest.mark.parametrize("special", [(), (0, 5), (2,)])
def test_it_is_the_mean_entropy_of_content_queries(special):
    weights = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
    weights[:, 3] = 0
    weights = weights / weights.sum(-1, keepdim=True)
    content = [place for place in range(6) if place not in special]
    expected = np.mean([scipy.stats.entropy(weights[query].numpy()) for query in content])
    assert value(Entropy(), observation(weights, special=special)) == {"entropy": pytest.approx(expected, rel=1e-6)}
