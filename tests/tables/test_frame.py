"""Signed tables: saved and loaded they are the same, joined they keep all, and no failed write harms one."""

from __future__ import annotations

import copy
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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headroles.tables import frame
from headroles.tables.io import load_table, replacing, save_table

DETERMINISTIC = settings(
    derandomize=True, database=None, deadline=None, max_examples=30, suppress_health_check=list(HealthCheck)
)
SIZES = {("enc-self", 0): 3, ("enc-self", 1): 2, ("dec-self", 0): 2, ("cross", 0): 1}
INDEX = frame.index(SIZES)
TAKEN = "resamples:"  # where resamples are kept; hypothesis finds the word in our source, and draws it now and then
NAMES = st.sampled_from(["kind", "head", "a[b c].d"]) | st.text(st.characters(codec="utf-8"), max_size=12).filter(
    lambda name: not name.startswith(TAKEN)
)
DTYPES = st.sampled_from(["float64", "float32", "int64", "bool", "str"])


def whole(message):
    return f"^{re.escape(message)}$"


def table(*names, draws=(), index=INDEX, seed=0):
    """A table of random numbers, `draws` of its columns with resamples."""
    rng = np.random.default_rng(seed)
    columns = {name: rng.normal(size=len(index)) for name in names}
    resampled = {name: rng.normal(size=(len(index), 6)).astype(np.float32) for name in draws}
    return frame.table(columns, index, {name: f"score:{name}|seed:{seed}" for name in names}, draws=resampled)


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


def same(one, other):
    """The same values, rows, signatures, recipe and resamples."""
    pd.testing.assert_frame_equal(one, other, check_index_type=not one.empty)
    assert one.index.equals(other.index)
    assert list(one.index.names) == list(other.index.names)
    mine, theirs = frame.resamples(one), frame.resamples(other)
    assert {name: one.attrs[name] for name in one.attrs if name != "resamples"} == {
        name: other.attrs[name] for name in other.attrs if name != "resamples"
    }
    assert (mine is None) == (theirs is None)
    for name in mine.draws if mine else ():
        np.testing.assert_array_equal(mine.of(name, frame.rows(one)), theirs.of(name, frame.rows(other)))
        assert mine.draws[name].dtype == theirs.draws[name].dtype == np.float32


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


# --- what a table carries -------------------------------------------------------------------------------------------


def test_the_index_has_a_row_for_every_head():
    expected = [("enc-self", 0, 0), ("enc-self", 0, 1), ("enc-self", 0, 2), ("enc-self", 1, 0), ("enc-self", 1, 1)]
    expected += [("dec-self", 0, 0), ("dec-self", 0, 1), ("cross", 0, 0)]
    assert list(INDEX) == expected
    assert list(INDEX.names) == ["kind", "layer", "head"]


def test_a_signature_for_all_or_one_for_each():
    values = dict.fromkeys("ab", np.zeros(len(INDEX)))
    assert frame.table(values, INDEX, "s").attrs == {"signatures": {"a": "s", "b": "s"}}
    assert frame.table(values, INDEX, {"a": "s", "b": "t"}).attrs == {"signatures": {"a": "s", "b": "t"}}
    assert frame.sign(model="opus", seed=1) == "model:opus|seed:1"


@DETERMINISTIC
@given(st.dictionaries(st.from_regex(r"[a-z_]+", fullmatch=True), NAMES | st.sampled_from("|:,=%\n")))
def test_the_values_of_a_signature_are_read_as_they_were_written(values):
    signature = frame.sign(**values)
    assert frame.fields(signature) == (list(values.items()) or [("", "")])
    assert not set("\n\r\t\0") & set(signature)
    whole = f"{frame.holding(roles=signature)}|{frame.sign(seed=1)}"  # one inside another
    assert frame.fields(whole)[-1] == ("seed", "1")
    assert signature in whole


def test_signatures_of_earlier_versions_are_read():
    assert frame.fields("model:a:b|corpus:100 %|text:1") == [("model", "a:b"), ("corpus", "100 %"), ("text", "1")]


