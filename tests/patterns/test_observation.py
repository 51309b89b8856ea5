"""Observation: what scores and patterns read of attention weights, against plain loops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.letters import observation

from headroles.patterns.observation import NOWHERE

WEIGHTS = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1], [0.0, 0.5, 0.5, 0.0], [0.25] * 4])


def test_weights_on_content():
    seen = observation(WEIGHTS, special=(0,))
    assert seen.on_real[0, 0].tolist() == [[0, *row[1:]] for row in WEIGHTS.tolist()]
    values, places = seen.top
    assert values[0, 0].tolist() == pytest.approx([0.4, 0.1, 0.5, 0.25])
    assert places[0, 0].tolist() == [3, 1, 1, 1]  # the first of equal ones
    received = [sum(WEIGHTS[query, key].item() for query in (1, 2, 3)) for key in range(4)]
    assert seen.received[0, 0].tolist() == pytest.approx(received)
    chosen = torch.tensor([[True, False, False, True]])
    assert seen.on_keys(chosen).item() == pytest.approx(received[0] + received[3])


def test_sums_over_content_queries():
    seen = observation(WEIGHTS, special=(0,))
    values = torch.tensor([[[1.0, 2.0, 4.0, 8.0]]])
    assert seen.over_queries(values).item() == 14
    assert seen.over_queries(values, torch.tensor([[True, True, False, True]])).item() == 10


def test_norms_are_shares_and_may_be_nowhere():
    seen = observation(WEIGHTS)
    lengths = torch.tensor([[[0.0, 2.0, 0.0, 1.0]]])
    by_norm = replace(seen, value_norms=lambda: lengths).by_norm
    moved = [[weight * size for weight, size in zip(row, (0, 2, 0, 1), strict=True)] for row in WEIGHTS.tolist()]
    assert by_norm.weights[0, 0].tolist() == [pytest.approx([part / sum(row) for part in row]) for row in moved]
    still = replace(seen, value_norms=lambda: torch.zeros(1, 1, 4)).by_norm
    assert still.top[1].unique().tolist() == [NOWHERE]


def test_a_query_without_weight_on_content_has_no_largest():
    weights = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.5]])
    values, places = observation(weights, special=(0,)).top
    assert values[0, 0].tolist() == [0, 1, 0, 0.5]
    assert places[0, 0].tolist() == [NOWHERE, 1, NOWHERE, 3]
