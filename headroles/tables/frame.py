"""The head index, and signed tables over it: one row per head, one column per measurement (no torch)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from headroles.tables.files import BLANK, MARK, is_sealed, seal
from headroles.tables.files import beside as beside
from headroles.tables.files import replacing as replacing
from headroles.tables.signatures import fields as fields
from headroles.tables.signatures import holding as holding
from headroles.tables.signatures import sign as sign

Kind = Literal["enc-self", "dec-self", "cross"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LEVELS = ["kind", "layer", "head"]
_DRAWS = "resamples:"  # prefix of the columns of a file that hold a column's resampled values
_DAMAGE = (pa.ArrowException, ValueError, LookupError, TypeError, AttributeError)  # what reading a damaged file raises


class Resamples(dict[str, Any]):
    """Bootstrap resamples of a table's columns: `draws[column]` is [heads, resamples], rows as in `index`.

    It rides in `table.attrs`. pandas copies attrs deeply at every step and writes them as JSON, so this is an empty
    dict to both: never copied, and no obstacle to `DataFrame.to_parquet` (which drops it; `save` keeps it).
    """

    def __init__(self, index: pd.MultiIndex, draws: Mapping[str, npt.NDArray[np.float32]]) -> None:
        super().__init__()
        self.index, self.draws = index, dict(draws)

    def of(self, column: str, index: pd.MultiIndex) -> npt.NDArray[np.float32]:
        """The resampled values of `column` for the heads of `index`: [heads, resamples]."""
        return self.draws[column][self.index.get_indexer(index)]

    def __deepcopy__(self, memo: dict[int, Any]) -> Resamples:
        return self

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __repr__(self) -> str:
        return f"<resamples of {len(self.draws)} columns>"


def index(sizes: Mapping[tuple[Kind, int], int | Sequence[int]]) -> pd.MultiIndex:
    """The head index of a model: how many heads each (kind, layer) has, or their numbers, in the order of the rows."""
    numbered = {key: range(given) if isinstance(given, int) else given for key, given in sizes.items()}
    return _index([(kind, layer, head) for (kind, layer), numbers in numbered.items() for head in numbers])


def table(
    columns: Mapping[str, Any],
    index: pd.MultiIndex,
    signatures: str | Mapping[str, str],
    *,
    draws: Mapping[str, npt.NDArray[np.float32]] | None = None,
) -> pd.DataFrame:
    """A signed table: `columns` over `index`, one signature for all columns or one for each."""
    frame = pd.DataFrame(dict(columns), index=index)
    each = signatures if isinstance(signatures, Mapping) else dict.fromkeys(frame.columns, signatures)
    frame.attrs["signatures"] = dict(each)
    if draws:
        frame.attrs["resamples"] = Resamples(index, draws)
    return frame


def provenance(table: pd.DataFrame, column: str) -> str:
    """The signature of one column of a table."""
    found: dict[str, str] = table.attrs.get("signatures", {})
    if column not in found:
        raise KeyError(f"column {column!r} has no signature; signed columns: {_listed(found)}")
    return found[column]


def sources(table: pd.DataFrame, columns: Sequence[str]) -> str:
    """What columns were measured of, in short: the distinct models, weights and corpora of their signatures."""
    signed: dict[str, str] = table.attrs.get("signatures", {})
    kept = ("model", "weights", "corpus", "text", "trained_on")
    parts = [
        "|".join(sign(**{key: value}) for key, value in fields(signed.get(column, "")) if key in kept)
        for column in columns
    ]
    return " + ".join(dict.fromkeys(part or "unsigned" for part in parts))


def resamples(table: pd.DataFrame) -> Resamples | None:
    """The bootstrap resamples that ride with a table, or None where it has none."""
    found = table.attrs.get("resamples")
    return found if isinstance(found, Resamples) else None


def rows(table: pd.DataFrame) -> pd.MultiIndex:
    """The heads of a table's rows."""
    return _index(list(table.index))


def join(*tables: pd.DataFrame) -> pd.DataFrame:
    """Join tables of the same heads side by side; signatures and resamples are kept (pandas' own join drops them)."""
    if not tables:
        raise ValueError("nothing to join: give at least one table")
    first = tables[0]
    for other in tables[1:]:
        if not first.index.sort_values().equals(other.index.sort_values()):
            raise ValueError(
                f"the tables are of different heads: {len(first)} and {len(other)} rows, "
                f"{len(first.index.intersection(other.index))} in common; join tables of one model"
            )
    names = [column for one in tables for column in one.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"these columns are in more than one table: {_listed(twice)}; rename or drop one of each")
    frame = pd.concat([one.loc[first.index].set_axis(one.columns, axis=1) for one in map(_bare, tables)], axis=1)
    frame.attrs["signatures"] = {name: text for one in tables for name, text in one.attrs.get("signatures", {}).items()}
    index = rows(first)
    draws = {
        name: found.of(name, index) for one in tables if (found := resamples(one)) is not None for name in found.draws
    }
    if draws:
        frame.attrs["resamples"] = Resamples(index, draws)
    return frame


