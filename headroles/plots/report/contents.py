"""What a report says of the heads: measurements with intervals and ranks, roles, where each went in pruning."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from headroles.analysis import role_rules
from headroles.plots import matrix
from headroles.plots.matrix import needs
from headroles.plots.report.labels import axis_label, words
from headroles.plots.report.sources import Column, Table, columns
from headroles.plots.scales import harm
from headroles.tables.frame import KINDS, LEVELS
from headroles.tables.kv_groups import groups
from headroles.tables.signatures import fields as fields_of

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
        for name in role_rules.names(frame):
            if name not in (one["name"] for one in found) and frame[f"{name}.value"].notna().any():
                values, stability = (numbers(frame[f"{name}.{part}"]) for part in ("value", "stability"))
                held = [int(one) for one in frame[name].fillna(value=False).astype(bool)]
                said = {
                    "name": name,
                    "short": matrix.short(name),
                    "family": name.partition("[")[0],
                    "from": place(table),
                }
                found.append(said | {"held": held, "values": values, "stability": stability})
    families = list(dict.fromkeys(one["family"] for one in found))
    hues = matrix.colours([one["name"] for one in found]) if found else {}
    legend = [
        {"family": name, "colour": _hex(hues[name]), "about": matrix.FAMILIES.get(name, "").replace("\n", " ")}
        for name in families
    ]
    return {"roles": found, "families": legend, "stable": matrix.STABLE}


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
        "harm": harm(one.name),
        "values": numbers(values),
        **_ranks(values, harm(one.name) or 1),
    }
    shown = ("low", "high", "p", "holm", "bh", "words", "baseline")
    beside = {part: numbers(along(one.parts[part], index)) for part in shown if part in one.parts}
    return found | beside


def _ranks(values: pd.Series[Any], sign: int) -> dict[str, Any]:
    """The rank of each head among those of its kind, the first and last of equal ones, and how many have one.

    1 is the largest value, or the smallest for a negative sign.
    """
    kinds = values.index.get_level_values(0)
    counted = values.groupby(kinds).count()
    first, last = ((sign * values).groupby(kinds).rank(ascending=False, method=end) for end in ("min", "max"))
    return {
        "rank": [None if math.isnan(low) else [int(low), int(high)] for low, high in zip(first, last, strict=True)],
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


STEPS = 40  # of a gate's history at most
ENDS = ("low", "high")
COUNTS = ("with", "without")
ESTIMATES = ("difference", "median", "auc", "rank_biserial", "point_biserial", "spearman", "within")
IN_UNITS = ("difference", "median", "within")  # of the outcome
TESTS = ("p", "holm", "bh")


def sizes(tables: Iterable[Table]) -> list[dict[str, Any]]:
    """What models pruned to several sizes are worth, a row each, the whole model first."""
    found = []
    for table in (table for table in tables if table.stem == "sizes"):
        frame = table.frame
        needs(frame, {"heads", "of", "value", "low", "high"}, "hr.sparsity_sweep")
        rows = [
            {"heads": int(row["heads"]), "left": [int(row[kind]) for kind in KINDS if kind in frame]}
            | {"value": _interval(row, "value", ENDS), "change": _interval(row, "change")}
            | {"undecided": int(row["undecided"]) if "undecided" in frame else None}
            for row in frame.to_dict("records")
        ]
        found.append(
            {"name": table.name.removeprefix("sizes-").replace("-", " ", 1), "from": place(table)}
            | {"label": axis_label(table.signatures.get("value", "")), "of": int(frame["of"].iloc[0])}
            | {"kinds": [kind for kind in KINDS if kind in frame], "rows": rows}
            | {"decimals": decimals(frame["value"])}
        )
    return found


def curves(tables: Iterable[Table]) -> list[dict[str, Any]]:
    """What is left when heads are closed together, a line for each order."""
    found = []
    for table in (table for table in tables if table.stem == "curves"):
        needs(table.frame, {"order", "share", "closed", "value", "low", "high"}, "hr.ablation_curve")
        lines = [
            {"name": str(name), "points": [[int(row["closed"]), *_point(row)] for row in own.to_dict("records")]}
            for name, own in table.frame.groupby("order", sort=False, observed=True)
        ]
        label = axis_label(table.signatures.get("value", ""))
        own = {"name": table.name, "from": place(table), "label": label, "lines": lines}
        found.append(own | {"decimals": decimals(table.frame["value"])})
    return found


def gates(tables: Iterable[Table], index: Sequence[Head]) -> list[dict[str, Any]]:
    """How probably each gate was open while it was learnt, in hundredths, at forty steps at most."""
    found = []
    for table in (table for table in tables if table.stem == "gates"):
        needs(table.frame, {*LEVELS, "step", "open"}, "hr.prune with learnt gates")
        wide = table.frame.pivot_table(index="step", columns=LEVELS, values="open", observed=True)
        rows = np.unique(np.linspace(0, len(wide) - 1, STEPS).round().astype(int))
        kept = (100 * wide.iloc[rows]).round().astype("Int64")
        heads = [kept[head].tolist() if head in kept else None for head in index]
        steps = [int(step) for step in kept.index]
        found.append({"name": table.name.removeprefix("gates-"), "from": place(table), "steps": steps, "open": heads})
    return sorted(found, key=lambda one: _by_size(one["name"]))


def relate(tables: Iterable[Table]) -> dict[str, Any] | None:
    """How roles go with outcomes: a row for each pair, missing numbers None beside the note that says why."""
    table = next((table for table in tables if table.stem == "relate"), None)
    if table is None:
        return None
    frame = table.frame.reset_index(drop=True)
    needs(frame, {"role", "outcome"}, "hr.relate")
    shown = [name for name in ESTIMATES if name in frame]
    in_units = frame[[name for name in IN_UNITS if name in frame]]
    places = {outcome: decimals(own) for outcome, own in in_units.groupby(frame["outcome"])}
    rows = [
        {"role": str(row["role"]), "outcome": str(row["outcome"]), "note": str(row.get("note") or "")}
        | {name: number(float(row[name])) for name in (*COUNTS, *TESTS) if name in frame}
        | {name: _interval(row, name) for name in shown}
        | {"decimals": {name: places[row["outcome"]] if name in IN_UNITS else 2 for name in shown}}
        for row in frame.to_dict("records")
    ]
    rows.sort(key=lambda row: row.get("difference") is None)  # what can be told comes first
    listed = {"counts": COUNTS, "columns": ESTIMATES, "tests": TESTS}
    return {"from": place(table), "rows": rows} | {
        part: [name for name in names if name in frame] for part, names in listed.items()
    }


def attention(tables: Iterable[Table], index: Sequence[Head]) -> list[dict[str, Any]]:
    """Each example sentence: its tokens for each kind, and of each head the weights in thousandths, row by row."""
    table = next((table for table in tables if table.stem == "attention"), None)
    if table is None:
        return []
    needs(table.frame, {*LEVELS, "sentence", "text", "target", "queries", "keys", "weights"}, "hr.attention_examples")
    found = []
    for _, own in table.frame.groupby("sentence", sort=True):
        rows = {(row["kind"], row["layer"], row["head"]): row for row in own.to_dict("records")}
        first = {row["kind"]: row for row in reversed(list(rows.values()))}
        tokens = {kind: {"queries": list(row["queries"]), "keys": list(row["keys"])} for kind, row in first.items()}
        one = next(iter(rows.values()))
        weights = [_thousandths(rows[head]["weights"]) if head in rows else None for head in index]
        target = None if pd.isna(one["target"]) else str(one["target"])
        found.append({"text": str(one["text"]), "target": target, "tokens": tokens, "weights": weights})
    return found


def signatures(tables: Iterable[Table]) -> list[dict[str, Any]]:
    """For each table the columns of each signature, with what they share said once."""
    found = []
    for table in tables:
        groups: dict[str, list[str]] = {}
        for column, text in table.signatures.items():
            if str(column).rpartition(".")[2] not in (*ENDS, *TESTS):
                groups.setdefault(text, []).append(str(column))
        groups = groups or {"without a signature": list(map(str, table.frame))}
        found.append({"place": place(table), "groups": [{"signature": k, "columns": v} for k, v in groups.items()]})
    return found


def facts(tables: Iterable[Table]) -> dict[str, list[str]]:
    """What the signatures say of the model: its names, its weights, the versions that measured it."""
    fields: dict[str, dict[str, None]] = {"model": {}, "weights": {}, "headroles": {}}
    of_model = [table for table in tables if table.stem not in ("sizes", "gates")]  # which are of what became of it
    for text in dict.fromkeys(text for table in of_model or tables for text in table.signatures.values()):
        for name, value in fields_of(text):
            if name in fields:
                fields[name][value] = None
    return {name: list(values) for name, values in fields.items()}


def _point(row: dict[Any, Any]) -> list[float | None]:
    return numbers(row[name] for name in ("share", "value", *ENDS))


def _interval(row: dict[Any, Any], name: str, ends: Sequence[str] | None = None) -> list[float | None] | None:
    """A value with its bounds, or None where there is no such column or number."""
    names = [name, *(ends or [f"{name}.{end}" for end in ENDS])]
    if name not in row or pd.isna(row[name]):
        return None
    return numbers(row.get(one, np.nan) for one in names)


def _by_size(name: str) -> tuple[str, int]:
    """Larger sizes first within a strategy."""
    stem, _, last = name.rpartition("-")
    return (stem, -int(last)) if last.isdigit() else (name, 0)


def _thousandths(weights: Any) -> list[int]:
    found: list[int] = np.rint(1000 * np.asarray(weights, dtype=float)).astype(int).tolist()
    return found
