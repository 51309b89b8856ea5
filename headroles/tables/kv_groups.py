"""Sharing: which query heads read the same keys and values (grouped-query and multi-query attention)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from headroles.tables.frame import LEVELS, fields


def said(sites: Iterable[Any]) -> str:
    """How many query heads share each key-value head, for a signature: "dec-self=4", by layers where they differ.

    Empty where none is shared, and where heads were cut out: which of them share then is not told by their numbers.
    """
    counts: dict[str, list[int]] = {}
    for site in sites:
        counts.setdefault(site.kind, []).append(1 if site.heads != site.of else site.heads // site.kv_heads)
    return ",".join(
        f"{kind}={each[0] if len(set(each)) == 1 else '.'.join(map(str, each))}"
        for kind, each in counts.items()
        if max(each) > 1
    )


def groups(table: pd.DataFrame | pd.Series[Any]) -> pd.Series[Any] | None:
    """The key-value group of each query head of a table of `score`, or of a column of it; None where none is shared.

    Groups count from 0 in each layer. Which heads share is in the signature of each score.
    """
    told = _told(table)
    if not told:
        return None
    kinds, layers, numbers = (table.index.get_level_values(level) for level in LEVELS)
    sizes = [_size(told.get(kind, "1"), layer) for kind, layer in zip(kinds, layers, strict=True)]
    found = [number // size for number, size in zip(numbers, sizes, strict=True)]
    return pd.Series(found, index=table.index, name="group")


def ends(values: pd.Series[Any], kind: str) -> list[tuple[int, int]]:
    """(layer, head) of each head of one kind that does not share with the head before it; none where none share."""
    shared = groups(values)
    places: dict[Any, int] = {} if shared is None else dict(shared.xs(kind, level="kind").items())
    if all(own == head for (_, head), own in places.items()):
        return []
    return [(layer, head) for (layer, head), own in places.items() if places.get((layer, head - 1), own) != own]


def _told(table: pd.DataFrame | pd.Series[Any]) -> dict[str, str]:
    """The field of the first signature that has it, by kinds."""
    for text in table.attrs.get("signatures", {}).values():
        for name, value in fields(text):
            if name == "shared":
                return dict(pair.split("=") for pair in value.split(","))
    return {}


def _size(text: str, layer: int) -> int:
    each = text.split(".")
    return int(each[layer] if len(each) > 1 else each[0])
