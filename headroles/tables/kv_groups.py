"""Key-value groups: which query heads share keys and values in grouped-query and multi-query attention (no torch)."""

from __future__ import annotations

import pandas as pd

from headroles.tables.frame import LEVELS, fields


def groups(table: pd.DataFrame | pd.Series[float]) -> pd.Series[int] | None:
    """Return the key-value group of each query head.

    Args:
        table: Table of `hr.score`, or a column of it. The group sizes are read from its provenance.

    Returns:
        Group number of each head, from 0 in each layer; None if no heads share keys and values.
    """
    shared = _shared(table)
    if not shared:
        return None
    kinds, layers, heads = (table.index.get_level_values(level) for level in LEVELS)
    sizes = [_size(shared.get(kind, "1"), layer) for kind, layer in zip(kinds, layers, strict=True)]
    numbers = [head // size for head, size in zip(heads, sizes, strict=True)]
    return pd.Series(numbers, index=table.index, name="group")


def size(table: pd.DataFrame, kind: str, layer: int) -> int:
    """Return how many query heads share each key-value head of a layer, by the provenance of a table; 1 without."""
    return _size(_shared(table).get(kind, "1"), layer)


def ends(values: pd.Series[float], kind: str) -> list[tuple[int, int]]:
    """Return (layer, head) of each head that starts a key-value group; none if no keys and values are shared."""
    shared = groups(values)
    of_kind = pd.Series() if shared is None else shared.xs(kind, level="kind")
    places: dict[tuple[int, int], int] = dict(zip(of_kind.index, of_kind, strict=True))
    if all(group == head for (_, head), group in places.items()):
        return []
    return [(layer, head) for (layer, head), group in places.items() if places.get((layer, head - 1), group) != group]


def _shared(table: pd.DataFrame | pd.Series[float]) -> dict[str, str]:
    """Group sizes by kind, from the first signature that has them."""
    for text in table.attrs.get("signatures", {}).values():
        for name, value in fields(text):
            if name == "shared":
                return dict(pair.split("=") for pair in value.split(","))
    return {}


def _size(text: str, layer: int) -> int:
    sizes = text.split(".")
    return int(sizes[layer] if len(sizes) > 1 else sizes[0])
