"""Commands that are killed end as if they had not been: what is run by hand with more kills, with two."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from unittest import mock

import pytest

TOOL = Path(__file__).parent / "tools" / "faults.py"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="commands run in forks")
def test_commands_that_are_killed_end_as_if_they_had_not_been(tmp_path, monkeypatch):
    told = tmp_path / "told.json"
    few = ["--kills", "2", "--sentences", "12", "--only", "prune,remove-heads"]  # others are killed in their own tests
    monkeypatch.setattr(sys, "argv", ["faults.py", *few, "--output", str(told)])
    with mock.patch.dict(os.environ), mock.patch.object(sys, "path", [*sys.path]), pytest.raises(SystemExit) as end:
        runpy.run_path(str(TOOL))["main"]()
    assert end.value.code is False
    rows = json.loads(told.read_text())["commands"]
    assert sum(row["kills"] for row in rows) == 2
    assert {(row["finished"] - row["folders"], row["identical"] - row["folders"]) for row in rows} == {(0, 0)}
    assert {"prune", "remove-heads"} == {row["command"] for row in rows}
