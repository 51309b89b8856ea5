"""Tables of artefacts are found by what they are, or said to be missing, with what they say together."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from helpers.artefacts import put

import headroles as hr
from headroles.papers.bench import Bench, cost_of_all_heads
from headroles.papers.reproduction import PAPERS, written
from headroles.papers.verdicts import Missing, metric_of

matplotlib.use("agg")


def test_the_papers_metric_comes_first_then_the_study_then_its_own_domain(tmp_path):
    study = tmp_path / "captions-en-de"
    one = {"ablation[loss]": [1.0]}
    files = ["ablation-bleu-head-zero", *(f"{at}ablation-loss-head-zero" for at in ("", "captions/", "a/"))]
    for name in (*files, "papers/x/ablation-bleu-head-zero", ".sweeps/ablation-bleu-head-zero", "other"):
        put(study / f"{name}.parquet", one)
    bench = Bench([study])
    assert [table.attrs["file"] for table in bench.tables("single")] == [
        str(study / f"{name}.parquet") for name in files
    ]
    bench.used = []
    assert metric_of(bench.table("single")) == "bleu"
    assert bench.used == [study / "ablation-bleu-head-zero.parquet"]
    for name in files[1:]:
        put(study / "untrained" / f"{name}.parquet", one)
    untrained = [Path(table.attrs["file"]).parent for table in Bench([study / "untrained"]).tables("single")]
    assert untrained == [study / "untrained" / name for name in (".", "captions", "a")]


@pytest.mark.parametrize("paper", PAPERS)
def test_without_tables_every_artefact_says_what_is_missing(paper, tmp_path):
    found = written(Bench([tmp_path]), tmp_path, paper)
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
    put(tmp_path / "pooled-heads.parquet", {"confidence": [0.5], "relevance[cp].size": [0.5]})  # of several models
    bench = Bench([tmp_path])
    assert bench.table("compare-pruning").attrs["file"] == str(tmp_path / "a" / "compare-pruning.parquet")
    assert bench.table("places").attrs["file"] == str(tmp_path / "b" / "compare-pruning.parquet")
    with pytest.raises(Missing, match="^no table of scores with confidence and relevance in "):
        bench.table("relevance")


def test_what_all_heads_are_worth_is_measured_as_their_effects_are(tmp_path):
    for metric, last in (("bleu", 10.0), ("loss", 5.0)):
        columns = {"order": "importance", "masked": [0, 4], "share": [0, 1], "value": [20.0, last], "change": [0, -9]}
        columns |= {"low": 0, "high": 0, "change.low": [0, -9], "change.high": [0, -9]}
        put(tmp_path / f"curves-{metric}.parquet", columns)
    tables = [pd.DataFrame() for _ in range(3)]
    for table, metric in zip(tables, ("loss", "bleu", "chrf"), strict=True):
        table.attrs["file"] = f"ablation-{metric}-head-zero.parquet"
    assert [cost_of_all_heads(Bench([tmp_path]), table)["all"] for table in tables] == [-9, 0.45, 0.45]


@pytest.mark.parametrize("weights", ["a", "b", "c"])
def test_what_all_heads_are_worth_is_that_of_the_same_model(tmp_path, weights):
    """Curves of another model say nothing of this one, and are not among its sources."""
    for name, cost in (("a", -3), ("b", -9)):
        columns = {"order": "importance", "masked": [0, 4], "share": [0, 1], "value": [20.0, 10], "change": [0, cost]}
        columns |= {"low": 0, "high": 0, "change.low": [0, cost], "change.high": [0, cost]}
        put(tmp_path / name / "curves-bleu.parquet", columns, f"model:m|weights:{name}|metric:BLEU(beams=1)")
    table = pd.DataFrame()
    table.attrs |= {"signatures": {"x": f"model:m|weights:{weights}|metric:BLEU(beams=1)"}}
    bench = Bench([tmp_path])
    expected = {"a": 0.15, "b": 0.45, "c": np.nan}[weights]
    assert cost_of_all_heads(bench, table)["all"] == pytest.approx(expected, nan_ok=True)
    assert [path.parent.name for path in bench.used] == [weights] * (weights != "c")
