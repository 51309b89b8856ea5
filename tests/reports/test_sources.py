"""Tables of a report: of one model, from several folders, and what is absent."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.messages import whole
from helpers.reports import SIZES, same, signed, told

import headroles as hr
from headroles.tables import frame
from headroles.tables.io import save_table

LACKS = {  # section -> the sentence that stands where its table is not there
    "heads": "There are no scores in these tables; <code>headroles score</code> makes them.",
    "ablation-loss-head-zero": "No ablation is in these tables; <code>headroles ablate</code> makes it.",
    "circuits": "Nothing that the weights alone say (copying, succession) is in these tables; "
    "<code>hr.scores.copying</code> in Python makes it.",
    "roles": "No roles are in these tables; <code>headroles roles</code> assigns them by scores.",
    "sparsity-l0": "No model pruned to several sizes is in these tables; "
    "<code>headroles sparsity-sweep</code> makes it.",
    "curves-loss": "No curves are in these tables; <code>headroles ablation-curve</code> makes them.",
    "relate": "No comparison of roles with outcomes is in these tables; <code>headroles relate</code> makes it.",
    "attention": "There is no attention on example sentences; <code>hr.attention_examples</code> makes it.",
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
    save_table(
        signed({"order": ["a", "a"], "masked": [0, 1], "share": [0, 1.0], "value": [2.0, 1], "low": 1.0, "high": 3.0}),
        tmp_path / "curves.parquet",
    )
    html = hr.report([tmp_path], tmp_path / "report.html").read_text()
    assert told(html)["heads"] == []
    assert len(told(html)["curves"]) == 1
    lacking = [name for name, sentence in LACKS.items() if sentence in html]
    assert lacking == [name for name in LACKS if name not in ("curves-loss", "circuits")]  # of decoders alone


def test_later_folders_add_the_columns_the_earlier_ones_lack(small, tmp_path):
    index, other = frame.index(SIZES), tmp_path / "later"
    zeros = frame.table(
        {"confidence": np.zeros(144), "importance": np.arange(144.0)}, index, "model:toy|weights:abc|score:Other()"
    )
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
        save_table(
            frame.table({column: [0.1, 0.2]}, index, f"model:x|weights:{name}"), tmp_path / name / "study/heads.parquet"
        )
    html = hr.report([tmp_path / "a/study", tmp_path / "b/study"], tmp_path / "report.html").read_text()
    assert [one["from"] for one in told(html)["columns"]] == ["a/study/heads", "b/study/heads"]
    assert "<title>The heads of x</title>" in html
    assert "The tables were made from more than one set of weights." in html


def test_tables_of_another_model_are_refused(small, tmp_path):
    save_table(frame.table({"a": [1.0, 2.0]}, frame.index({("enc-self", 0): 2}), "model:x"), tmp_path / "heads.parquet")
    message = (
        f"{small.folder} (ablation-loss-head-zero) and {tmp_path} (heads) are of different heads: 144 and 2, "
        "2 in common; a report is of one model"
    )
    with pytest.raises(ValueError, match=whole(message)):
        hr.report([small, tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_gates_of_heads_the_model_lacks_are_refused(tmp_path):
    save_table(frame.table({"a": [1.0, 2.0]}, frame.index({("enc-self", 0): 2}), "model:x"), tmp_path / "heads.parquet")
    history = {"kind": ["enc-self"], "layer": [3], "head": [0], "step": [0], "open": [0.5]}
    save_table(signed(history), tmp_path / "gates-l0-1.parquet")
    message = (
        f"{tmp_path} (heads) and {tmp_path} (gates-l0-1) are of different heads: 2 and 1, 0 in common; "
        "a report is of one model"
    )
    with pytest.raises(ValueError, match=whole(message)):
        hr.report(tmp_path, tmp_path / "report.html")


def test_a_folder_without_tables_is_refused_also_beside_others(small, tmp_path):
    message = f"nothing to report in {tmp_path}; make tables with headroles score or headroles ablate"
    for given in (tmp_path, [small, tmp_path]):
        with pytest.raises(FileNotFoundError, match=whole(message)):
            hr.report(given, tmp_path / "report.html")
    with pytest.raises(ValueError, match=whole("no study to report: got none; expected at least one folder of tables")):
        hr.report([], tmp_path / "report.html")


def test_a_folder_that_is_given_twice_is_read_once(small, tmp_path):
    data = told(hr.report([small, small.folder], tmp_path / "report.html").read_text())
    assert len(data["curves"]) == 1


def test_a_table_that_is_none_of_ours_is_refused(tmp_path):
    save_table(signed({"a": [1]}), tmp_path / "curves.parquet")
    message = (
        "not a table of hr.ablation_curve: got a DataFrame (a) with 1 rows, index None; "
        "expected columns high, low, masked, order, share, value"
    )
    with pytest.raises(ValueError, match=whole(message)):
        hr.report(tmp_path, tmp_path / "report.html")
