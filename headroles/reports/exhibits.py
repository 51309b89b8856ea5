"""What a report shows beside the heads' measurements: curves, gates, roles against outcomes, attention, signatures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from headroles.heads import KINDS, LEVELS
from headroles.maps import needs
from headroles.reports.contents import Head, decimals, number, numbers, place
from headroles.reports.sources import Table
from headroles.reports.wording import axis_label

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
        needs(frame, {"heads", "of", "value", "low", "high"}, "hr.prune_sizes")
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
        needs(table.frame, {"order", "share", "closed", "value", "low", "high"}, "hr.curve")
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
    needs(table.frame, {*LEVELS, "sentence", "text", "target", "queries", "keys", "weights"}, "hr.attend")
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
        for name, _, value in (field.partition(":") for field in text.split("|")):
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
