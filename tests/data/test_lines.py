"""Lines that cannot be read are refused with their place."""

from __future__ import annotations

import gzip
import random

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
