"""Fixtures of the tests of models: a model in a folder, and a copy of it."""

from __future__ import annotations

import pytest
from helpers import zoo
from helpers.commands import model, own
from helpers.letters import tokens_of

import headroles as hr

__all__ = ["model", "own"]


@pytest.fixture
def saved_model(tmp_path):
    return hr.save(zoo.tiny("bert"), tokens_of("bert"), tmp_path / "whole")
