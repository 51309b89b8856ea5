"""Orders of heads: by the columns of a table, or at random (no torch)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Literal

import pandas as pd

from headroles.tables.frame import Kind

Head = tuple[Kind, int, int]  # kind, layer, head


def orders(
    table: pd.DataFrame, columns: Sequence[str], *, kind: Kind | Literal["each"] | None = None, seeds: int = 0
) -> dict[str, list[Head]]:
    """Order the heads of a table by columns and at random.

    Args:
        table: A table of heads.
        columns: Names of columns; the smallest value comes first. A minus before the name reverses the order.
        kind: Kind of the heads, by default all. "each" makes orders of every kind, "cross by importance" and so on
            (Michel et al. 2019, Fig. 4).
        seeds: Number of random orders, "random 0" and so on.

    Returns:
        Name of the order -> heads, (kind, layer, head) each; heads without a value come last.

    Raises:
        ValueError: If the table lacks a column or the kind.
    """
    if kind == "each":
        parts = {one: orders(table, columns, kind=one, seeds=seeds) for one in table.index.unique("kind")}
        return {f"{one} by {name}": order for one, part in parts.items() for name, order in part.items()}
    rows = table if kind is None else table[table.index.get_level_values("kind") == kind]
    if not len(rows):
        kinds = ", ".join(table.index.unique("kind"))
        raise ValueError(f"no heads of kind {kind!r} to order: got a table of {kinds}; expected one of its kinds")
    lacking = [name for name in columns if name.removeprefix("-") not in rows]
    if lacking:
        known = [name for name in map(str, rows) if not name.endswith((".low", ".high"))]
        near = get_close_matches(lacking[0].removeprefix("-"), known, cutoff=0.8)
        listed = f"try {' or '.join(near)}" if near else f"known: {', '.join(known)}"
        raise ValueError(f"no column {lacking[0]!r} to order heads by; {listed}")
    ordered = {}
    for name in columns:
        values = rows[name.removeprefix("-")]
        rising = values.dropna().sort_values(kind="stable").index.tolist()
        unknown = values.index[values.isna()].tolist()
        ordered[name] = (rising[::-1] if name.startswith("-") else rising) + unknown
    chance = {f"random {seed}": random.Random(seed).sample(rows.index.tolist(), len(rows)) for seed in range(seeds)}
    return ordered | chance
