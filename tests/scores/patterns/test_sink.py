"""Sink: a loop over content queries, of random attention with special tokens."""

from __future__ import annotations

import pytest
import torch
from helpers.letters import observation, value

from headroles.scores.patterns.sink import Sink


@pytest.mark.parametrize("special", [(), (0, 5), (2,)])
def test_it_is_the_mean_weight_on_special_tokens_and_on_the_first(special):
    weights = torch.rand(6, 6, generator=torch.Generator().manual_seed(0)).softmax(-1)
    content = [query for query in range(6) if query not in special]
    on_special = sum(weights[query, key].item() for query in content for key in special) / len(content)
    on_first = sum(weights[query, 0].item() for query in content) / len(content)
    found = value(Sink(), observation(weights, special=special))
    assert found == pytest.approx({"sink[special]": on_special, "sink[first]": on_first}, rel=1e-6)
