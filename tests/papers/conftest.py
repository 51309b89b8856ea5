"""Fixtures that several tests of papers share."""

from __future__ import annotations

import pytest
from helpers.replicating import HALVES, pairs

from headroles.papers.preparation import prepare, prepared


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A prepared folder of toy pairs."""
    place = tmp_path_factory.mktemp("prepared") / "toy"
    prepare(place, [pairs()], **HALVES)
    return place


@pytest.fixture(scope="module")
def data(folder):
    return prepared(folder)
