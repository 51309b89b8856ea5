"""Files: replaced in one step, written only where allowed, and verified by a digest of their bytes (no torch)."""

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

_BEGUN = time.time()  # start of this process
MARK = b"\x1fsha256="  # precedes a digest; the JSON and base64 of parquet metadata cannot contain it
BLANK = b"0" * 64  # placeholder of the digest


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block succeeds, and is removed when it fails."""
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
    """Raise OSError if a folder, called `what` in the message, cannot be made or written into."""
    place = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise OSError(f"cannot write into {what} {folder}: {error.strerror}; name another") from error


def mark_of(of: str) -> str:
    """Return the mark that figures and reports carry: that headroles made them, and of which weights."""
    return f"headroles of {of}"


def check_ours(path: Path, of: str, *, overwrite: bool = False) -> None:
    """Raise FileExistsError before replacing a figure or report of another origin or of other weights, or a folder."""
    if path.is_dir():
        raise FileExistsError(f"{path} is a folder; name a file in it")
    if overwrite or not path.is_file() or mark_of(of).encode() in path.read_bytes():
        return
    origin = "made from another model" if b"headroles of " in path.read_bytes() else "not known to be by headroles"
    raise FileExistsError(f"{path} exists and is {origin}; name another file, or give --overwrite, which replaces it")


def beside(path: Path) -> Path:
    """Return a unique temporary path beside `path` (process numbers repeat across containers)."""
    return path.with_name(f".{path.name}.{uuid4().hex[:8]}")


def forget_drafts(path: Path) -> None:
    """Remove temporary files of `path` left by a killed run: those not written to since this process began."""
    for draft in path.parent.glob(f".{glob.escape(path.name)}.????????"):
        with contextlib.suppress(OSError):
            if max(part.stat().st_mtime for part in (draft, *draft.glob("*"))) < _BEGUN:
                shutil.rmtree(draft) if draft.is_dir() else draft.unlink()


def seal(content: bytes) -> bytes:
    """Write the digest of a file's other bytes into its last blank digest field."""
    start = content.rindex(MARK + BLANK) + len(MARK)
    return content[:start] + _digest(content, start) + content[start + len(BLANK) :]


def is_sealed(content: bytes) -> bool:
    """Return whether a file has a digest; raise ValueError if it is not that of its other bytes."""
    place = content.rfind(MARK)
    if place < 0:
        return False
    start = place + len(MARK)
    if content[start : start + len(BLANK)] != _digest(content, start):
        raise ValueError("its bytes have changed since it was written: their SHA-256 differs")
    return True


def _digest(content: bytes, start: int) -> bytes:
    """Hexadecimal SHA-256 of all bytes, those of the digest itself blanked."""
    rest = hashlib.sha256(content[:start] + BLANK)
    rest.update(content[start + len(BLANK) :])
    return rest.hexdigest().encode()
