"""A flipped bit in a kept file is an error with its path; files of earlier versions, without a digest, are read."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.flips import INDEX, SIGNATURE, flipped, flips, made, noticed, statistics, table

from headroles.ablation.example_stats import read_batch
from headroles.tables import frame
from headroles.tables.io import MARK, load_table, save_table


def test_no_flip_of_a_bit_passes_unnoticed():
    assert flips(400) == {"flips": 400, "unnoticed": 0}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table.parquet", "batch.npy"])
def test_a_flip_in_the_digest_or_its_mark_is_noticed(name, tmp_path):
    """Without its mark a file is not taken for one of an earlier version."""
    path, read = next((path, read) for path, read in made(tmp_path).items() if path.name == name)
    content = path.read_bytes()
    start = content.rindex(MARK)
    for bit in range(8 * start, 8 * (start + len(MARK) + 64)):
        path.write_bytes(flipped(content, bit))
        assert noticed(path, read) is not None


def test_the_message_names_the_file_and_what_is_wrong(tmp_path):
    path = save_table(table(), tmp_path / "a.parquet")
    path.write_bytes(flipped(path.read_bytes(), 80))
    said = f"{path} is not a table of headroles: its bytes have changed since it was written: their SHA-256 differs"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        load_table(path)


def test_two_tables_alike_are_the_same_bytes_and_other_programs_read_them(tmp_path):
    one, other = (save_table(table(), tmp_path / name) for name in ("a.parquet", "b.parquet"))
    assert one.read_bytes() == other.read_bytes()
    assert pq.read_table(one, columns=["a"])["a"].to_pylist() == table()["a"].tolist()


def test_a_text_that_looks_like_a_mark_does_no_harm(tmp_path):
    """JSON and base64, of which a parquet file's notes are, do not hold the mark; a cell may."""
    text = (MARK + b"1" * 64).decode()
    made = frame.table({text: [text] * 6}, INDEX, f"corpus:{text}")
    assert load_table(save_table(made, tmp_path / "a.parquet")).equals(made)


def test_tables_of_earlier_versions_are_read(tmp_path):
    path = tmp_path / "a.parquet"
    bare = table()
    notes, bare.attrs = {"signatures": {"a": SIGNATURE}, "recipe": SIGNATURE}, {}
    arrow = pa.Table.from_pandas(bare)
    arrow = arrow.replace_schema_metadata({**arrow.schema.metadata, b"headroles": json.dumps(notes).encode()})
    pq.write_table(arrow, path)
    read = load_table(path)
    assert read.equals(bare)
    assert read.attrs == notes


def test_statistics_of_earlier_versions_are_read(tmp_path):
    path, content = tmp_path / "a.npy", io.BytesIO()
    np.save(content, statistics())
    path.write_bytes(content.getvalue())
    np.testing.assert_array_equal(read_batch(path, (3, 4)), statistics())
    path.write_bytes(content.getvalue() + b"more")
    with pytest.raises(ValueError, match=r"a\.npy is damaged: there is more in it than an array; remove the file"):
        read_batch(path, (3, 4))
