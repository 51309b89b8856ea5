"""Heads in a report: measurements with intervals and ranks, roles, survival at each size (no torch)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from headroles.analysis import role_rules
from headroles.plots import matrix, styling
from headroles.plots.labels import column_label
from headroles.reports.sources import Measurement, Table, columns
from headroles.tables.columns import Column
from headroles.tables.declared import harm
from headroles.tables.frame import KINDS, LEVELS
from headroles.tables.kv_groups import groups

Head = tuple[str, int, int]
Rows = TypeVar("Rows", pd.DataFrame, "pd.Series[Any]")
Entry = dict[str, object]  # of the page's JSON
DIGITS = 7  # significant digits of a number; rounding again for display gives the same as rounding once
MAIN = (  # the first columns, and those of the table of all heads; the others are on the maps and cards
    *("confidence", "position[best]", "alignment[monotone]", "ablation[loss]", "ablation[bleu]", "ablation[accuracy]"),
    *("importance", "relevance[cp].size"),
)
LARGEST = 8  # number of columns of that table if none of these exist


def measured(tables: Iterable[Table], index: Sequence[Head]) -> tuple[list[Entry], list[tuple[str, Table]]]:
    """Collect every measurement of every head, and the columns that an earlier table had."""
    measurements, duplicates = columns(table for table in tables if table.kind.per_head)
    shown = [entry_of(column, index) for column in measurements if column.parts[""].notna().any()]
    shown.sort(key=lambda column: [*MAIN, column["name"]].index(column["name"]))
    names = [column["name"] for column in shown]
    main = [name for name in names if name in MAIN] or names[:LARGEST]
    return [column | {"main": column["name"] in main} for column in shown], duplicates


def shared(tables: Iterable[Table], index: Sequence[Head]) -> list[str | None]:
    """Describe for each head with which heads it shares keys and values."""
    candidates = (groups(table.frame) for table in tables if table.kind.part == "scores")
    assigned = next((column for column in candidates if column is not None), None)
    if assigned is None:
        return [None] * len(index)
    group: dict[Head, tuple[str | int, ...]] = {
        head: (*head[:2], number) for head, number in zip(assigned.index, assigned, strict=True)
    }
    others = {head: [peer[2] for peer in group if peer != head and group[peer] == group[head]] for head in group}
    return [
        f"shares its keys and values with head{'s' * (len(others[head]) > 1)} {listed(others[head])}"
        if others.get(head)
        else None
        for head in index
    ]


def roles(tables: Iterable[Table], index: Sequence[Head]) -> Entry:
    """Collect the roles, their heads, and the colours of their families."""
    from matplotlib.colors import to_hex

    assigned: dict[str, Entry] = {}
    shown = [table for table in tables if table.kind.part == "roles"]
    frames = [role_rules.prefer_nosink_roles(table.frame) for table in shown]
    for table, roles_shown in zip(shown, frames, strict=True):
        frame = along(roles_shown, index)
        for name in role_rules.names(frame):
            if name not in assigned and frame[f"{name}.value"].notna().any():
                values, stability = (numbers(frame[f"{name}.{part}"]) for part in ("value", "stability"))
                held = [int(value) for value in frame[name].fillna(value=False).astype(bool)]
                assigned[name] = {
                    **{"name": name, "short": matrix.short(name, *frames), "family": Column.parse(name).name},
                    **{"from": place(table), "held": held, "values": values, "stability": stability},
                }
    hues = styling.colours((Column.parse(name).name for name in assigned), *frames)
    legend = [
        {"family": name, "colour": to_hex(hue), "about": role_rules.role_style(name, *frames).about.replace("\n", " ")}
        for name, hue in hues.items()
    ]
    quiet = any(len(frame.columns) < len(table.frame.columns) for table, frame in zip(shown, frames, strict=True))
    return {"roles": [*assigned.values()], "families": legend, "stable": role_rules.STABLE, "quiet": quiet}


def prunings(tables: Iterable[Table], index: Sequence[Head]) -> list[dict[str, Any]]:
    """Collect each pruning: the heads left at each size, and the survival of each head in words."""
    collected: dict[tuple[str, ...], dict[str, Any]] = {}
    for column in columns(table for table in tables if table.kind.part == "prunings")[0]:
        if (pruned := Column.parse(column.name).pruning) is None:
            continue
        kinds, strategy = list(pruned.kinds), pruned.strategy
        strategy += "" if pruned.seed is None else f" seed {pruned.seed}"
        prunable = [head for head in index if not kinds or head[0] in kinds]
        left = along(column.parts[""], index)
        entry = {"name": " ".join([strategy, *kinds]), "kinds": kinds, "from": place(column.table), "of": len(prunable)}
        pruning = collected.setdefault((strategy, *kinds), entry | {"sizes": []})
        size = int(along(left, prunable).sum()) if pruned.heads is None else pruned.heads
        extras: dict[str, Any] = {
            part: numbers(along(column.parts[part], index)) for part in ("open", "order") if part in column.parts
        }
        pruning["sizes"].append({"size": size, "held": [int(value) for value in left], **extras})
    for pruning in collected.values():
        pruning["sizes"].sort(key=lambda size: -size["size"])
        pruning["fate"] = [
            fate([(size["size"], size["held"][row]) for size in pruning["sizes"]])
            if not pruning["kinds"] or head[0] in pruning["kinds"]
            else None
            for row, head in enumerate(index)
        ]
    return list(collected.values())


def fate(sizes: Sequence[tuple[int, int]]) -> str:
    """Describe the survival of a head, from (heads left, whether it is among them), the largest size first."""
    runs = [(kept, [size for size, _ in run]) for kept, run in groupby(sizes, itemgetter(1))]
    if len(runs) == 1:
        return f"{'kept' if runs[0][0] else 'pruned'} with {listed(runs[0][1])} heads"
    if len(runs) == 2 and runs[0][0]:
        return f"kept with {runs[0][1][-1]} heads, pruned with {runs[1][1][0]}"
    return ", ".join(
        f"{'kept' if kept else 'pruned'}{' again' if place > 1 else ''} with {listed(counts)} heads"
        for place, (kept, counts) in enumerate(runs)
    )


def along(values: Rows, index: Sequence[Head]) -> Rows:
    """Return the rows of a table or column in the order of the page's heads."""
    return values.reindex(_rows(tuple(index)))


