"""Tables that artefacts need are found by their columns and rows, or said to be missing."""

from __future__ import annotations

import re

import matplotlib
import pytest
from helpers.artefacts import put

import headroles as hr
from headroles.papers.bench import Bench
from headroles.papers.claims import PAPERS, reproduce
from headroles.papers.needs import Missing

matplotlib.use("agg")


@pytest.mark.parametrize("paper", PAPERS)
def test_without_tables_every_artefact_says_what_is_missing(paper, tmp_path):
    found = reproduce(Bench([tmp_path]), tmp_path, paper)
    lacking = found[(found["paper"] != "voita2019") | (found["artefact"] != "fig6")]  # which is a formula
    assert not lacking["made"].any()
    text = rf"no table of .* in {re.escape(str(tmp_path))}; make one with (headroles .+|hr\.(\w+)\(.+, study=\.\.\.\))"
    said = [re.fullmatch(text, why) for why in lacking["why"]]
    assert [why for why, match in zip(lacking["why"], said, strict=True) if not match] == []
    assert [match[2] for match in said if match[2] and not callable(getattr(hr, match[2], None))] == []


def test_a_table_is_known_by_its_columns_and_rows(tmp_path):
    put(tmp_path / "a" / "compare-pruning.parquet", {"strategy": ["importance", "random"], "tuned": [True, True]})
    columns = {"strategy": ["middle", "ends"], "tuned": [True, True], "value.low": [0.1, 0.2]}
    put(tmp_path / "b" / "compare-pruning.parquet", columns)
    put(tmp_path / "heads.parquet", {"confidence": [0.5]})
    bench = Bench([tmp_path])
    assert bench.table("compare-pruning").attrs["file"] == str(tmp_path / "a" / "compare-pruning.parquet")
    assert bench.table("places").attrs["file"] == str(tmp_path / "b" / "compare-pruning.parquet")
    with pytest.raises(Missing, match="^no table of scores with confidence and relevance in "):
        bench.table("relevance")
