"""What several tests share: where the shared folder is, and tiny random models."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("HEADROLES_SHARED", Path(__file__).resolve().parents[2] / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of treebanks and models; a test that asks for it is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"no shared folder at {SHARED}; set HEADROLES_SHARED")
    return SHARED