@pytest.mark.parametrize("signed", [True, False])
def test_a_column_without_a_signature(signed):
    made = table("a", "b") if signed else pd.DataFrame({"a": [1.0]})
    with pytest.raises(KeyError) as raised:
        frame.provenance(made, "c")
    known = "a, b" if signed else "none"
    assert raised.value.args == (f"column 'c' has no signature; signed columns: {known}",)


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made[["a"]],
        lambda made: made.iloc[1:4],
        lambda made: made[made["a"] > 0],
        lambda made: made.sort_values("a"),
        lambda made: made.drop(columns="b"),
        lambda made: made.assign(c=1.0),
        lambda made: made.copy(),
        lambda made: made.astype("float32"),
        lambda made: made.xs("enc-self", level="kind", drop_level=False),
        copy.copy,
        copy.deepcopy,
    ],
)
def test_provenance_stays_with_a_table_and_resamples_are_never_copied(change):
    made = table("a", "b", draws=["a"])
    changed = change(made)
    assert frame.provenance(changed, "a") == "score:a|seed:0"
    assert frame.resamples(changed) is frame.resamples(made)
    rows = frame.rows(changed)
    expected = made.attrs["resamples"].draws["a"][made.index.get_indexer(changed.index)]
    np.testing.assert_array_equal(frame.resamples(changed).of("a", rows), expected)


def test_a_table_is_shown_without_its_resamples():
    made = table("a", "b", draws=["a", "b"])
    assert repr(frame.resamples(made)) == "<resamples of 2 columns>"
    assert json.loads(json.dumps(made.attrs))["resamples"] == {}
    assert frame.resamples(table("a")) is None


# --- joined ---------------------------------------------------------------------------------------------------------


def test_joined_tables_keep_signatures_and_resamples_whatever_the_order_of_their_rows():
    one, other = table("a", "b", draws=["a"]), table("c", draws=["c"], seed=1)
    turned = other.sample(frac=1, random_state=0)
    joined = frame.join(one, turned)
    assert list(joined) == ["a", "b", "c"]
    assert joined.index.equals(one.index)
    for part in (one, other):
        for name in part:
            np.testing.assert_array_equal(joined[name], part[name])
            assert frame.provenance(joined, name) == frame.provenance(part, name)
    index = frame.rows(joined)
    for name, part in (("a", one), ("c", other)):
        np.testing.assert_array_equal(frame.resamples(joined).of(name, index), frame.resamples(part).draws[name])
    assert frame.join(turned, one).index.equals(turned.index)
    same(frame.join(one), one)


def test_a_loaded_table_joins_with_a_new_one(tmp_path):
    one, other = table("a", draws=["a"]), table("b")
    loaded = load_table(save_table(one, tmp_path / "a.parquet"))
    same(frame.join(loaded, other), frame.join(one, other))
    same(load_table(save_table(frame.join(other, loaded), tmp_path / "b.parquet")), frame.join(other, one))


def test_a_table_with_an_index_of_pandas_joins_with_one_of_ours():
    one, other = table("a", draws=["a"]), table("b")
    remade = other.reset_index().set_index(["kind", "layer", "head"])
    turned = remade.iloc[::-1]
    for part in (remade, turned):
        np.testing.assert_array_equal(frame.join(one, part)["b"], other["b"])
        np.testing.assert_array_equal(frame.join(part, one).loc[INDEX, "a"], one["a"])


def test_heads_are_looked_up_in_any_table(tmp_path):
    """pandas warns of slow look-ups in an index it does not know to be sorted, and a warning is an error here."""
    made = table("a", draws=["a"])
    loaded = load_table(save_table(made, tmp_path / "a.parquet"))
    for one in (made, loaded, frame.join(made, table("b"))):
        assert one.loc[("cross", 0, 0), "a"] == made["a"].iloc[-1]
        assert len(one.loc["dec-self"]) == 2
        assert len(one.loc[("enc-self", 1)]) == 2


def test_joining_changes_none_of_the_tables():
    one, other = table("a", draws=["a"]), table("b")
    before = one.copy(), other.copy()
    frame.join(one, other)
    same(one, before[0])
    same(other, before[1])


def test_nothing_is_joined_to_nothing():
    with pytest.raises(ValueError, match=whole("nothing to join: give at least one table")):
        frame.join()


def test_tables_of_other_heads_are_not_joined():
    other = frame.index({("enc-self", 0): 4})
    message = "the tables are of different heads: got 8 and 4 rows, 3 in common; expected tables of one model"
    with pytest.raises(ValueError, match=whole(message)):
        frame.join(table("a"), table("b", index=other))
    with pytest.raises(ValueError, match=r"8 and 7 rows, 7 in common"):
        frame.join(table("a"), table("b").iloc[1:])


def test_columns_of_one_name_are_not_joined():
    message = "these columns are in more than one table: a, c; rename or drop one of each"
    with pytest.raises(ValueError, match=whole(message)):
        frame.join(table("a", "b", "c"), table("c", "a", "d"))


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