@cache
def _rows(index: tuple[Head, ...]) -> pd.MultiIndex:
    return pd.MultiIndex.from_tuples(index, names=LEVELS)


def place(table: Table) -> str:
    """Return folder and name of a table, as shown on the page."""
    return f"{table.folder}/{table.name}"


def numbers(values: Iterable[float]) -> list[float | None]:
    """Round numbers for JSON: to seven digits, None if not finite."""
    return [number(float(value)) for value in values]


def number(value: float) -> float | None:
    """Round a number for JSON: to seven digits, None if not finite."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def decimals(values: npt.ArrayLike) -> int:
    """Return how many decimals show three digits of the largest value; 0 for whole numbers."""
    known = np.abs(np.asarray(values, dtype=float))
    known = known[np.isfinite(known)]
    if not known.size or (known == known.round()).all():
        return 0
    return int(np.clip(2 - math.floor(math.log10(known.max())), 0, 5))


def entry_of(column: Measurement, index: Sequence[Head]) -> Entry:
    """Return what the page's script needs of a measurement: names, unit, values, ranks, intervals and tests."""
    values = along(column.parts[""], index).astype(float)
    signature = column.table.signatures.get(column.name, "")
    label, sign = column_label(column.name, signature), harm(column.name, signature)
    finite = values[np.isfinite(values)]
    entry = {
        "name": column.name,
        "group": label.group,
        "label": label.label,
        "about": label.about,
        "from": place(column.table),
        "decimals": decimals(values),
        "range": [number(finite.min()), number(finite.max())] if len(finite) else [None, None],
        "harm": sign,
        "values": numbers(values),
        **_ranks(values, sign or 1),
    }
    shown = ("low", "high", "p", "holm", "bh", "words", "baseline")
    beside = {part: numbers(along(column.parts[part], index)) for part in shown if part in column.parts}
    return entry | beside


def _ranks(values: pd.Series[float], sign: int) -> Entry:
    """Rank of each head within its kind (first and last of ties), and the number of ranked heads; 1 is the best."""
    kinds = values.index.get_level_values(0)
    counted = values.groupby(kinds).count()
    first, last = ((sign * values).groupby(kinds).rank(ascending=False, method=end) for end in ("min", "max"))
    return {
        "rank": [None if math.isnan(low) else [int(low), int(high)] for low, high in zip(first, last, strict=True)],
        "of": {str(kind): int(counted[kind]) for kind in KINDS if kind in counted},
    }


def listed(items: Sequence[int]) -> str:
    """Join numbers: 1, 2 and 3."""
    first, last = ", ".join(map(str, items[:-1])), str(items[-1])
    return f"{first} and {last}" if first else last
