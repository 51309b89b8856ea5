"""The head index, and signed tables over it: one row per head, one column per measurement (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from headroles.tables.signatures import fields as fields
from headroles.tables.signatures import holding as holding
from headroles.tables.signatures import sign as sign

Kind = Literal["enc-self", "dec-self", "cross"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LEVELS = ["kind", "layer", "head"]


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
        raise KeyError(f"column {column!r} has no signature; signed columns: {listed(found)}")
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
        raise ValueError(f"these columns are in more than one table: {listed(twice)}; rename or drop one of each")
    frame = pd.concat([one.loc[first.index].set_axis(one.columns, axis=1) for one in map(bare, tables)], axis=1)
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
    frame = bare(table)[list(columns)]
    frame.attrs["signatures"] = {
        name: text for name, text in table.attrs.get("signatures", {}).items() if name in frame
    }
    if (found := resamples(table)) is not None and (draws := {n: found.draws[n] for n in found.draws if n in frame}):
        frame.attrs["resamples"] = Resamples(found.index, draws)
    return frame


def _index(heads: list[tuple[Any, ...]]) -> pd.MultiIndex:
    """An index that pandas knows to be sorted, kinds in our order: else it warns at every look-up of a head."""
    columns = list(zip(*heads, strict=True)) or [(), (), ()]
    levels = [sorted(set(columns[0]), key=(*KINDS, *columns[0]).index), *(sorted(set(each)) for each in columns[1:])]
    codes = [[level.index(value) for value in column] for level, column in zip(levels, columns, strict=True)]
    return pd.MultiIndex(levels=levels, codes=codes, names=LEVELS)


def bare(table: pd.DataFrame) -> pd.DataFrame:
    """The table without attrs, which pandas would compare, copy or write."""
    bare = table.copy(deep=False)
    bare.attrs = {}
    return bare


def listed(names: Sequence[str] | Mapping[str, Any]) -> str:
    """Names joined by commas, or "none"."""
    return ", ".join(names) or "none"
