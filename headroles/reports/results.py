"""Results of whole studies in a report: sizes, curves, gates, relations, attention, provenance (no torch)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pandas as pd

from headroles.analysis.role_rules import VERDICTS
from headroles.plots.axes import needs
from headroles.plots.labels import axis_label, direction, label_of
from headroles.reports.contents import Entry, Head, decimals, number, numbers, place
from headroles.reports.sources import Table
from headroles.tables.columns import Column, after_stem
from headroles.tables.frame import KINDS, LEVELS
from headroles.tables.frame import fields as fields_of

STEPS = 40  # the most steps of a gate's history
BOUNDS = ("low", "high")
COUNTS = ("with", "without")
ESTIMATES = ("difference", "median", "auc", "rank_biserial", "point_biserial", "spearman", "within")
IN_UNITS = ("difference", "median", "within")  # in the unit of the outcome
TESTS = ("p", "holm", "bh")
MARKS = dict(zip(VERDICTS, ("whole", "part", "other"), strict=False))  # on the map of roles


def sizes(tables: Iterable[Table]) -> list[Entry]:
    """Collect the quality of models pruned to several sizes, a row per size, the whole model first."""
    entries: list[Entry] = []
    for table in (table for table in tables if table.kind.part == "sizes"):
        frame = table.frame
        needs(frame, {"heads", "of", "value", "low", "high"}, "hr.sparsity_sweep")
        rows = [
            {"heads": int(row["heads"]), "left": [int(row[kind]) for kind in KINDS if kind in frame]}
            | {"value": _interval(row, "value", BOUNDS), "change": _interval(row, "change")}
            | {"undecided": int(row["undecided"]) if "undecided" in frame else None}
            for row in frame.to_dict("records")
        ]
        entries.append(
            {"name": after_stem(table.name).replace("-", " ", 1), "from": place(table)}
            | {"label": axis_label(table.signatures.get("value", "")), "of": int(frame["of"].iloc[0])}
            | {"kinds": [kind for kind in KINDS if kind in frame], "rows": rows}
            | {"decimals": decimals(frame["value"])}
        )
    return entries


def tests(tables: Iterable[Table], index: Sequence[Head]) -> list[Entry]:
    """Collect the tests of roles of single heads, the first of each head and role."""
    rows = {":".join(map(str, head)): row for row, head in enumerate(index)}
    entries: dict[tuple[str, str], Entry] = {}
    for table in (table for table in tables if table.kind.part == "tests"):
        needs(table.frame, {"explained", "explained.low", "explained.high", "verdict"}, "hr.test_roles")
        for values in table.frame.reset_index().to_dict("records"):
            if (heads := values["heads"]) in rows:
                explained = numbers(values[f"explained{end}"] for end in ("", ".low", ".high"))
                entry = {"row": rows[heads], "role": values["role"], "explained": explained, "from": place(table)}
                verdict = {"verdict": values["verdict"], "mark": MARKS.get(values["verdict"], "open")}
                entries.setdefault((heads, values["role"]), entry | verdict)
    return [*entries.values()]


def budgets(tables: Iterable[Table]) -> list[Entry]:
    """Collect the cache budgets: of each group the effect of streaming, and whether it keeps its whole cache."""
    entries: list[Entry] = []
    for table in (table for table in tables if table.kind.part == "budgets"):
        needs(table.frame, {"effect", "effect.low", "effect.high", "effect.p", "retrieval"}, "hr.cache_budget")
        options = dict(fields_of(table.signatures.get("effect", "")))
        rows: list[Entry] = [
            {"layer": int(row["layer"]), "group": int(row["group"]), "kept": bool(row["retrieval"])}
            | {"effect": _interval(row, "effect"), "p": number(row["effect.p"])}
            for row in table.frame.reset_index().to_dict("records")
        ]
        seen: Entry = {name: int(options[name]) for name in ("sink", "recent") if name in options}
        entry: Entry = {"name": after_stem(table.name), "from": place(table), "rows": rows, **seen}
        entries.append(entry | {"decimals": decimals(table.frame["effect"])})
    return entries


def curves(tables: Iterable[Table]) -> list[Entry]:
    """Collect the curves of cumulative ablation, a line per ranking."""
    entries: list[Entry] = []
    for table in (table for table in tables if table.kind.part == "curves"):
        parts = ["masked", "share", "value", *BOUNDS]
        needs(table.frame, {"order", *parts}, "hr.ablation_curve")
        signature = table.signatures.get("value", "")
        lines = [
            {
                "name": label_of(name, signature),
                "points": [[int(n), *numbers(point)] for n, *point in rows[parts].to_numpy()],
            }
            for name, rows in table.frame.groupby("order", sort=False, observed=True)
        ]
        label = axis_label(signature)
        entry = {"name": table.name, "from": place(table), "label": label, "lines": lines}
        entries.append(entry | {"decimals": decimals(table.frame["value"])})
    return entries


def gates(tables: Iterable[Table], index: Sequence[Head]) -> list[Entry]:
    """Collect the probability of each gate to be open during training, in hundredths, at 40 steps at most."""
    entries: list[Entry] = []
    for table in (table for table in tables if table.kind.part == "gates"):
        needs(table.frame, {*LEVELS, "step", "open"}, "hr.prune with learned gates")
        wide = table.frame.pivot_table(index="step", columns=LEVELS, values="open", observed=True)
        rows = np.unique(np.linspace(0, len(wide) - 1, STEPS).round().astype(int))
        kept = (100 * wide.iloc[rows]).round().astype("Int64")
        heads = [kept[head].tolist() if head in kept else None for head in index]
        steps = [int(step) for step in kept.index]
        entries.append({"name": after_stem(table.name), "from": place(table), "steps": steps, "open": heads})
    return sorted(entries, key=lambda history: _by_size(str(history["name"])))


def relate(tables: Iterable[Table]) -> Entry | None:
    """Collect the relations of roles and outcomes, a row per pair; None for missing numbers."""
    table = next((table for table in tables if table.kind.part == "relate"), None)
    if table is None:
        return None
    frame = table.frame.reset_index(drop=True)
    needs(frame, {"role", "outcome"}, "hr.relate")
    shown = [name for name in ESTIMATES if name in frame]
    in_units = frame[[name for name in IN_UNITS if name in frame]]
    places = {outcome: decimals(values) for outcome, values in in_units.groupby(frame["outcome"])}
    rows = [
        {
            "role": str(row["role"]),
            "outcome": label_of(row["outcome"], table.signatures.get("p", "")),
            "direction": direction(str(row["matters"]), row["outcome"]) if "matters" in row else "",
            "note": str(row.get("note") or ""),
        }
        | {name: number(float(row[name])) for name in (*COUNTS, *TESTS) if name in frame}
        | {name: _interval(row, name) for name in shown}
        | {"decimals": {name: places[row["outcome"]] if name in IN_UNITS else 2 for name in shown}}
        for row in frame.to_dict("records")
    ]
    rows.sort(key=lambda row: row.get("difference") is None)  # rows without numbers last
    parts = {"counts": COUNTS, "columns": ESTIMATES, "tests": TESTS}
    entry: Entry = {part: [name for name in names if name in frame] for part, names in parts.items()}
    return {"from": place(table), "rows": rows, **entry}


def attention(tables: Iterable[Table], index: Sequence[Head]) -> list[Entry]:
    """Collect the example sentences: tokens of each kind, and weights of each head (`_thousandths`)."""
    table = next((table for table in tables if table.kind.part == "attention"), None)
    if table is None:
        return []
    needs(table.frame, {*LEVELS, "sentence", "text", "target", "queries", "keys", "weights"}, "hr.attention_examples")
    entries: list[Entry] = []
    for _, sentence in table.frame.groupby("sentence", sort=True):
        rows = {(row["kind"], row["layer"], row["head"]): row for row in sentence.to_dict("records")}
        first = {row["kind"]: row for row in reversed(list(rows.values()))}
        tokens = {
            kind: {"queries": list(row["queries"]), "keys": list(row["keys"]), "written": int(row.get("written", 0))}
            for kind, row in first.items()
        }
        text, target = (next(iter(rows.values()))[name] for name in ("text", "target"))
        weights = [_thousandths(rows[head]["weights"]) if head in rows else None for head in index]
        target = None if pd.isna(target) else str(target)
        entries.append({"text": str(text), "target": target, "tokens": tokens, "weights": weights})
    return entries


def signatures(tables: Iterable[Table]) -> list[Entry]:
    """Collect the provenance of each table: its columns grouped by signature."""
    entries: list[Entry] = []
    for table in tables:
        groups: dict[str, list[str]] = {}
        for column, text in table.signatures.items():
            if Column.parse(column).last not in (*BOUNDS, *TESTS):
                groups.setdefault(text, []).append(str(column))
        groups = groups or {"without a signature": list(map(str, table.frame))}
        entries.append({"place": place(table), "groups": [{"signature": k, "columns": v} for k, v in groups.items()]})
    return entries


def facts(tables: Iterable[Table]) -> dict[str, list[str]]:
    """Collect from the provenance the model's names, its weights, and the versions of headroles."""
    fields: dict[str, dict[str, None]] = {"model": {}, "weights": {}, "headroles": {}}
    of_model = [table for table in tables if table.kind.part not in ("sizes", "gates")]  # which are of pruned models
    for text in dict.fromkeys(text for table in of_model or tables for text in table.signatures.values()):
        for name, value in fields_of(text):
            if name in fields:
                fields[name][value] = None
    return {name: list(values) for name, values in fields.items()}


def _interval(row: Mapping[Hashable, float], name: str, ends: Sequence[str] | None = None) -> list[float | None] | None:
    """A value with its bounds; None if the column or the number is missing."""
    names = [name, *(ends or [f"{name}.{end}" for end in BOUNDS])]
    if name not in row or pd.isna(row[name]):
        return None
    return numbers(row.get(column, np.nan) for column in names)


def _by_size(name: str) -> tuple[str, int]:
    """Larger sizes first within a strategy."""
    stem, _, last = name.rpartition("-")
    return (stem, -int(last)) if last.isdigit() else (name, 0)


def _thousandths(weights: npt.ArrayLike) -> list[int]:
    """Round weights to thousandths; a run of n zeros, of which long texts have most, is -n."""
    rounded: list[int] = np.rint(1000 * np.asarray(weights, dtype=float)).astype(int).tolist()
    runs = [(nonzero, list(run)) for nonzero, run in groupby(rounded, bool)]
    return [weight for nonzero, run in runs for weight in (run if nonzero else [-len(run)])]
