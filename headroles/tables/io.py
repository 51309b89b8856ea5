"""Files of head tables: parquet with provenance, bootstrap draws and a digest of the bytes (no torch)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from headroles.tables.files import BLANK, MARK, is_sealed, replacing, seal
from headroles.tables.frame import LEVELS, Resamples, bare, listed, resamples, rows

_DRAWS = "resamples:"  # prefix of the columns of a file that hold resamples
_DAMAGE = (pa.ArrowException, ValueError, LookupError, TypeError, AttributeError)  # raised by reading a damaged file


class Notes(TypedDict, total=False):
    """What a file holds beside its table."""

    signatures: dict[str, str] | None
    recipe: str | None  # the cache key
    sealed: bool  # whether the file has a digest


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
    path = Path(path)
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
    with replacing(path) as draft:
        # numbers split into byte streams take half the space
        streams = [f"{name}.list.element" for name in arrow.column_names if name.startswith(_DRAWS)]
        pq.write_table(arrow, draft, compression="zstd", use_dictionary=not streams, use_byte_stream_split=streams)
        draft.write_bytes(seal(draft.read_bytes()))
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
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no table at {path}")
    try:
        content = path.read_bytes()
        sealed = is_sealed(content)
        return _unpacked(pq.read_table(pa.BufferReader(content)), sealed=sealed)
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise ValueError(f"{path} is not a table of headroles: {error}") from error


def notes(path: Path) -> Notes | None:
    """Read the provenance and cache key of a file without its table; None for a file of another origin."""
    try:
        text = (pq.read_schema(path).metadata or {}).get(b"headroles")
        notes: Notes | None = None if text is None else json.loads(text)
        return notes
    except (*_DAMAGE, OSError):
        return None


def _unpacked(arrow: pa.Table, *, sealed: bool) -> pd.DataFrame:
    text = (arrow.schema.metadata or {}).get(b"headroles")
    if text is None:
        raise ValueError("it has no provenance")
    notes = json.loads(text)
    if bool(notes.pop("sealed", False)) != sealed:
        raise ValueError("its digest cannot be read")
    names = [name for name in arrow.column_names if name.startswith(_DRAWS)]
    frame: pd.DataFrame = arrow.drop_columns(names).to_pandas()
    if list(frame.index.names) == LEVELS:
        frame.index = rows(frame)
    frame.attrs = {name: value for name, value in notes.items() if value is not None}
    if names:
        cells = {name.removeprefix(_DRAWS): arrow[name].combine_chunks() for name in names}
        draws = {
            name: part.flatten().to_numpy().reshape(len(part), part.type.list_size) for name, part in cells.items()
        }
        frame.attrs["resamples"] = Resamples(rows(frame), draws)
    return frame
