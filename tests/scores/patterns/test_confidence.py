"""Confidence: a loop over queries, of random attention with special tokens."""

from __future__ import annotations

import pytest
import torch
from helpers.letters import observation, value

from headroles.scores.patterns.confidence import Confidence


@pytest.mark.parametrize("special", [(), (0, 5), (2,)])
def test_it_is_the_mean_of_the_largest_weights_on_content(special):
    weights = torch.rand(6, 6, generator=torch.Generator().manual_seed(0)).softmax(-1)
    content = [place for place in range(6) if place not in special]
    largest = [max(weights[query, key].item() for key in content) for query in content]
    found = value(Confidence(), observation(weights, special=special))
    assert found == {"confidence": pytest.approx(sum(largest) / len(content), rel=1e-6)}
