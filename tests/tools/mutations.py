"""What may be changed in a file of the library, one at a time, and a table of what became of it (`mutants.py`)."""

from __future__ import annotations

import argparse
import ast
import copy
import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "tril": "triu", "triu": "tril", "argmax": "argmin"} | {
    **{"argmin": "argmax", "amax": "amin", "fmax": "fmin", "ones": "zeros", "zeros": "ones", "ones_like": "zeros_like"},
    **{"zeros_like": "ones_like", "sorted": "list", "mean": "sum", "setdefault": "get"},
}
LEFT_OUT = {"abs", "clamp", "detach", "double", "float", "sign_", "cpu", "to", "astype", "int", "bool", "removesuffix"}

COLUMNS = ("module", "where", "line", "text", "before", "after", "number", "ended", "by", "seconds")
KEY = ("module", "where", "text", "before", "after", "number")  # lines may move


def mutants(module: str, path: Path) -> Iterator[tuple[dict[str, object], ast.Module]]:
    """Each mutant of a file: what it is, and its syntax tree."""
    tree, lines = ast.parse(path.read_text()), path.read_text().splitlines()
    seen: Counter[tuple[str, ...]] = Counter()
    for parent, name, place, where in list(walked(tree, "")):
        held = getattr(parent, name)
        node = held if place is None else held[place]
        for new in changes(node):
            line = getattr(node, "lineno", getattr(parent, "lineno", 0))
            what = (module, where.strip("."), line, lines[line - 1].strip(), shown(node), shown(new))
            row = dict(zip(("module", "where", "line", "text", "before", "after"), what, strict=True))
            same = tuple(value for name, value in row.items() if name != "line")
            row["number"] = seen[same]
            seen[same] += 1
            put(parent, name, place, new)
            yield row, ast.fix_missing_locations(copy.deepcopy(tree))
            put(parent, name, place, node)


def put(parent, name, place, node):
    if place is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[place] = node


def shown(node: ast.AST) -> str:
    if isinstance(node, ast.If | ast.While):
        node = node.test
    if isinstance(node, ast.comprehension):
        return f"if {' '.join(map(ast.unparse, node.ifs))}"
    return " ".join(ast.unparse(node).split())


def walked(node: ast.AST, where: str) -> Iterator[tuple[ast.AST, str, int | None, str]]:
    """Every node that may be changed: its parent, the field it is in, its place there, the function it is in."""
    inside = where + f".{node.name}" if isinstance(node, ast.FunctionDef | ast.ClassDef) else where
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "names", "type", "ctx", "op", "ops"):
            continue
        for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not _no_code(child):
                yield node, name, place, inside
                yield from walked(child, inside)


def _no_code(node: ast.AST) -> bool:
    """A docstring, the names that are public, what only types need."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    types = ("Literal[", "npt.", "Mapping[", "__all__", "dict[str, Tensor]")
    return isinstance(node, ast.Assign) and any(one in ast.unparse(node) for one in types)


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What a node is changed into, one after the other."""
    kind = type(node)
    if kind is ast.Compare:
        for place, one in enumerate(node.ops):
            yield changed(node, ops=[*node.ops[:place], SWAPS[type(one)](), *node.ops[place + 1 :]])
    if kind in (ast.BinOp, ast.BoolOp, ast.AugAssign) and type(node.op) in SWAPS:
        yield changed(node, op=SWAPS[type(node.op)]())
    if kind is ast.UnaryOp:
        yield node.operand
    if kind is ast.Constant and node.value not in (None, ...):
        yield ast.Constant(other(node.value))
    if kind in (ast.If, ast.IfExp) and not isinstance(node.test, ast.Compare | ast.UnaryOp):
        yield changed(node, test=ast.UnaryOp(ast.Not(), node.test))
    if kind is ast.Return and node.value is not None and ast.unparse(node.value) != "None":
        yield ast.Return(ast.Constant(None))
    if kind in (ast.AugAssign, ast.Raise, ast.Continue) or (kind is ast.Expr and isinstance(node.value, ast.Call)):
        yield ast.Pass()
    if kind is ast.Call:
        for place in range(len(node.keywords)):
            yield changed(node, keywords=node.keywords[:place] + node.keywords[place + 1 :])
        if isinstance(node.func, ast.Attribute) and node.func.attr in LEFT_OUT:
            yield node.func.value
    if kind is ast.Name and node.id in NAMES and isinstance(node.ctx, ast.Load):
        yield changed(node, id=NAMES[node.id])
    if kind is ast.Attribute and node.attr in NAMES:
        yield changed(node, attr=NAMES[node.attr])
    if kind is ast.comprehension and node.ifs:
        yield changed(node, ifs=[])


def changed(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def other(value: object) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, str | bytes):
        return "XX" + value if isinstance(value, str) else b"XX" + value
    if isinstance(value, float):
        return (value * 10 if abs(value) < 1e-3 else value * 1.1) or 1.0
    return value + 1


def done(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {key(row): row for row in csv.DictReader(file)}


def key(row: dict) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in KEY)


def change(row: dict) -> tuple[str, ...]:
    """A mutant wherever its line has moved to."""
    return tuple(str(row[name]) for name in ("text", "before", "after", "number"))


def again(row: dict) -> bool:
    return row["ended"] != "killed"


def noted(rows: dict, whole: dict[str, int], asked: argparse.Namespace):
    """Write the table, and the counts with the survivors."""
    asked.output.mkdir(parents=True, exist_ok=True)
    table = sorted(rows.values(), key=lambda row: (list(whole).index(row["module"]), int(row["line"]), key(row)))
    with (asked.output / "mutants.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    path = asked.output / "mutation.json"
    known = json.loads(path.read_text())["survivors"] if path.exists() else []
    reasons = {key(one): one["reason"] for one in known}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in table:
        counts[row["module"]][row["ended"]] += 1
    told = {name: {"mutants": whole[name], "run": sum(counts[name].values()), **counts[name]} for name in whole}
    left = [
        {name: row[name] for name in COLUMNS[:8]} | {"reason": reasons.get(key(row), "")} for row in table if again(row)
    ]
    total = sum(map(Counter, told.values()), Counter())
    found = {"seed": asked.seed, "seconds": asked.seconds, "total": total, "files": told, "survivors": left}
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False))
