"""What reports refuse: the call, the type of the error, and the subject and the value that the message names."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import planted, zoo
from helpers.reports import signed, studied

import headroles as hr
from headroles.tables import frame
from headroles.tables.io import save_table

FIGURES = Path(__file__).resolve().parents[2] / "figures/models"
PUD = FIGURES / "minilm/pud"
HISTORY = {"kind": ["enc-self"], "layer": [3], "head": [0], "step": [0], "open": [0.5]}


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Folders of tables: a study, one of other heads, one of gates that its heads lack, and one without tables."""
    studied(tmp_path / "made", tokens=3)
    two = frame.table({"a": [1.0, 2.0]}, frame.index({("enc-self", 0): 2}), "model:x")
    for name in ("other", "gates"):
        save_table(two, tmp_path / name / "heads.parquet")
    save_table(signed(HISTORY), tmp_path / "gates" / "gates-l0-1.parquet")
    (tmp_path / "empty").mkdir()
    return tmp_path


def _report(*names, **options):
    return lambda place: hr.report([place / name for name in names], place / "report.html", **options)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (_report(), ValueError, "studies must be at least one folder of tables, got none"),
        (_report("empty"), FileNotFoundError, "no tables to report in .*empty; make them with headroles score"),
        (_report("made", "empty"), FileNotFoundError, "no tables to report in .*empty"),
        (_report("made", "other"), ValueError,
         r"tables must be of the heads of one model, got .*other \(heads\) with 2 heads, 2 .* the 144 "),
        (_report("gates"), ValueError, r"tables must .*gates \(gates-l0-1\) with 1 heads, 0 of them among the 2 "),
        (_report(PUD, compare=True), ValueError, "a comparison needs the studies of two models .*, got 1"),
        (_report(PUD, FIGURES / "translator-en-de", compare=True), ValueError,
         "the models are of different heads: got 72 and 40 rows"),
        (lambda _: hr.explore(PUD).attention("a"), ValueError, "attention needs a model; try hr.explore"),
        (lambda _: hr.explore(PUD, zoo.tiny("marian"), planted.tokenizer()), ValueError,
         "the model must have the 72 heads of the study, got 24 heads"),
    ],
)  # fmt: skip
def test_what_reports_refuse(call, error, message, folders):
    with pytest.raises(error, match=f"^{message}"):
        call(folders)
    assert not (folders / "report.html").exists()
