"""Files of head tables: parquet with provenance, resamples and a digest, replaced in one step (no torch)."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict
from uuid import uuid4

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from headroles.tables.frame import LEVELS, Resamples, bare, keep_resamples, listed, resamples, rows

MARK = b"\x1fsha256="  # precedes a digest; the JSON and base64 of parquet metadata cannot contain it
BLANK = b"0" * 64  # placeholder of the digest

log = logging.getLogger(__name__)
_DRAWS = "resamples:"  # prefix of the columns of a file that hold resamples
_ABANDONED = 24 * 3600  # seconds without a write after which a temporary file is that of a killed run


class Notes(TypedDict):
    """What a file holds beside its table."""

    signatures: dict[str, str] | None
    recipe: str | None  # the cache key
    sealed: bool  # whether the file has a digest
    rows: int


def save_table(table: pd.DataFrame, path: str | Path) -> Path:
    """Write a table as parquet, with its provenance and resamples.

    The file is written under a temporary name and then moved, so an interrupted run or a full disk leaves the former
    file unchanged.

    Args:
        table: A head table, or any table with provenance.
        path: The file to write; missing folders are made.

    Returns:
        The path.

    Raises:
        ValueError: If a column's name begins with the prefix that is reserved for resamples.
        OSError: If the file cannot be written.
    """  # noqa: DOC502
    path = expanded(path)
    if reserved := [name for name in map(str, table.columns) if name.startswith(_DRAWS)]:
        raise ValueError(f"columns may not begin with {_DRAWS!r}, where resamples are kept: {listed(reserved)}")
    arrow = pa.Table.from_pandas(bare(table))
    if (drawn := resamples(table)) is not None:
        index = rows(table)
        for name in drawn.draws:
            values = drawn.of(name, index)
            cells = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
            arrow = arrow.append_column(_DRAWS + name, cells)
    notes = {name: table.attrs.get(name) for name in ("signatures", "recipe")} | {"sealed": True}
    metadata = {b"headroles": json.dumps(notes).encode(), b"digest": MARK + BLANK}
    arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), **metadata})
    # numbers split into byte streams take half the space
    streams = [f"{name}.list.element" for name in arrow.column_names if name.startswith(_DRAWS)]
    content = pa.BufferOutputStream()
    pq.write_table(arrow, content, compression="zstd", use_dictionary=not streams, use_byte_stream_split=streams)
    with replacing(path) as draft:
        draft.write_bytes(seal(content.getvalue().to_pybytes()))
    return path


def load_table(path: str | Path) -> pd.DataFrame:
    """Read a table that `save_table` wrote, and verify the digest of its bytes.

    Args:
        path: The file. Files of earlier versions have no digest and are read without verification.

    Returns:
        The table, with its provenance and resamples.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file was not written by headroles, or its bytes have changed.
        OSError: If the file cannot be read.
    """  # noqa: DOC502
    path = expanded(path)
    if not path.is_file():
        raise FileNotFoundError(f"no table at {path}")
    try:
        content = path.read_bytes()
        sealed = is_sealed(content)
        return _unpacked(pq.read_table(pa.BufferReader(content)), sealed=sealed)
    except Exception as error:  # besides pyarrow's, what pandas raises of metadata of any type
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno):
            raise
        raise ValueError(f"{path} is not a table of headroles: {error}") from error


def notes(path: Path) -> Notes | None:
    """Read the provenance and cache key of a file without its table; None for a file of another origin."""
    try:
        with path.open("rb") as file:  # pyarrow reads other paths in "~" and ":" than pathlib does
            metadata = pq.read_metadata(file)
        return _notes((metadata.metadata or {}).get(b"headroles"), metadata.num_rows)
    except (pa.ArrowException, ValueError, RecursionError, OSError) as error:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            raise  # no fault of the file
        return None


def notes_in(folder: Path) -> dict[str, Notes]:
    """Read the notes of the tables in a folder, by name, without the tables; warn of files of another origin."""
    parsed = {path: notes(path) for path in sorted(folder.glob("*.parquet"), key=lambda path: path.stem)}
    for path in (path for path, of in parsed.items() if of is None):
        log.warning("%s is no table of headroles, or damaged: left out", path)
    return {path.stem: of for path, of in parsed.items() if of is not None}


def _notes(text: bytes | None, n_rows: int) -> Notes:
    """Parse the notes of a file; ValueError if they are not ours."""
    if text is None:
        raise ValueError("it has no provenance")
    kept: Any = json.loads(text)
    signatures = kept.get("signatures") if isinstance(kept, dict) else ()
    if not isinstance(signatures, dict | None) or not all(
        isinstance(text, str) for text in [kept.get("recipe") or "", *(signatures or {}).values()]
    ):
        raise ValueError("its provenance is not of names and texts")
    return Notes(signatures=signatures, recipe=kept.get("recipe"), sealed=bool(kept.get("sealed")), rows=n_rows)


def _unpacked(arrow: pa.Table, *, sealed: bool) -> pd.DataFrame:
    notes = _notes((arrow.schema.metadata or {}).get(b"headroles"), arrow.num_rows)
    if notes["sealed"] != sealed:
        raise ValueError("its digest cannot be read")
    names = [name for name in arrow.column_names if name.startswith(_DRAWS)]
    frame: pd.DataFrame = arrow.drop_columns(names).to_pandas()
    if list(frame.index.names) == LEVELS:
        frame.index = rows(frame)
    kept = {"signatures": notes["signatures"], "recipe": notes["recipe"]}
    frame.attrs = {name: value for name, value in kept.items() if value is not None}
    if names:
        cells = {name.removeprefix(_DRAWS): arrow[name].combine_chunks() for name in names}
        draws = {
            name: part.flatten().to_numpy().reshape(len(part), part.type.list_size) for name, part in cells.items()
        }
        keep_resamples(frame, Resamples(rows(frame), draws))
    return frame


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block succeeds, and is removed when it fails."""
    draft = beside(path)
    try:
        check_ordinary(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        os.replace(draft, path)
        forget_drafts(path)
    except OSError as error:
        raise OSError(f"could not write {path}: {error}; what was there before is unchanged") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def expanded(path: str | Path) -> Path:
    """Return a path, with the home folder for `~` at its start."""
    return Path(os.path.expanduser(path))  # which leaves the name of an unknown user as it is


def check_writable(folder: Path, what: str) -> None:
    """Raise OSError if a folder, called `what` in the message, cannot be made or written into."""
    place = folder
    try:
        place = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        why = f"{place} is a link to nothing" if place.is_symlink() and not place.exists() else error.strerror
        raise OSError(f"cannot write into {what} {folder}: {why}; name another") from error


def mark_of(of: str) -> str:
    """Return the mark that figures and reports carry: that headroles made them, and of which weights."""
    return f"headroles of {of}"


def check_ours(path: Path, of: str, *, overwrite: bool = False) -> None:
    """Raise FileExistsError before replacing a figure or report of another origin or of other weights, or a folder."""
    if path.is_dir():
        raise FileExistsError(f"{path} is a folder; name a file in it")
    check_ordinary(path)
    if overwrite or not path.is_file() or mark_of(of).encode() in path.read_bytes():
        return
    origin = "made from another model" if b"headroles of " in path.read_bytes() else "not known to be by headroles"
    raise FileExistsError(f"{path} exists and is {origin}; name another file, or give --overwrite, which replaces it")


def beside(path: Path) -> Path:
    """Return a unique temporary path beside `path` (process numbers repeat across containers)."""
    return path.with_name(f".{path.name}.{uuid4().hex[:8]}")


def check_ordinary(path: Path) -> None:
    """Raise FileExistsError for a device, FIFO or socket, which a file may not replace."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise FileExistsError(f"{path} is a device or FIFO; expected the name of a file")


def forget_drafts(path: Path) -> None:
    """Remove temporary files of `path` that no run has written to for a day, by the clock of its file system."""
    with contextlib.suppress(OSError):
        with tempfile.TemporaryFile(dir=path.parent) as file:
            now = os.fstat(file.fileno()).st_mtime
        for draft in path.parent.glob(f".{glob.escape(path.name)}.????????"):
            if max(part.stat().st_mtime for part in (draft, *draft.glob("*"))) < now - _ABANDONED:
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


def check_no_file(name: str | Path) -> None:
    """Raise OSError for the name of a model that is a file, other than GGUF."""
    if Path(name).is_file() and Path(name).suffix != ".gguf":
        raise OSError(
            f"could not load {str(name)!r}: got a file; expected a folder or a hub id; try the folder of the model"
        )
