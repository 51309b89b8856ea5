"""Files of tables: what is saved is loaded, damage is noticed, and a write that fails changes nothing."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.messages import whole
from helpers.processes import full_disk
from helpers.tables import DETERMINISTIC, INDEX, NAMES, TAKEN, same, table
from hypothesis import given
from hypothesis import strategies as st

import headroles as hr
from headroles.plots import gallery
from headroles.tables import frame
from headroles.tables.io import load_table, replacing, save_table
from headroles.tables.study import Study

INDEX_OF_FOUR = frame.index({("enc-self", 0): 4})
TABLE = frame.table({"confidence": [0.5, 0.25, 0.5, 0.5]}, INDEX_OF_FOUR, "model:m|weights:w|text:t")
FOREIGN = {
    "pandas": lambda path: pd.DataFrame({"a": [1]}).to_parquet(path),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("PAR1 and so on"),
    "folder": lambda path: path.mkdir(),
    "link": lambda path: path.symlink_to(path.parent / "nothing"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_in_a_study_is_left_out_with_a_warning(kind, tmp_path, caplog):
    study = Study(tmp_path / "study")
    study.keep("heads", "model:m|weights:w|text:t", lambda: TABLE)
    names = ["mine", "ablation-loss-head-zero", "conservation-cp", "sparsity-l0", "relate"]
    for name in names:
        FOREIGN[kind](study.path(name))
    assert [path.name for path in gallery.plot(study)] == ["heatmap-confidence.png"]
    assert hr.report(study, tmp_path / "report.html").is_file()
    assert study.keep("entropy", "model:m|weights:w", lambda: TABLE) is TABLE
    said = {f"{study.path(name)} is not a table of headroles, or is damaged: left out" for name in names}
    assert set(caplog.messages) == said


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert save_table(TABLE, "~/a.parquet") == tmp_path / "a.parquet"
    assert load_table("~/a.parquet").equals(TABLE)


def test_two_tables_alike_are_the_same_bytes_and_other_programs_read_them(tmp_path):
    one, other = (save_table(table("a", draws=["a"]), tmp_path / name) for name in ("a.parquet", "b.parquet"))
    assert one.read_bytes() == other.read_bytes()
    assert pq.read_table(one, columns=["a"])["a"].to_pylist() == table("a")["a"].tolist()


DTYPES = st.sampled_from(["float64", "float32", "int64", "bool", "str"])


@st.composite
def tables(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    names = draw(st.lists(NAMES, unique=True, max_size=5))
    columns = {name: _values(rng, draw(DTYPES)) for name in names}
    index = INDEX[draw(st.permutations(range(len(INDEX))))]
    draws = {name: _draws(rng, len(index)) for name in names if draw(st.booleans())}
    made = frame.table(columns, index, {name: draw(NAMES) for name in names}, draws=draws)
    if draw(st.booleans()):
        made.attrs["recipe"] = draw(NAMES)
    return made


def _values(rng, dtype):
    values = rng.normal(size=len(INDEX))
    values[rng.random(len(INDEX)) < 0.3] = rng.choice([np.nan, np.inf, -0.0])
    if dtype.startswith("float"):
        return values.astype(dtype)
    return [f"{value:.2f}" for value in values] if dtype == "str" else (np.nan_to_num(values) > 0).astype(dtype)


def _draws(rng, size):
    draws = rng.normal(size=(size, rng.integers(1, 9))).astype(np.float32)
    draws[rng.random(draws.shape) < 0.2] = np.nan
    return draws


@pytest.mark.slow
@DETERMINISTIC
@given(made=tables())
def test_what_was_saved_is_loaded(made, tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "a.parquet"
    assert save_table(made, path) == path
    loaded = load_table(path)
    same(loaded, made)
    save_table(loaded, path)
    same(load_table(path), made)


def test_a_selection_and_a_table_without_heads_or_signatures_are_saved_as_they_are(tmp_path):
    made = table("a", "b", draws=["a", "b"])
    for part in (made.iloc[2:5], made[["b"]], made.sort_values("a"), made[made["a"] > 100], made.iloc[:0]):
        same(load_table(save_table(part, tmp_path / "a.parquet")), part)
    made = pd.DataFrame({"relation": ["obj", "nsubj"], "offset": [-1, 2]})
    loaded = load_table(save_table(made, tmp_path / "a.parquet"))
    pd.testing.assert_frame_equal(loaded, made)
    assert loaded.attrs == {}


def test_saving_changes_nothing_in_the_table(tmp_path):
    made = table("a", draws=["a"])
    before, attrs = made.copy(), dict(made.attrs)
    save_table(made, tmp_path / "new" / "folder" / "a.parquet")
    same(made, before)
    assert made.attrs == attrs


def test_pandas_alone_writes_and_reads_a_table(tmp_path):
    made = table("a", "b", draws=["a"])
    made.to_parquet(tmp_path / "a.parquet")
    read = pd.read_parquet(tmp_path / "a.parquet")
    pd.testing.assert_frame_equal(read, made)
    assert frame.provenance(read, "a") == "score:a|seed:0"
    assert frame.resamples(read) == {}
    ours = save_table(made, tmp_path / "b.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(ours)[["a", "b"]], made)


def test_a_table_that_is_not_there(tmp_path):
    for path in (tmp_path / "a.parquet", tmp_path):
        with pytest.raises(FileNotFoundError, match=whole(f"no table at {path}")):
            load_table(path)


@pytest.mark.parametrize("content", [b"", b"no parquet", b"PAR1" + b"\0" * 40 + b"PAR1"])
def test_a_file_that_is_no_table(content, tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    with pytest.raises((pa.ArrowInvalid, OSError)) as arrow:
        pq.read_table(pa.BufferReader(content))
    with pytest.raises(ValueError, match=whole(f"{path} is not a table of headroles: {arrow.value}")):
        load_table(path)


def test_a_parquet_file_of_another_program(tmp_path):
    path = tmp_path / "a.parquet"
    pd.DataFrame({"a": [1]}).to_parquet(path)
    with pytest.raises(ValueError, match=whole(f"{path} is not a table of headroles: it has no provenance")):
        load_table(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_load_table_of_a_truncated_file_names_it(share, tmp_path):
    path = save_table(table("a", "b", draws=["a"]), tmp_path / "a.parquet")
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is not a table of headroles: "):
        load_table(path)


@pytest.fixture
def there(tmp_path):
    """A table in a folder, and the bytes of its file: what a failed write must leave."""
    path = save_table(table("a", draws=["a"]), tmp_path / "a.parquet")
    content = path.read_bytes()
    yield path
    assert os.listdir(tmp_path) == ["a.parquet"]
    assert path.read_bytes() == content


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on file sizes")
def test_a_full_disk(there):
    """A file may not grow beyond 2 kB, so that the write itself fails halfway."""
    large = frame.table({"a": np.random.default_rng(0).normal(size=1000)}, frame.index({("enc-self", 0): 1000}), "s")
    reason = re.escape(os.strerror(errno.EFBIG))
    message = rf"^could not write {re.escape(str(there))}: .*{reason}.*; what was there before is unchanged$"
    with full_disk(2048), pytest.raises(OSError, match=message):
        save_table(large, there)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ValueError("on purpose")])
def test_an_interrupted_write(error, there, monkeypatch):
    def halfway(draft, _):
        draft.write_text("PAR1")
        raise error

    monkeypatch.setattr(Path, "write_bytes", halfway)
    with pytest.raises(error if isinstance(error, type) else type(error)):
        save_table(table("b"), there)


def test_a_move_that_fails(there, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", fail)
    reason = f"[Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}"
    with pytest.raises(OSError, match=whole(f"could not write {there}: {reason}; what was there before is unchanged")):
        save_table(table("b"), there)


@pytest.mark.slow
def test_a_process_killed_in_the_middle(there):
    """Not even a killed process harms what was there; its draft, which nothing could remove, is no table."""
    code = """
