"""Tables of a report: of one model, from several folders, and what is absent."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.reports import SIZES, same, signed, told

import headroles as hr
from headroles.tables import frame
from headroles.tables.io import save_table

LACKS = {  # table -> what the page says without it
    "heads": "no scores in these tables; <code>headroles score ",
    "ablation-loss-head-zero": "no effects of ablation in these tables; <code>headroles ablate ",
    "circuits": "no scores of the weights alone (copying, succession) in these tables; "
    "<code>hr.scores.copying</code> makes them.",
    "roles": "no roles in these tables; <code>headroles roles ",
    "sparsity-l0": "no models pruned to several sizes in these tables; <code>headroles sparsity-sweep ",
    "curves-loss": "no curves in these tables; <code>headroles ablation-curve ",
    "relate": "no comparisons of roles with outcomes in these tables; <code>headroles relate ",
    "attention": "no examples of attention in these tables; <code>hr.attention_examples</code> makes them.",
}


@pytest.mark.slow
@pytest.mark.parametrize("lacking", LACKS)
def test_a_section_without_its_table_says_so_in_a_sentence(small, tmp_path, lacking):
    for path in small.folder.glob("*.parquet"):
        if path.stem != lacking:
            (tmp_path / path.name).symlink_to(path)
    html = hr.report(tmp_path, tmp_path / "report.html").read_text()
    assert [name for name, sentence in LACKS.items() if sentence in html] == [lacking]


def test_a_page_of_curves_alone_has_no_heads(tmp_path):
    columns = {"order": ["a", "a"], "masked": [0, 1], "share": [0, 1.0], "value": [2.0, 1], "low": 1.0, "high": 3.0}
    save_table(signed(columns), tmp_path / "curves.parquet")
    html = hr.report([tmp_path], tmp_path / "report.html").read_text()
    assert told(html)["heads"] == []
    assert len(told(html)["curves"]) == 1
    lacking = [name for name, sentence in LACKS.items() if sentence in html]
    assert lacking == [name for name in LACKS if name not in ("curves-loss", "circuits")]  # of decoders alone


def test_later_folders_add_the_columns_the_earlier_ones_lack(small, tmp_path):
    index, other = frame.index(SIZES), tmp_path / "later"
    columns = {"confidence": np.zeros(144), "importance": np.arange(144.0)}
    zeros = frame.table(columns, index, "model:toy|weights:abc|score:Other()")
    save_table(zeros, other / "heads.parquet")
    save_table(signed({"a": [1]}), other / "evaluation.parquet")
    html = hr.report([small, str(other)], tmp_path / "report.html").read_text()
    columns = {one["name"]: one for one in told(html)["columns"]}
    assert columns["confidence"]["from"] == "made/heads"
    assert columns["importance"]["from"] == "later/heads"
    same(columns["importance"]["values"], np.arange(144))
    assert "confidence of later/heads." in html
    assert "model:toy|weights:abc|score:Other()" in html
    assert "not part of this page: later/evaluation." in html


def test_folders_of_one_name_are_distinguished(tmp_path):
    index = frame.index({("enc-self", 0): 2})
    for name, column in (("a", "confidence"), ("b", "entropy")):
        table = frame.table({column: [0.1, 0.2]}, index, f"model:x|weights:{name}")
        save_table(table, tmp_path / name / "study/heads.parquet")
    html = hr.report([tmp_path / "a/study", tmp_path / "b/study"], tmp_path / "report.html").read_text()
    assert [one["from"] for one in told(html)["columns"]] == ["a/study/heads", "b/study/heads"]
    assert "<title>The heads of x</title>" in html
    assert "The tables were made from more than one set of weights." in html


def test_a_folder_that_is_given_twice_is_read_once(small, tmp_path):
    data = told(hr.report([small, small.folder], tmp_path / "report.html").read_text())
    assert len(data["curves"]) == 1
