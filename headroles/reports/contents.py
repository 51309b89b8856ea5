"""Contents of a report: its first sentences, heads, results of whole studies, and provenance (no torch)."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from headroles.analysis import role_rules
from headroles.plots import matrix, styling
from headroles.plots.labels import axis_label, column_label, direction, label_of, nearest_role, unit_of
from headroles.reports.sources import Measurement, Table, columns
from headroles.tables.columns import Column, after_stem
from headroles.tables.declared import RELATED, groups, harm, relation_costs
from headroles.tables.frame import KINDS, LEVELS, examples, fields, measured_on, spelled

Head = tuple[str, int, int]
Rows = TypeVar("Rows", pd.DataFrame, "pd.Series[Any]")
T = TypeVar("T")
Entry = dict[str, object]  # of the page's JSON
DIGITS = 7  # significant digits of a number; rounding again for display gives the same as rounding once
MAIN = (  # the first columns, and those of the table of all heads; the others are on the maps and cards
    *("confidence", "position[best]", "alignment[monotone]", "ablation[loss]", "ablation[bleu]", "ablation[accuracy]"),
    *("importance", "relevance[cp].size"),
)
LARGEST = 8  # number of columns of that table if none of these exist
STEPS = 40  # the most steps of a gate's history
BOUNDS = ("low", "high")
COSTS = ("removed", "role_pattern", "placebo_removed", "placebo_pattern")  # of a role test
COUNTS = ("with", "without")
IN_UNITS = ("difference", "median", "within")  # in the unit of the outcome
TESTS = ("p", "holm", "bh")
MARKS = dict(zip(role_rules.VERDICTS, ("whole", "part", "other"), strict=False))  # on the map of roles
SURE = 0.01  # p after correction below which an effect is counted
MISSING = {  # part of the page -> what it shows
    "scores": "scores",
    "roles": "roles",
    "tests": "tests of roles",
    "effects": "effects of ablation",
    "circuits": "scores of the weights alone (copying, succession)",
    "sizes": "models pruned to several sizes",
    "curves": "curves",
    "relate": "comparisons of roles with outcomes",
    "attention": "examples of attention",
}


def findings(data: Any) -> list[str]:
    """Say which roles heads have and are, which head matters most, and what pruning costs, as far as tables show it."""
    return [*_role_findings(data), *data.get("together", ()), *_effect_findings(data), *_pruning_findings(data)]


def holders(data: Any) -> dict[str, set[int]]:
    """Return the rows of the heads with a role of each family."""
    heads_of: dict[str, set[int]] = {}
    for role in data["roles"]:
        heads_of.setdefault(role["family"], set()).update(row for row, held in enumerate(role["held"]) if held)
    return heads_of


def _role_findings(data: Any) -> Iterator[str]:
    heads_of = holders(data)
    total, some = len(data["heads"]), len(set[int]().union(*heads_of.values()))
    if some:
        on = {role["family"]: role["on"] for role in reversed(data["roles"])}
        counts = measured_on((f"{len(rows)} {family}", on[family]) for family, rows in heads_of.items() if rows)
        yield f"{some} of {total} heads have a role: {counts}."
    elif heads_of:
        yield f"None of the {total} heads has a role{data.get('nearest') or ''}."
    if heads_of:
        yield f"Roles that were measured: {', '.join(heads_of)}."


def _effect_findings(data: Any) -> Iterator[str]:
    single = (column for column in data["columns"] if column["harm"] and unit_of(column["name"]) is None)
    column: Any = next(single, {"values": []})
    known = [(value, row) for row, value in enumerate(column["values"]) if value is not None]
    if not known:
        return
    value, row = max(known)
    place = spelled(*data["heads"][row], one_kind=len(data["kinds"]) == 1)
    cost = _signed(value, column["decimals"])
    if "low" in column:
        cost += " [" + ", ".join(_signed(column[end][row], column["decimals"]) for end in BOUNDS) + "]"
    tested = [p for p in column.get("holm", ()) if p is not None]
    sure = sum(p < SURE for p in tested)
    if tested and not sure:
        where = f"On {column['on']} no head has a sure {column['label']}"
        yield f"{where} (p < {SURE:g}, corrected); most without {place}: {cost}."
        return
    text = f"On {column['on']} most is lost without {place} ({column['label']}, as a cost: {cost})"
    if tested:
        text += f"; ablating changes it surely for {sure} of {len(known)} heads (p < {SURE:g}, corrected)"
    yield f"{text}."


def _pruning_findings(data: Any) -> Iterator[str]:
    for pruning in data["prunings"][:3]:
        size = pruning["sizes"][-1]
        if lost := lost_roles(holders(data), {row for row, held in enumerate(size["held"]) if not held}):
            left = f"{size['size']} of {pruning['of']} heads left ({pruning['name']})"
            yield f"Pruned to {left}, the removed heads include {lost}."
    for sizes in data["sizes"]:
        row = sizes["rows"][-1]
        if row["change"] is not None and len(sizes["rows"]) > 1:
            left = f"{row['heads']} of {sizes['of']} heads left ({sizes['name']})"
            yield f"Pruned to {left}, {sizes['label']} changes by {_signed(row['change'][0], sizes['decimals'])}."


def lost_roles(heads_of: Mapping[str, Collection[T]], removed: Collection[T]) -> str:
    """Count the heads of each role among the removed ones: "2 of 5 induction, 1 of 1 positional"; "" for none."""
    counts = {role: sum(head in removed for head in heads) for role, heads in heads_of.items()}
    return ", ".join(f"{count} of {len(heads_of[role])} {role}" for role, count in counts.items() if count)


def _signed(value: float, places: int) -> str:
    return f"{value:+.{places}f}".replace("-", "−")


def measured(tables: Iterable[Table], index: Sequence[Head]) -> tuple[list[Entry], list[tuple[str, Table]]]:
    """Collect every measurement of every head, and the columns that an earlier table had."""
    measurements, duplicates = columns(table for table in tables if table.kind.per_head)
    shown = [entry_of(column, index) for column in measurements if column.parts[""].notna().any()]
    shown.sort(key=lambda column: [*MAIN, column["name"]].index(column["name"]))
    names = [column["name"] for column in shown]
    main = [name for name in names if name in MAIN] or names[:LARGEST]
    return [column | {"main": column["name"] in main} for column in shown], duplicates


def shared(tables: Iterable[Table], index: Sequence[Head]) -> list[str | None]:
    """Describe for each head which heads share its keys and values."""
    candidates = (groups(table.frame) for table in tables if table.kind.part == "scores")
    assigned = next((column for column in candidates if column is not None), pd.Series(dtype=int))
    group = {head: (*head[:2], number) for head, number in zip(assigned.index, assigned, strict=True)}
    peers = {head: [peer[2] for peer in group if peer != head and group[peer] == group[head]] for head in group}
    return [
        f"shares its keys and values with head{'s' * (len(peers[head]) > 1)} {listed(peers[head])}"
        if peers.get(head)
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
        rows = role_rules.listed(roles_shown, lambda role: matrix.short(role, *frames))
        doubted = {row[:4] for row in rows[rows["unsure"]].itertuples(index=False, name=None)}
        for name in role_rules.names(frame):
            if name not in assigned and frame[f"{name}.value"].notna().any():
                values, stability = (numbers(frame[f"{name}.{part}"]) for part in ("value", "stability"))
                held = [int(value) for value in frame[name].fillna(value=False).astype(bool)]
                assigned[name] = {
                    **{"name": name, "short": matrix.short(name, *frames), "family": Column.parse(name).name},
                    **{"from": place(table), "held": held, "values": values, "stability": stability},
                    "unsure": [row for row, head in enumerate(index) if (*head, name) in doubted],
                    "on": examples(table.signatures.get(name, "")),
                }
    hues = styling.colours((Column.parse(name).name for name in assigned), *frames)
    legend = [
        {"family": name, "colour": to_hex(hue), "about": role_rules.role_style(name, *frames).about.replace("\n", " ")}
        for name, hue in hues.items()
    ]
    nearest = next((f"; {text}" for text in map(nearest_role, frames) if text), "")
    quiet = any(len(frame.columns) < len(table.frame.columns) for table, frame in zip(shown, frames, strict=True))
    facts: Entry = {"stable": role_rules.STABLE, "quiet": quiet, "nearest": nearest}
    return {"roles": [*assigned.values()], "families": legend, **facts}


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
        entry["unit"] = pruned.unit
        pruning = collected.setdefault((strategy, *kinds), entry | {"sizes": []})
        size = int(along(left, prunable).sum())  # heads, also where groups are counted
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
    if len(runs) == 2 and runs[0][0]:
        return f"kept with {runs[0][1][-1]} heads, pruned with {runs[1][1][0]}"
    return ", ".join(
        f"{'kept' if kept else 'pruned'}{' again' if place > 1 else ''} with {listed(counts)} heads"
        for place, (kept, counts) in enumerate(runs)
    )


def sizes(tables: Iterable[Table]) -> Iterator[Entry]:
    """Collect the quality of models pruned to several sizes, a row per size, the whole model first."""
    for table in (table for table in tables if table.kind.part == "sizes"):
        frame = table.frame
        rows = [
            {"heads": int(row["heads"]), "left": [int(row[kind]) for kind in KINDS if kind in frame]}
            | {"value": _interval(row, "value", BOUNDS), "change": _interval(row, "change")}
            | {"undecided": int(row["undecided"]) if "undecided" in frame else None}
            for row in frame.to_dict("records")
        ]
        yield (
            {"name": after_stem(table.name).replace("-", " ", 1), "from": place(table)}
            | {"label": axis_label(table.signatures.get("value", "")), "of": int(frame["of"].iloc[0])}
            | {"kinds": [kind for kind in KINDS if kind in frame], "rows": rows}
            | {"decimals": decimals(frame["value"])}
        )


def tests(tables: Iterable[Table], index: Sequence[Head]) -> list[Entry]:
    """Collect the tests of roles of single heads, the first of each head and role."""
    rows = {":".join(map(str, head)): row for row, head in enumerate(index)}
    entries: dict[tuple[str, str], Entry] = {}
    for table in (table for table in tables if table.kind.part == "tests"):
        for values in table.frame.reset_index().to_dict("records"):
            if (heads := values["heads"]) in rows:
                explained = numbers(values[f"explained{end}"] for end in ("", ".low", ".high"))
                entry = {"row": rows[heads], "role": values["role"], "explained": explained, "from": place(table)}
                entry |= {"costs": numbers(values.get(name, math.nan) for name in COSTS)}
                verdict = {"verdict": values["verdict"], "mark": MARKS.get(values["verdict"], "open")}
                verdict["on"] = examples(table.signatures.get("removed", ""))
                entries.setdefault((heads, values["role"]), entry | verdict)
    return [*entries.values()]


def tested_together(tables: Iterable[Table]) -> Iterator[str]:
    """Say of all heads with a role together whether the role is what they do."""
    for table in (table for table in tables if table.kind.part == "tests"):
        for row in table.frame.reset_index().to_dict("records"):
            if row["heads"].startswith("all ") and row["role"] != "all":
                costs = "{:.3g}, under exactly this pattern {:.3g}".format(*(row[name] for name in COSTS[:2]))
                if not math.isnan(row.get(COSTS[2], math.nan)):
                    costs += ", as many other heads {:.3g} and {:.3g}".format(*(row[name] for name in COSTS[2:]))
                where = examples(table.signatures.get("removed", ""))
                heads = f"{row['heads'].capitalize()} heads with the pattern {row['role']}"
                yield f"{heads} together: {row['verdict']}; removed they cost {costs} (on {where})."


def budgets(tables: Iterable[Table]) -> Iterator[Entry]:
    """Collect the cache budgets: for each group the effect of streaming, and whether it keeps its whole cache."""
    for table in (table for table in tables if table.kind.part == "budgets"):
        options = dict(fields(table.signatures.get("effect", "")))
        rows: list[Entry] = [
            {"layer": int(row["layer"]), "group": int(row["group"]), "kept": bool(row["retrieval"])}
            | {"effect": _interval(row, "effect"), "p": number(row["effect.p"])}
            for row in table.frame.reset_index().to_dict("records")
        ]
        seen: Entry = {name: int(options[name]) for name in ("sink", "recent") if name in options}
        entry: Entry = {"name": after_stem(table.name), "from": place(table), "rows": rows, **seen}
        yield entry | {"decimals": decimals(table.frame["effect"])}


def curves(tables: Iterable[Table]) -> Iterator[Entry]:
    """Collect the curves of cumulative ablation, a line per ranking."""
    for table in (table for table in tables if table.kind.part == "curves"):
        parts = ["masked", "share", "value", *BOUNDS]
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
        yield entry | {"decimals": decimals(table.frame["value"])}


def gates(tables: Iterable[Table], index: Sequence[Head]) -> list[Entry]:
    """Collect the probability of each gate to be open during training, in hundredths, at 40 steps at most."""
    entries: list[Entry] = []
    for table in (table for table in tables if table.kind.part == "gates"):
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
    frame = relation_costs(table.frame.reset_index(drop=True))
    places = {outcome: decimals(values) for outcome, values in frame[[*IN_UNITS]].groupby(frame["outcome"])}
    rows = [
        {
            "role": str(row["role"]),
            "outcome": label_of(row["outcome"], table.signatures.get("p", "")),
            "direction": direction(str(row["matters"]), row["outcome"]) if "matters" in row else "",
            "note": str(row["note"]),
        }
        | {name: number(float(row[name])) for name in (*COUNTS, *TESTS)}
        | {name: _interval(row, name) for name in RELATED}
        | {"decimals": {name: places[row["outcome"]] if name in IN_UNITS else 2 for name in RELATED}}
        for row in frame.to_dict("records")
    ]
    rows.sort(key=lambda row: row["difference"] is None)  # rows without numbers last
    return {"from": place(table), "rows": rows, "counts": COUNTS, "columns": RELATED, "tests": TESTS}


def attention(tables: Iterable[Table], index: Sequence[Head]) -> list[Entry]:
    """Collect the example sentences: tokens of each kind, and weights of each head (`_thousandths`)."""
    table = next((table for table in tables if table.kind.part == "attention"), None)
    if table is None:
        return []
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
        sound = next((row for row in rows.values() if row.get("widths") is not None), None)
        parts = None if sound is None else {name: list(map(float, sound[name])) for name in ("widths", "loudness")}
        entries.append({"text": str(text), "target": target, "tokens": tokens, "weights": weights, "sound": parts})
    return entries


def signatures(tables: Iterable[Table]) -> Iterator[Entry]:
    """Collect the provenance of each table: its columns grouped by signature."""
    for table in tables:
        grouped: dict[str, list[str]] = {}
        for column, text in table.signatures.items():
            if Column.parse(column).last not in (*BOUNDS, *TESTS):
                grouped.setdefault(text, []).append(str(column))
        grouped = grouped or {"without a signature": list(map(str, table.frame))}
        yield {"place": place(table), "groups": [{"signature": k, "columns": v} for k, v in grouped.items()]}


def facts(tables: Iterable[Table]) -> dict[str, list[str]]:
    """Collect from the provenance the model's names, its weights, and the versions of headroles."""
    names: dict[str, dict[str, None]] = {"model": {}, "weights": {}, "headroles": {}}
    of_model = [table for table in tables if table.kind.part not in ("sizes", "gates")]  # which are of pruned models
    for text in dict.fromkeys(text for table in of_model or tables for text in table.signatures.values()):
        for name, value in fields(text):
            if name in names:
                names[name][value] = None
    return {name: list(values) for name, values in names.items()}