def only(table: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Some columns of a table, with their signatures and resamples."""
    frame = _bare(table)[list(columns)]
    frame.attrs["signatures"] = {
        name: text for name, text in table.attrs.get("signatures", {}).items() if name in frame
    }
    if (found := resamples(table)) is not None and (draws := {n: found.draws[n] for n in found.draws if n in frame}):
        frame.attrs["resamples"] = Resamples(found.index, draws)
    return frame


def save_table(table: pd.DataFrame, path: str | Path) -> Path:
    """Write a table as parquet, signatures and resamples included.

    The file is written beside its place and then moved there, so an interrupted run or a full disk leaves what was
    there before. Raises OSError with the path and the reason.
    """
    path = Path(path)
    if taken := [name for name in map(str, table.columns) if name.startswith(_DRAWS)]:
        raise ValueError(f"columns may not begin with {_DRAWS!r}, where resamples are kept: {_listed(taken)}")
    arrow = pa.Table.from_pandas(_bare(table))
    if (found := resamples(table)) is not None:
        index = rows(table)
        for name in found.draws:
            values = found.of(name, index)
            cells = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
            arrow = arrow.append_column(_DRAWS + name, cells)
    notes = {name: table.attrs.get(name) for name in ("signatures", "recipe")} | {"sealed": True}
    ours = {b"headroles": json.dumps(notes).encode(), b"digest": MARK + BLANK}
    arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), **ours})
    with replacing(path) as draft:
        # bytes of numbers split into streams take half the room
        split = [f"{name}.list.element" for name in arrow.column_names if name.startswith(_DRAWS)]
        pq.write_table(arrow, draft, compression="zstd", use_dictionary=not split, use_byte_stream_split=split)
        draft.write_bytes(seal(draft.read_bytes()))
    return path


def load_table(path: str | Path) -> pd.DataFrame:
    """Read a table that `save` wrote, if its bytes are the same still: their digest is in the file.

    Tables of earlier versions have none. Raises FileNotFoundError or ValueError with the path.
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


def notes(path: Path) -> dict[str, Any] | None:
    """What `save` noted in a file, read without the table: signatures and recipe. None for a file that is not ours."""
    try:
        text = (pq.read_schema(path).metadata or {}).get(b"headroles")
        return None if text is None else dict(json.loads(text))
    except (*_DAMAGE, OSError):
        return None


def _unpacked(arrow: pa.Table, *, sealed: bool) -> pd.DataFrame:
    text = (arrow.schema.metadata or {}).get(b"headroles")
    if text is None:
        raise ValueError("it carries no signatures")
    notes = json.loads(text)
    if bool(notes.pop("sealed", False)) != sealed:
        raise ValueError("the digest of its bytes cannot be read")
    names = [name for name in arrow.column_names if name.startswith(_DRAWS)]
    frame: pd.DataFrame = arrow.drop_columns(names).to_pandas()
    if list(frame.index.names) == LEVELS:
        frame.index = rows(frame)
    frame.attrs = {name: value for name, value in notes.items() if value is not None}
    if names:
        frame.attrs["resamples"] = Resamples(
            rows(frame), {name.removeprefix(_DRAWS): _matrix(arrow[name]) for name in names}
        )
    return frame


def _index(heads: list[tuple[Any, ...]]) -> pd.MultiIndex:
    """An index that pandas knows to be sorted, kinds in our order: else it warns at every look-up of a head."""
    columns = list(zip(*heads, strict=True)) or [(), (), ()]
    levels = [sorted(set(columns[0]), key=(*KINDS, *columns[0]).index), *(sorted(set(each)) for each in columns[1:])]
    codes = [[level.index(value) for value in column] for level, column in zip(levels, columns, strict=True)]
    return pd.MultiIndex(levels=levels, codes=codes, names=LEVELS)


def _matrix(column: pa.ChunkedArray) -> npt.NDArray[np.float32]:
    cells = column.combine_chunks()
    values: npt.NDArray[np.float32] = cells.flatten().to_numpy().reshape(len(cells), cells.type.list_size)
    return values


def _bare(table: pd.DataFrame) -> pd.DataFrame:
    """The table without attrs, which pandas would compare, copy or write."""
    bare = table.copy(deep=False)
    bare.attrs = {}
    return bare


def _listed(names: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(names) or "none"
