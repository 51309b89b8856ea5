"""Distance: a loop over pairs of tokens, weighted by attention on content."""

from __future__ import annotations

import pytest
import torch
from helpers.letters import observation, value

from headroles.scores.patterns.distance import Distance


@pytest.mark.parametrize("kind", ["enc-self", "dec-self"])
@pytest.mark.parametrize("special", [(), (0, 5), (2,)])
def test_it_is_the_mean_number_of_tokens_between(kind, special):
    weights = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
    weights = (weights.tril() if kind == "dec-self" else weights) + torch.eye(6)
    weights = weights / weights.sum(-1, keepdim=True)
    far = mass = 0.0
    for query in range(6):
        for key in range(6):
            if not {query, key} & {*special}:
                far += abs(query - key) * weights[query, key].item()
                mass += weights[query, key].item()
    found = value(Distance(), observation(weights, kind=kind, special=special))
    assert found == {"distance": pytest.approx(far / mass, rel=1e-6)}
