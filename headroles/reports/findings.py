"""Findings: the first sentences of a report, and the sentence of each part that its tables lack (no torch)."""

from __future__ import annotations

from typing import Any

from headroles.plots.labels import unit_of

SURE = 0.01  # p after correction below which an effect is counted
MISSING = {  # part of the page -> the sentence around the command that makes it
    "scores": ("There are no scores in these tables", "makes them"),
    "roles": ("No roles are in these tables", "assigns them by scores"),
    "tests": ("Whether a role is what a head does is not tested in these tables", "tests it"),
    "effects": ("No ablation is in these tables", "makes it"),
    "circuits": ("Nothing that the weights alone say (copying, succession) is in these tables", "in Python makes it"),
    "sizes": ("No model pruned to several sizes is in these tables", "makes it"),
    "curves": ("No curves are in these tables", "makes them"),
    "relate": ("No comparison of roles with outcomes is in these tables", "makes it"),
    "attention": ("There is no attention on example sentences", "makes it"),
}


def findings(data: Any) -> list[str]:
    """Say how many heads have which role, which head matters most, and what pruning costs, as far as tables have it."""
    return [*_roles(data), *_effects(data), *_pruned(data)]


def _roles(data: Any) -> list[str]:
    if not data["roles"]:
        return []
    of = len(data["heads"])
    families: dict[str, set[int]] = {}
    for role in data["roles"]:
        families.setdefault(role["family"], set()).update(row for row, held in enumerate(role["held"]) if held)
    counts = [f"{len(rows)} {family}" for family, rows in families.items() if rows]
    some = len(set[int]().union(*families.values()))
    text = f"{some} of {of} heads have a role: {', '.join(counts)}." if some else f"None of the {of} heads has a role."
    return [text]


def _effects(data: Any) -> list[str]:
    single = (column for column in data["columns"] if column["harm"] and unit_of(column["name"]) is None)
    column = next(single, None)
    known = [] if column is None else [(value, row) for row, value in enumerate(column["values"]) if value is not None]
    if not known or column is None:
        return []
    value, row = max(known, key=lambda pair: column["harm"] * pair[0])
    words = f"{column['label']} {value:+.{column['decimals']}f}".replace("-", "−")
    kind, layer, head = data["heads"][row]
    place = f"layer {layer} head {head}" + (f" of {data['kinds'][kind]}" if len(data["kinds"]) > 1 else "")
    text = f"Most is lost without {place} ({words})"
    if "holm" in column:
        sure = sum(p is not None and p < SURE for p in column["holm"])
        text += f"; ablating changes it surely for {sure} of {len(known)} heads (p < {SURE:g}, corrected)"
    return [f"{text}."]


def _pruned(data: Any) -> list[str]:
    sentences = []
    for sizes in data["sizes"]:
        row = sizes["rows"][-1]
        if row["change"] is not None and len(sizes["rows"]) > 1:
            change = f"{row['change'][0]:+.{sizes['decimals']}f}".replace("-", "−")
            left = f"{row['heads']} of {sizes['of']} heads left ({sizes['name']})"
            sentences.append(f"Pruned to {left}, {sizes['label']} changes by {change}.")
    return sentences
