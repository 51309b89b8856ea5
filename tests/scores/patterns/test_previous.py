"""Previous: numbers made by hand."""

from __future__ import annotations

import torch
from helpers.letters import looking, observation, value

from headroles.scores.patterns.previous import Previous


def test_numbers_of_the_token_before():
    assert value(Previous(), observation(looking([0, 0, 1, 2]))) == {"previous": 1}
    assert value(Previous(), observation(torch.eye(4))) == {"previous": 0}
    assert value(Previous(), observation(torch.full((4, 4), 1 / 4), special=(1,))) == {"previous": 1 / 4}
