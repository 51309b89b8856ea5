"""Tables on the console are whole."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from helpers.commands import cells
from helpers.prunings import wide

from headroles.cli.console import recording, show_table


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_are_not_truncated_at_the_width_of_the_terminal(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    show_table(wide(), "wide")
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    table, printed = wide(), re.sub(r"\s", "", shown)
    assert all(text in printed for n in range(6) for text in (f"{n}.125", f"[{n}.125,{n}.125]"))
    assert all(re.sub(r"\s", "", name) in printed for name in table if "." not in name)
    assert shown.count("b") >= 80


def test_small_numbers_have_three_digits(capsys):
    """Effects on the agreement, which starts at 1, are thousandths."""
    effects = {"change": [0.0029, -0.00004], "change.low": [0.0025, -0.0001], "change.high": [0.0033, 0.00002]}
    show_table(pd.DataFrame(effects | {"share": [0.5, 0.25], "none": [float("nan")] * 2}), "costs")
    shown = capsys.readouterr().out
    assert "0.00290 [0.00250, 0.00330]" in shown
    assert "-0.00004 [-0.00010, 0.00002]" in shown
    assert "0.500" in shown
    show_table(pd.DataFrame({"role": ["a"], "p": [0.00012], "heads": [3.0]}), "tests")
    assert cells(capsys.readouterr().out)[3] == ["a", "0.000120", "3"]
    show_table(pd.DataFrame({"role": ["a"], "p": [1e-30]}), "tests")
    assert cells(capsys.readouterr().out)[3] == ["a", "0.000000"]  # and no wider


def test_missing_numbers_are_null(study, capsys):
    with recording(quiet=True) as record:
        record.keep(study.load("heads"), "title")
    values = [row["confidence"] for row in record.tables[0]["rows"]]
    assert values == [0.9, 0.5, None, 0.25]
    assert capsys.readouterr() == ("", "")
