"""Commands that are killed end as if they had not been: what is run by hand with more kills, with two."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from helpers.processes import Fork

TOOL = Path(__file__).parent / "tools" / "faults.py"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="commands run in forks")
def test_commands_that_are_killed_end_as_if_they_had_not_been(tmp_path):
    told = tmp_path / "told.json"
    code = f"import runpy\nrunpy.run_path({str(TOOL)!r}, run_name='__main__')"
    few = ["--kills", 2, "--sentences", 12, "--only", "prune,remove-heads"]  # others are killed in tests of their own
    process = Fork(code, *few, "--output", told)
    assert (process.wait(), process.said()) == (0, "")
    rows = json.loads(told.read_text())["commands"]
    assert sum(row["kills"] for row in rows) == 2
    assert {(row["finished"] - row["folders"], row["identical"] - row["folders"]) for row in rows} == {(0, 0)}
    assert {"prune", "remove-heads"} == {row["command"] for row in rows}
