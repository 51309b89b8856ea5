"""Files of head tables: parquet with provenance and resamples, replaced in one step (no torch)."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict
from uuid import uuid4

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from headroles.tables.frame import LEVELS, bare, keep_resamples, listed, resamples, rows

log = logging.getLogger(__name__)
_DRAWS = "resamples:"  # prefix of the columns of a file that hold resamples


class Notes(TypedDict):
    """Contents of a file in addition to its table."""

    signatures: dict[str, str] | None
    recipe: str | None  # the cache key
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
        raise ValueError(f"columns must not begin with {_DRAWS!r}, where resamples are kept: got {listed(reserved)}")
    arrow = pa.Table.from_pandas(bare(table))
    for name, draws in resamples(table).items():
        cells = pa.FixedSizeListArray.from_arrays(pa.array(draws.ravel()), draws.shape[1])
        arrow = arrow.append_column(_DRAWS + name, cells)
    notes = {name: table.attrs.get(name) for name in ("signatures", "recipe")}
    arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), b"headroles": json.dumps(notes).encode()})
    # numbers split into byte streams take half the space
    streams = [f"{name}.list.element" for name in arrow.column_names if name.startswith(_DRAWS)]
    content = pa.BufferOutputStream()
    pq.write_table(arrow, content, compression="zstd", use_dictionary=not streams, use_byte_stream_split=streams)
    with replacing(path) as draft:
        draft.write_bytes(content.getvalue().to_pybytes())
    return path


def load_table(path: str | Path) -> pd.DataFrame:
    """Read a table that `save_table` wrote.

    Args:
        path: The file.

    Returns:
        The table, with its provenance and resamples.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file was not written by headroles, or is damaged.
        OSError: If the file cannot be read.
    """  # noqa: DOC501, DOC502
    path = expanded(path)
    if not path.is_file():
        raise FileNotFoundError(f"no table at {path}")
    content = path.read_bytes()
    try:
        return _unpacked(pq.read_table(pa.BufferReader(content)))
    except MemoryError:
        raise
    except (pa.ArrowException, ValueError, OSError) as error:
        raise ValueError(f"{path} is not a table of headroles: {error}") from error


def notes(path: Path) -> Notes | None:
    """Read the provenance and cache key of a file without its table; None for a file of another origin."""
    try:
        with path.open("rb") as file:  # pyarrow reads other paths in "~" and ":" than pathlib does
            metadata = pq.read_metadata(file)
        kept = _notes(metadata.metadata)
    except (pa.ArrowException, ValueError, OSError):
        return None
    return Notes(signatures=kept.get("signatures"), recipe=kept.get("recipe"), rows=metadata.num_rows)


def notes_in(folder: Path) -> dict[str, Notes]:
    """Read the notes of the tables in a folder, by name, without the tables; warn of files of another origin."""
    parsed = {path: notes(path) for path in sorted(folder.glob("*.parquet"), key=lambda path: path.stem)}
    for path in (path for path, stored in parsed.items() if stored is None):
        log.warning("%s is not a table of headroles, or is damaged: left out", path)
    return {path.stem: stored for path, stored in parsed.items() if stored is not None}


def _notes(metadata: dict[bytes, bytes] | None) -> dict[str, Any]:
    """Parse the notes of a file; ValueError if it has none."""
    if metadata is None or b"headroles" not in metadata:
        raise ValueError("it has no provenance")
    kept: dict[str, Any] = json.loads(metadata[b"headroles"])
    return kept


def _unpacked(arrow: pa.Table) -> pd.DataFrame:
    kept = _notes(arrow.schema.metadata)
    names = [name for name in arrow.column_names if name.startswith(_DRAWS)]
    frame: pd.DataFrame = arrow.drop_columns(names).to_pandas()
    if list(frame.index.names) == LEVELS:
        frame.index = rows(frame)
    frame.attrs = {name: kept[name] for name in ("signatures", "recipe") if kept.get(name) is not None}
    cells = {name.removeprefix(_DRAWS): arrow[name].combine_chunks() for name in names}
    draws = {name: part.flatten().to_numpy().reshape(len(part), part.type.list_size) for name, part in cells.items()}
    keep_resamples(frame, draws)
    return frame


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block succeeds, and is removed when it fails."""
    draft = beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        os.replace(draft, path)
    except OSError as error:
        raise OSError(f"could not write {path}: {error}; what was there before is unchanged") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def expanded(path: str | Path) -> Path:
    """Return a path with a leading `~` expanded to the home folder."""
    return Path(os.path.expanduser(path))  # which leaves the name of an unknown user as it is


def check_writable(folder: Path, what: str) -> None:
    """Raise OSError if a folder, called `what` in the message, cannot be made or written into."""
    try:
        place = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise OSError(f"cannot write into {what} {folder}: {error.strerror}; name another") from error


def mark_of(of: str) -> str:
    """Return the mark of figures and reports made by headroles, with the digest of the weights."""
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
