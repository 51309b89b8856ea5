"""Files: written beside their place and moved there, and read only as they were written (no torch)."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

_BEGUN = time.time()  # of this run
MARK = b"\x1fsha256="  # before a digest; JSON and base64, of which the notes of a parquet file are, never hold it
BLANK = b"0" * 64  # where the digest will be


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A draft beside `path` that takes its place when the block ends well, and is removed when it does not."""
    draft = beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        os.replace(draft, path)
        forget_drafts(path)
    except OSError as error:
        raise OSError(f"could not write {path}: {error}; what was there before is unchanged") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def check_writable(folder: Path, what: str) -> None:
    """Raise OSError where nothing could be written into a folder, or the folder could not be made."""
    place = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise OSError(f"cannot write into {what} {folder}: {error.strerror}; name another") from error


def mark_of(of: str) -> str:
    """What is written into a picture or a page: that it is ours, and of which weights."""
    return f"headroles of {of}"


def check_ours(path: Path, of: str, *, overwrite: bool = False) -> None:
    """Raise FileExistsError where a picture or a page would be replaced that is not ours, or of other weights."""
    if overwrite or not path.is_file() or mark_of(of).encode() in path.read_bytes():
        return
    whose = "of another model" if b"headroles of " in path.read_bytes() else "not known to be by headroles"
    raise FileExistsError(f"{path} is there, {whose}; name another file, or give --overwrite, which replaces it")


def beside(path: Path) -> Path:
    """A place for a draft that no other process has: numbers of processes come again, in containers nearly always."""
    return path.with_name(f".{path.name}.{uuid4().hex[:8]}")


def forget_drafts(path: Path) -> None:
    """Remove drafts of this file or folder that a killed run left: those not written to since this one began."""
    for draft in path.parent.glob(f".{glob.escape(path.name)}.????????"):
        with contextlib.suppress(OSError):
            if max(part.stat().st_mtime for part in (draft, *draft.glob("*"))) < _BEGUN:
                shutil.rmtree(draft) if draft.is_dir() else draft.unlink()


def seal(content: bytes) -> bytes:
    """Put the digest of all other bytes of a file after its last mark, where it is still blank."""
    start = content.rindex(MARK + BLANK) + len(MARK)
    return content[:start] + _digest(content, start) + content[start + len(BLANK) :]


def is_sealed(content: bytes) -> bool:
    """Whether a file has a digest. Raises ValueError where it is not that of its bytes."""
    place = content.rfind(MARK)
    if place < 0:
        return False
    start = place + len(MARK)
    if content[start : start + len(BLANK)] != _digest(content, start):
        raise ValueError("its bytes are not those that were written: their SHA-256 is another")
    return True


def _digest(content: bytes, start: int) -> bytes:
    """The SHA-256 of all bytes but those of the digest itself, which count as blank, in hexadecimal."""
    rest = hashlib.sha256(content[:start] + BLANK)
    rest.update(content[start + len(BLANK) :])
    return rest.hexdigest().encode()
