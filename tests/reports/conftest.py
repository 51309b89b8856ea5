"""Fixtures of the tests of reports: a study with every table, and its report."""

from __future__ import annotations

import pytest
from helpers.reports import html, studied, study

from headroles.tables.study import Study

__all__ = ["html", "study"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The same with short sentences."""
    return studied(tmp_path_factory.mktemp("small") / "made", tokens=3)
