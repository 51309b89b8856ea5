"""Lines of a plain or gzipped file, one in memory at a time and none longer than a limit (no torch)."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

LONGEST = 2**20  # bytes of a line; bounds the memory


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, gzipped or not, without line ends or a byte order mark; only a line feed ends one."""
    check_file(path)
    blank = True
    for line in _decoded(path):
        blank = blank and not line.strip()
        yield line
    if blank:
        raise ValueError(f"{path} is empty; expected at least one sentence")


def check_file(path: Path) -> None:
    """Raise FileNotFoundError unless `path` is a file."""
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}" + (": it is a folder; name a file in it" if path.is_dir() else ""))


def _head(path: Path) -> bytes:
    """Return the first bytes of a file."""
    with path.open("rb") as file:
        return file.read(1024)


def _decoded(path: Path) -> Iterator[str]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        number, start = 0, b""
        try:
            while raw := file.readline(LONGEST + 1):
                number += 1
                start = start or raw[:2]
                if len(raw) > LONGEST:
                    raise ValueError(
                        f"{path}, line {number} is too long: got more than {LONGEST} bytes; expected a sentence or a "
                        f"row of a table; try to split the text into lines"
                    )
                line = raw.decode()
                line = line.removesuffix("\r\n" if line.endswith("\r\n") else "\n")
                yield line.removeprefix("\ufeff") if number == 1 else line
        except UnicodeDecodeError as error:
            hint = "it is gzip: end its name in .gz" if start == b"\x1f\x8b" else "convert it: iconv -f latin1 -t utf-8"
            byte = error.object[error.start]
            if path.suffix != ".gz" and start != b"\x1f\x8b" and b"\0" in _head(path):
                raise ValueError(
                    f"{path} is not text: got byte {byte:#04x} in line {number} of a binary file; expected UTF-8"
                ) from error
            raise ValueError(f"{path}, line {number}: byte {byte:#04x} is not UTF-8; {hint}") from error
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(
                f"{path} is not gzip, or not all of it, though its name ends in .gz; after line {number}: {error}"
            ) from error