import os, signal, sys
from pathlib import Path
from headroles.tables.io import load_table, save_table
Path.write_bytes = lambda draft, _: (draft.write_text("PAR1"), os.kill(os.getpid(), signal.SIGKILL))
save_table(load_table(sys.argv[1]), sys.argv[1])
"""
    done = subprocess.run([sys.executable, "-c", code, str(there)], capture_output=True, check=False)
    assert done.returncode == -9
    drafts = [path for path in there.parent.iterdir() if path != there]
    assert [re.sub(r"[0-9a-f]{8}$", "", path.name) for path in drafts] == [".a.parquet."]
    assert [path.name for path in there.parent.glob("*.parquet")] == ["a.parquet"]
    drafts[0].unlink()


def test_a_file_in_the_way_of_a_folder(there):
    path = there / "b.parquet"
    with pytest.raises(OSError, match=rf"^could not write {re.escape(str(path))}: .*; what was there before is unch"):
        save_table(table("b"), path)


def test_a_folder_in_the_way_of_a_file(tmp_path):
    path = tmp_path / "a.parquet"
    path.mkdir()
    with pytest.raises(OSError, match=rf"^could not write {re.escape(str(path))}: "):
        save_table(table("b"), path)
    assert os.listdir(tmp_path) == ["a.parquet"]


def test_a_draft_is_removed_whatever_happens_and_only_errors_of_the_disk_are_reworded(tmp_path):
    def fail():
        with replacing(tmp_path / "a") as draft:
            draft.write_text("half")
            raise KeyError("on purpose")

    with pytest.raises(KeyError, match="^'on purpose'$"):
        fail()
    assert os.listdir(tmp_path) == []
    with replacing(tmp_path / "a") as draft:
        assert draft.parent == tmp_path
        draft.write_text("all")
        assert os.listdir(tmp_path) == [draft.name]
    assert (tmp_path / "a").read_text() == "all"
    assert os.listdir(tmp_path) == ["a"]


def test_a_draft_is_of_one_process_alone(tmp_path):
    """Not told apart by the number of the process: in a container that is the same at each run."""
    first, second = replacing(tmp_path / "a"), replacing(tmp_path / "a")
    with first as one, second as other:
        one.write_text("one")
        other.write_text("other")
        assert (one.read_text(), other.read_text()) == ("one", "other")
    assert (tmp_path / "a").read_text() == "one"


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664)])
def test_the_permissions_of_a_file_follow_the_umask(mask, mode, tmp_path):
    before = os.umask(mask)
    try:
        path = save_table(table("a"), tmp_path / "a.parquet")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode


def test_a_name_that_resamples_are_kept_under_is_taken(tmp_path):
    made = frame.table({f"{TAKEN}a": [1.0]}, frame.index({("enc-self", 0): 1}), "made up")
    with pytest.raises(ValueError, match=r"^columns must not begin with 'resamples:', "):
        save_table(made, tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == []
