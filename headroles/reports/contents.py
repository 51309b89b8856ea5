"""What a report says of the heads: measurements with intervals and ranks, roles, where each went in pruning."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from headroles import maps, role
from headroles.heads import KINDS, LEVELS
from headroles.reports.sources import Column, Table, columns
from headroles.reports.wording import words
from headroles.sharing import groups

Head = tuple[str, int, int]
DIGITS = 7  # significant ones that are kept of a number: rounded again for the eye, it is as if rounded once
MAIN = (  # come first, and are the columns of the table of all heads; the others are on the maps and cards
    *("confidence", "position[best]", "alignment[monotone]", "ablation[loss]", "ablation[bleu]", "ablation[accuracy]"),
    *("importance", "relevance[cp].size"),
)
LARGEST = 8  # columns of that table where it has none of these


def measured(tables: Iterable[Table], index: Sequence[Head]) -> tuple[list[dict[str, Any]], list[tuple[str, Table]]]:
    """Every measurement of every head, ready for the page, and the columns left out because they were there."""
    found, again = columns(table for table in tables if table.stem in ("heads", "ablation"))
    shown = [_column(one, index) for one in found if one.parts[""].notna().any()]
    shown.sort(key=lambda one: [*MAIN, one["name"]].index(one["name"]))
    main = [one["name"] for one in shown if one["name"] in MAIN] or [one["name"] for one in shown[:LARGEST]]
    return [one | {"main": one["name"] in main} for one in shown], again


def shared(tables: Iterable[Table], index: Sequence[Head]) -> list[str | None]:
    """With which heads each shares its keys and values, in words."""
    told = (groups(table.frame) for table in tables if table.stem == "heads")
    found = next((one for one in told if one is not None), None)
    if found is None:
        return [None] * len(index)
    place: dict[Any, Any] = {head: (*head[:2], group) for head, group in zip(list(found.index), found, strict=True)}
    others = {head: [one[2] for one in place if one != head and place[one] == place[head]] for head in place}
    return [
        f"shares its keys and values with head{'s' * (len(others[head]) > 1)} {_listed(others[head])}"
        if others.get(head)
        else None
        for head in index
    ]


def roles(tables: Iterable[Table], index: Sequence[Head]) -> dict[str, Any]:
    """The roles that could be told, who holds them, and the colours of their families."""
    found: list[dict[str, Any]] = []
    for table in (table for table in tables if table.stem == "roles"):
        frame = along(table.frame, index)
        for name in role.names(frame):
            if name not in (one["name"] for one in found) and frame[f"{name}.value"].notna().any():
                values, stability = (numbers(frame[f"{name}.{part}"]) for part in ("value", "stability"))
                held = [int(one) for one in frame[name].fillna(value=False).astype(bool)]
                said = {"name": name, "short": maps.short(name), "family": name.partition("[")[0], "from": place(table)}
                found.append(said | {"held": held, "values": values, "stability": stability})
    families = list(dict.fromkeys(one["family"] for one in found))
    hues = maps.colours([one["name"] for one in found]) if found else {}
    legend = [
        {"family": name, "colour": _hex(hues[name]), "about": maps.FAMILIES.get(name, "").replace("\n", " ")}
        for name in families
    ]
    return {"roles": found, "families": legend, "stable": maps.STABLE}


def prunings(tables: Iterable[Table], index: Sequence[Head]) -> list[dict[str, Any]]:
    """Each pruning to one or more sizes: which heads were left at each, and what that says of a head."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for one in columns(table for table in tables if table.stem == "survival")[0]:
        label = one.name.removeprefix("survival[").removesuffix("]")
        strategy, count, kinds = _pruning(label)
        may_go = [head for head in index if not kinds or head[0] in kinds]
        left = along(one.parts[""], index)
        said = {"name": " ".join([strategy, *kinds]), "kinds": kinds, "from": place(one.table), "of": len(may_go)}
        own = found.setdefault((strategy, *kinds), said | {"sizes": []})
        size = int(along(left, may_go).sum()) if count is None else count
        extras: dict[str, Any] = {
            part: numbers(along(one.parts[part], index)) for part in ("open", "turn") if part in one.parts
        }
        own["sizes"].append({"size": size, "held": [int(value) for value in left], **extras})
    for own in found.values():
        own["sizes"].sort(key=lambda one: -one["size"])
        own["fate"] = [
            fate([(one["size"], one["held"][row]) for one in own["sizes"]])
            if not own["kinds"] or head[0] in own["kinds"]
            else None
            for row, head in enumerate(index)
        ]
    return list(found.values())


def fate(sizes: Sequence[tuple[int, int]]) -> str:
    """What became of a head, from (heads left, whether it is among them), the largest size first."""
    runs: list[tuple[int, list[int]]] = []
    for size, there in sizes:
        if runs and runs[-1][0] == there:
            runs[-1][1].append(size)
        else:
            runs.append((there, [size]))
    if len(runs) == 1:
        return f"{'there' if runs[0][0] else 'gone'} with {_listed(runs[0][1])} heads"
    if len(runs) == 2 and runs[0][0]:
        return f"still there with {runs[0][1][-1]} heads, gone with {runs[1][1][0]}"
    return ", ".join(
        f"{'there' if there else 'gone'}{' again' if place > 1 else ''} with {_listed(own)} heads"
        for place, (there, own) in enumerate(runs)
    )


def along(values: Any, index: Sequence[Head]) -> Any:
    """The rows of a table or column of heads in the order of the page."""
    return values.reindex(_rows(tuple(index)))


@cache
def _rows(index: tuple[Head, ...]) -> pd.MultiIndex:
    return pd.MultiIndex.from_tuples(index, names=LEVELS)


def place(table: Table) -> str:
    """Where a table is, as the page says it."""
    return f"{table.folder}/{table.name}"


def numbers(values: Any) -> list[float | None]:
    """Numbers for JSON: to seven digits, None for what is none."""
    return [number(float(value)) for value in values]


def number(value: float) -> float | None:
    """A number for JSON: to seven digits, None for what is none."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def decimals(values: Any) -> int:
    """How many decimals show three digits of the largest value; none for whole numbers."""
    known = np.abs(np.asarray(values, dtype=float))
    known = known[np.isfinite(known)]
    if not known.size or (known == known.round()).all():
        return 0
    return int(np.clip(2 - math.floor(math.log10(known.max())), 0, 5))


def _column(one: Column, index: Sequence[Head]) -> dict[str, Any]:
    values = along(one.parts[""], index).astype(float)
    said = words(one.name)
    known = values[np.isfinite(values)]
    found = {
        "name": one.name,
        "group": said.group,
        "label": said.label,
        "about": said.about,
        "from": place(one.table),
        "decimals": decimals(values),
        "range": [number(known.min()), number(known.max())] if len(known) else [None, None],
        "effect": one.name.startswith("ablation["),
        "values": numbers(values),
        **_ranks(values),
    }
    shown = ("low", "high", "p", "holm", "bh", "words", "baseline")
    beside = {part: numbers(along(one.parts[part], index)) for part in shown if part in one.parts}
    return found | beside


def _ranks(values: pd.Series[Any]) -> dict[str, Any]:
    """The rank of each head among those of its kind, 1 for the largest value, and how many have one."""
    kinds = values.index.get_level_values(0)
    ranks = values.groupby(kinds).rank(ascending=False, method="min")
    counted = values.groupby(kinds).count()
    return {
        "rank": [None if math.isnan(one) else int(one) for one in ranks],
        "of": {str(kind): int(counted[kind]) for kind in KINDS if kind in counted},
    }


def _pruning(label: str) -> tuple[str, int | None, list[str]]:
    """The strategy, the number of heads left and the kinds that a label of `survival[...]` names."""
    parts = label.split(" ")
    kinds = [part for part in parts if part in set[str](KINDS)]
    counts = [i for i, part in enumerate(parts) if part.isdigit() and parts[i - 1] != "seed"]
    strategy = [part for i, part in enumerate(parts) if part not in kinds and i not in counts[:1]]
    return " ".join(strategy), int(parts[counts[0]]) if counts else None, kinds


def _listed(sizes: Sequence[int]) -> str:
    first, last = ", ".join(map(str, sizes[:-1])), str(sizes[-1])
    return f"{first} and {last}" if first else last


def _hex(colour: Sequence[float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colour)