def _interval(row: Mapping[Hashable, float], name: str, ends: Sequence[str] | None = None) -> list[float | None] | None:
    """Return a value with its bounds; None if the column or the number is missing."""
    names = [name, *(ends or [f"{name}.{end}" for end in BOUNDS])]
    if name not in row or pd.isna(row[name]):
        return None
    return numbers(row.get(column, np.nan) for column in names)


def _by_size(name: str) -> tuple[str, int]:
    """Return a sort key: larger sizes first within a strategy."""
    stem, _, last = name.rpartition("-")
    return (stem, -int(last)) if last.isdigit() else (name, 0)


def _thousandths(weights: npt.ArrayLike) -> list[int]:
    """Round weights to thousandths; a run of n zeros, frequent in long texts, is -n."""
    rounded: list[int] = np.rint(1000 * np.asarray(weights, dtype=float)).astype(int).tolist()
    runs = [(nonzero, list(run)) for nonzero, run in groupby(rounded, bool)]
    return [weight for nonzero, run in runs for weight in (run if nonzero else [-len(run)])]


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
    """Return a measurement for the page's script: names, unit, values, ranks, intervals and tests."""
    values = along(column.parts[""], index).astype(float)
    signature = column.table.signatures.get(column.name, "")
    label, sign = column_label(column.name, signature), harm(column.name, signature)
    bounds = {part: along(column.parts[part], index) for part in BOUNDS if part in column.parts}
    if sign < 0:  # a cost, as everywhere
        values, bounds = 0 - values, {part: -bounds[BOUNDS[part == "low"]] for part in bounds}
    finite = values[np.isfinite(values)]
    entry = {
        "name": column.name,
        "group": label.group,
        "label": label.label,
        "about": label.about,
        "from": place(column.table),
        "on": examples(signature),
        "decimals": decimals(values),
        "range": [number(finite.min()), number(finite.max())] if len(finite) else [None, None],
        "harm": abs(sign),
        "values": numbers(values),
        **_ranks(values),
    }
    shown = ("p", "holm", "bh", "words", "baseline")
    beside = {part: numbers(along(column.parts[part], index)) for part in shown if part in column.parts}
    return entry | {part: numbers(ends) for part, ends in bounds.items()} | beside


def _ranks(values: pd.Series[float]) -> Entry:
    """Rank each head within its kind (first and last of ties; 1 is the largest), unless all have the same value."""
    kinds = values.index.get_level_values(0)
    counted = values.groupby(kinds).count()
    varied = values.where(values.groupby(kinds).transform("nunique") > 1)
    first, last = (varied.groupby(kinds).rank(ascending=False, method=end) for end in ("min", "max"))
    return {
        "rank": [None if math.isnan(low) else [int(low), int(high)] for low, high in zip(first, last, strict=True)],
        "of": {str(kind): int(counted[kind]) for kind in KINDS if kind in counted},
    }


def listed(items: Sequence[int]) -> str:
    """Join numbers: 1, 2 and 3."""
    first, last = ", ".join(map(str, items[:-1])), str(items[-1])
    return f"{first} and {last}" if first else last
