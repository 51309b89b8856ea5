"""Files that were damaged in any way: a clear error with the path, or what the file says, read and streamed alike."""

from __future__ import annotations

import gzip

import pytest
from helpers.fuzzing import (
    FILES,
    NAMES,
    ODD,
    fuzz,
    holds,
)

ODD += [
    "#",
    "# text = ",
    "-",
    ".",
    "0",
    "1-2",
    "3.1",
    "٣",
    "²",
    "-1",
    "NaN",
    "_",
    '"',
    "label",
    "9" * 5000,
    "a" * 99_999,
]
ODD += ["9" * 5000, "a" * 99_999, "\t" * 9_999, "\n" * 9_999, "1\t" * 9_999]


@pytest.mark.slow
def test_a_damaged_file_is_an_error_or_read_as_it_is():
    numbers = fuzz(200)
    assert numbers["files"] >= 200
    assert 0.05 < numbers["read"] / numbers["files"] < 0.95


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_file_is_read(name, tmp_path):
    content = FILES[name.removesuffix(".gz")].encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert holds(tmp_path / name)
