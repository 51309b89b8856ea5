"""Files: what is no table is said in one sentence, what is no file is not replaced, other runs' drafts stay."""

from __future__ import annotations

import json
import os
import re

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headroles as hr
from headroles.plots import gallery
from headroles.tables import frame
from headroles.tables.io import check_ours, load_table, notes, replacing, save_table
from headroles.tables.study import Study

INDEX = frame.index({("enc-self", 0): 4})
TABLE = frame.table({"confidence": [0.5] * 4}, INDEX, "model:m|weights:w|corpus:c|text:t")
NESTED = "[" * 100_000 + "]" * 100_000
NOTES = {  # what other programs might write where ours is
    "no JSON": "{", "list": "[]", "number": "1", "null": "null", "nested": NESTED,
    "nested signature": '{"signatures": {"a": ' + NESTED + "}}",
    **{f"{key} {value}": json.dumps({key: value}) for key in ("signatures", "recipe") for value in (1, True, ["a"])},
    **{f"signature {value}": json.dumps({"signatures": {"a": value}}) for value in (1, None, ["b"], {"c": "d"})},
    "signatures text": '{"signatures": "a"}', "recipe dict": '{"recipe": {"a": "b"}}',
}  # fmt: skip


def with_metadata(path, metadata):
    arrow = pa.Table.from_pandas(frame.bare(TABLE))
    pq.write_table(arrow.replace_schema_metadata({**arrow.schema.metadata, **metadata}), path)
    return path


@pytest.mark.parametrize("name", NOTES)
def test_notes_of_other_types_are_no_table_of_ours(name, tmp_path):
    path = with_metadata(tmp_path / "heads.parquet", {b"headroles": NOTES[name].encode()})
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is not a table of headroles: ") as error:
        load_table(path)
    assert "\n" not in str(error.value)
    assert notes(path) is None
    assert Study(tmp_path)._repr_html_().startswith("<p>Study ")


COLUMNS = (  # of an index, as pandas writes them
    *("", "{", "[]", "1", '{"index_columns": 1}', '{"index_columns": [1], "columns": 2}'),
    '{"index_columns": [{"kind": "x"}], "columns": [], "column_indexes": []}',
)


@pytest.mark.parametrize("text", COLUMNS)
def test_a_damaged_index_is_no_table_of_ours_or_is_shown(text, tmp_path):
    kept = {b"pandas": text.encode(), b"headroles": b'{"signatures": {}}'}
    path = with_metadata(tmp_path / "heads.parquet", kept)
    try:
        shown = load_table(path)._repr_html_()
    except ValueError as error:
        shown = str(error)
    assert shown.startswith(("<div>", f"{path} is not a table of headroles: "))


def test_lack_of_memory_is_no_damage(tmp_path, monkeypatch):
    path = save_table(TABLE, tmp_path / "heads.parquet")

    def fail(_):
        raise pa.ArrowMemoryError("malloc of size 9")

    monkeypatch.setattr(pq, "read_table", fail)
    with pytest.raises(MemoryError):
        load_table(path)


FOREIGN = {
    "pandas": lambda path: pd.DataFrame({"a": [1]}).to_parquet(path),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("PAR1 and so on"),
    "folder": lambda path: path.mkdir(),
    "link": lambda path: path.symlink_to(path.parent / "nothing"),
    "nested": lambda path: with_metadata(path, {b"headroles": NESTED.encode()}),
    "typed": lambda path: with_metadata(path, {b"headroles": b'{"signatures": [1]}'}),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("name", ["mine", "ablation-loss-single-zero", "conservation-cp", "sizes-l0", "relate"])
def test_a_foreign_file_in_a_study_is_left_out_with_a_warning(name, kind, tmp_path, caplog):
    study = Study(tmp_path / "study")
    study.keep("heads", "model:m|weights:w|text:t", lambda: TABLE)
    FOREIGN[kind](study.path(name))
    assert [path.name for path in gallery.plot(study)] == ["heatmap-confidence.png"]
    assert hr.report(study, tmp_path / "report.html").is_file()
    assert study.keep("entropy", "model:m|weights:w", lambda: TABLE) is TABLE
    assert set(caplog.messages) == {f"{study.path(name)} is no table of headroles, or damaged: left out"}


def test_a_device_and_a_fifo_are_not_replaced(tmp_path):
    path = tmp_path / "fifo.parquet"
    os.mkfifo(path)
    said = re.escape(f"{path} is a device or FIFO; expected the name of a file")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=f"^{said}$"):
            check_ours(path, "w", overwrite=overwrite)
    with pytest.raises(OSError, match=f"^could not write .*: {said}; what was there before is unchanged$"):
        save_table(TABLE, path)
    assert path.is_fifo()
    assert os.listdir(tmp_path) == [path.name]


def test_drafts_that_another_machine_is_writing_stay_whatever_its_clock(tmp_path):
    """The clock of this machine may be ahead of the other's: its drafts seemed older than this process."""
    path = tmp_path / "a"
    ages = {"0123abcd": 60, "4567cdef": 3600, "89abcdef": 2 * 24 * 3600}
    path.touch()
    now = path.stat().st_mtime
    for end, age in ages.items():
        draft = tmp_path / f".a.{end}"
        draft.mkdir()
        os.utime(draft, (now - age, now - age))
    with replacing(path) as draft:
        draft.write_text("new")
    assert {one.name for one in tmp_path.iterdir()} == {"a", ".a.0123abcd", ".a.4567cdef"}


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert save_table(TABLE, "~/a.parquet") == tmp_path / "a.parquet"
    assert load_table("~/a.parquet").equals(TABLE)
