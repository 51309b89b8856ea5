"""Lines that cannot be read are refused with their place."""

from __future__ import annotations

import gzip
import random
import tracemalloc

import pytest
from helpers.messages import whole

from headroles.data.readers import read


def test_what_is_not_utf8(file):
    path = file("x.txt", "gut\nschön\n".encode("latin1"))
    message = f"{path}, line 2: byte 0xf6 is not UTF-8; convert it: iconv -f latin1 -t utf-8"
    with pytest.raises(ValueError, match=whole(message)):
        read(path)
    path = file("y.txt", gzip.compress(b"good", mtime=0))
    with pytest.raises(
        ValueError, match=whole(f"{path}, line 1: byte 0x8b is not UTF-8; it is gzip: end its name in .gz")
    ):
        read(path)


def test_what_is_not_gzip(file):
    path, cut = (
        file("x.gz", "good\n"),
        file("y.gz", gzip.compress(random.Random(0).randbytes(999).hex().encode())[:500]),
    )
    reasons = {
        path: "Not a gzipped file (b'go')",
        cut: "Compressed file ended before the end-of-stream marker was reached",
    }
    for one, reason in reasons.items():
        message = f"{one} is not gzip, or not all of it, though its name ends in .gz; after line 0: {reason}"
        with pytest.raises(ValueError, match=whole(message)):
            read(one)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("name", ["one.txt", "one.txt.gz", "one.conllu", "one.tsv.gz"])
def test_an_endless_line_is_not_held(name, limit, tmp_path):
    """24 MB without an end of line: it was held whole, several times over."""
    path, size = tmp_path / name, 24 * 2**20
    with gzip.open(path, "wb", compresslevel=1) if path.suffix == ".gz" else path.open("wb") as content:
        for _ in range(size // 2**20):
            content.write(b"a" * 2**20)
    message = (
        f"{path}, line 1 is too long: got more than 1048576 bytes; expected a sentence or a row of a table; try to "
        f"split the text into lines"
    )
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=whole(message)):
            read(path, limit=limit)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**23


def test_a_line_as_long_as_may_be_is_read(file):
    path = file("one.txt", b"a" * (2**20 - 1) + b"\nb\n")
    assert [len(one.text) for one in read(path)] == [2**20 - 1, 1]
