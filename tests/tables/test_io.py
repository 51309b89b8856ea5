"""Files of tables: what is saved is loaded, damage is noticed, and a write that fails changes nothing."""

from __future__ import annotations

import errno
import json
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
from helpers.flips import INDEX as SIX
from helpers.flips import SIGNATURE, flipped, flips, made, noticed
from helpers.flips import table as kept_table
from helpers.messages import whole
from helpers.tables import DETERMINISTIC, INDEX, NAMES, TAKEN, same, table
from hypothesis import given
from hypothesis import strategies as st

import headroles as hr
from headroles.plots import gallery
from headroles.tables import frame
from headroles.tables.io import MARK, check_ours, load_table, notes, replacing, save_table
from headroles.tables.study import Study

FOUR = frame.index({("enc-self", 0): 4})
TABLE = frame.table({"confidence": [0.5, 0.25, 0.5, 0.5]}, FOUR, "model:m|weights:w|corpus:c|text:t")
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
@pytest.mark.parametrize("name", ["mine", "ablation-loss-head-zero", "conservation-cp", "sparsity-l0", "relate"])
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


def test_no_flip_of_a_bit_passes_unnoticed():
    assert flips(400) == {"flips": 400, "unnoticed": 0}


@pytest.mark.slow
def test_a_flip_in_the_digest_or_its_mark_is_noticed(tmp_path):
    """Without its mark a file is not taken for one of an earlier version."""
    ((path, read),) = made(tmp_path).items()
    content = path.read_bytes()
    start = content.rindex(MARK)
    for bit in range(8 * start, 8 * (start + len(MARK) + 64)):
        path.write_bytes(flipped(content, bit))
        assert noticed(path, read) is not None


def test_the_message_names_the_file_and_what_is_wrong(tmp_path):
    path = save_table(kept_table(), tmp_path / "a.parquet")
    path.write_bytes(flipped(path.read_bytes(), 80))
    said = f"{path} is not a table of headroles: its bytes have changed since it was written: their SHA-256 differs"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        load_table(path)


def test_two_tables_alike_are_the_same_bytes_and_other_programs_read_them(tmp_path):
    one, other = (save_table(kept_table(), tmp_path / name) for name in ("a.parquet", "b.parquet"))
    assert one.read_bytes() == other.read_bytes()
    assert pq.read_table(one, columns=["a"])["a"].to_pylist() == kept_table()["a"].tolist()


def test_a_text_that_looks_like_a_mark_does_no_harm(tmp_path):
    """JSON and base64, of which a parquet file's notes are, do not hold the mark; a cell may."""
    text = (MARK + b"1" * 64).decode()
    made = frame.table({text: [text] * 6}, SIX, f"corpus:{text}")
    assert load_table(save_table(made, tmp_path / "a.parquet")).equals(made)


def test_tables_of_earlier_versions_are_read(tmp_path):
    path = tmp_path / "a.parquet"
    bare = kept_table()
    notes, bare.attrs = {"signatures": {"a": SIGNATURE}, "recipe": SIGNATURE}, {}
    arrow = pa.Table.from_pandas(bare)
    arrow = arrow.replace_schema_metadata({**arrow.schema.metadata, b"headroles": json.dumps(notes).encode()})
    pq.write_table(arrow, path)
    read = load_table(path)
    assert read.equals(bare)
    assert read.attrs == notes


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


# --- saved and loaded -----------------------------------------------------------------------------------------------


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


def test_a_selection_of_rows_and_columns_is_saved_as_it_is(tmp_path):
    made = table("a", "b", draws=["a", "b"])
    for part in (made.iloc[2:5], made[["b"]], made.sort_values("a"), made[made["a"] > 100], made.iloc[:0]):
        same(load_table(save_table(part, tmp_path / "a.parquet")), part)


def test_a_table_without_heads_or_signatures_is_saved_too(tmp_path):
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
    assert frame.resamples(read) is None
    ours = save_table(made, tmp_path / "b.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(ours)[["a", "b"]], made)


# --- what cannot be read --------------------------------------------------------------------------------------------


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


@pytest.mark.slow
@DETERMINISTIC
@given(place=st.floats(0, 1), bits=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_file_is_an_error_with_its_path(place, bits, cut, tmp_path_factory):
    """Nothing other than ValueError comes out of it."""
    path = tmp_path_factory.mktemp("damaged") / "a.parquet"
    save_table(table("a", "b", draws=["a"]), path)
    content = bytearray(path.read_bytes())
    at = int(place * (len(content) - 1))
    content[at] ^= bits
    path.write_bytes(content[:at] if cut else content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is not a table of headroles: "):
        load_table(path)


# --- a write that fails ---------------------------------------------------------------------------------------------


@pytest.fixture
def there(tmp_path):
    """A table in a folder, and the bytes of its file: what a failed write must leave."""
    path = save_table(table("a", draws=["a"]), tmp_path / "a.parquet")
    content = path.read_bytes()
    yield path
    assert os.listdir(tmp_path) == ["a.parquet"]
    assert path.read_bytes() == content


@pytest.mark.slow
def test_a_full_disk(there):
    """A file may not grow beyond 2 kB in this process, so that the write itself fails halfway."""
    code = """
import resource, sys
import numpy as np  # noqa: E402
from headroles.tables import frame as heads
from headroles.tables.io import load_table, save_table
resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
index = heads.index({("enc-self", 0): 1000})
table = heads.table({"a": np.random.default_rng(0).normal(size=1000)}, index, "s")
try:
    save_table(table, sys.argv[1])
except OSError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, str(there)], capture_output=True, text=True, check=True)
    reason = re.escape(os.strerror(errno.EFBIG))
    assert re.fullmatch(
        rf"could not write {re.escape(str(there))}: .*{reason}.*; what was there before is unchanged\n", done.stdout
    ), (done.stdout, done.stderr)


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


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that nobody can write to")
def test_a_folder_that_cannot_be_written_to():
    with pytest.raises(OSError, match=r"^could not write /proc/self/a\.parquet: "):
        save_table(table("b"), "/proc/self/a.parquet")


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


def test_the_draft_that_a_killed_run_left_is_removed_when_the_file_is_written(tmp_path):
    path = tmp_path / "effects[loss].parquet"
    drafts = {name: tmp_path / name for name in (f".{path.name}.0123abcd", f".{path.name}.4567cdef", ".other.0123abcd")}
    for draft in drafts.values():
        draft.write_text("half")
        os.utime(draft, (0, 0))
    live = drafts[f".{path.name}.4567cdef"]
    os.utime(live)  # another run is writing it
    save_table(frame.table({"a": [1.0]}, frame.index({("enc-self", 0): 1}), "made up"), path)
    assert {one.name for one in tmp_path.iterdir()} == {path.name, live.name, ".other.0123abcd"}


def test_a_name_that_resamples_are_kept_under_is_taken(tmp_path):
    made = frame.table({f"{TAKEN}a": [1.0]}, frame.index({("enc-self", 0): 1}), "made up")
    with pytest.raises(ValueError, match=r"^columns may not begin with 'resamples:', where resamples are kept: "):
        save_table(made, tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == []
