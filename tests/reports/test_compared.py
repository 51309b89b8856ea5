"""A page of two models has their differences and the roles gained and lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.commands import run
from helpers.reports import told

import headroles as hr

PUD = Path(__file__).resolve().parents[2] / "figures/minilm/pud"
UNTRAINED = PUD.parent / "untrained/pud"


def test_the_page_has_the_differences_and_the_roles_that_are_gained(tmp_path):
    output = tmp_path / "report.html"
    done = run("report", UNTRAINED, PUD, "--compare", "--output", output)
    changes = hr.compare_models(UNTRAINED, PUD)
    count = sum("positional[-1]" in names.split(", ") for names in changes["gained"])
    assert f"roles gained by heads of the second model: positional[-1] by {count}, " in done.out
    assert "roles lost by heads of the second model: " in done.out
    assert done.out.endswith(f"written: {output}\n")
    html = output.read_text()
    before, after, roles = (
        hr.load_table(path) for path in (UNTRAINED / "heads.parquet", PUD / "heads.parquet", PUD / "roles.parquet")
    )
    compared = told(html)["compared"]
    (change,) = (one for one in compared["columns"] if one["name"] == "confidence")
    np.testing.assert_allclose(change["values"], after["confidence"] - before["confidence"], rtol=0, atol=1e-6)
    assert "rank" not in change
    assert (compared["first"], compared["second"]) == ("untrained/pud", "minilm/pud")
    gained = {row["role"]: row["gained"] for row in compared["roles"]}
    (_, layer, head), *_ = roles.index[roles["positional[-1]"]]
    assert gained["positional[-1]"] == [f"L{layer}H{head}"]
    section = html[html.index('id="compared"') : html.index('id="overview"')]
    assert "minilm/pud less untrained/pud" in section
    assert f"<td>L{layer}H{head}</td><td>—</td>" in section
    assert told(hr.report(PUD, tmp_path / "other.html").read_text())["compared"] is None


def test_a_comparison_is_of_two_models_of_one_shape(tmp_path):
    with pytest.raises(ValueError, match=r"^a comparison is of two studies: got 1; expected the folders of two models"):
        hr.report(PUD, tmp_path / "report.html", compare=True)
    other = PUD.parents[1] / "translator-en-de"
    with pytest.raises(ValueError, match=r"^models of different shapes cannot be compared head by head: got 72 and 40"):
        hr.report([PUD, other], tmp_path / "report.html", compare=True)
