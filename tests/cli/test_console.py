"""Tables on the console are whole."""

from __future__ import annotations

import re

import pytest
from helpers.prunings import wide

from headroles.cli.console import show_table


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_are_not_truncated_at_the_width_of_the_terminal(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    show_table(wide(), "wide")
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    table, printed = wide(), re.sub(r"[\s│┃]", "", shown)
    assert all(f"{n}.125[{n}.125,{n}.125]" in printed for n in range(6))
    assert all(re.sub(r"\s", "", name) in printed for name in table if "." not in name)
    assert shown.count("b") >= 80
