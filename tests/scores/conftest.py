"""Fixtures that several tests of scores share."""

from __future__ import annotations

import gc

import pytest
from helpers.attending import noticing

from headroles.scores.registry import list_scores


@pytest.fixture
def noticed():
    """What a score is shown of each kind, over all batches of a translation model."""
    before, shown = list(list_scores()), noticing()
    gc.collect()
    assert list(list_scores()) == before
    return shown


@pytest.fixture
def forgotten():
    """A class of scores is known as long as it lives; one made in a test must not be known in the next."""
    before = list(list_scores())
    yield
    gc.collect()
    assert list(list_scores()) == before
