"""Names that may be typed, read from the source of the library: a wrong one fails before PyTorch is loaded."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headroles.cli.signatures import PACKAGE, signature
from headroles.tables.names import unknown


def check_typed(given: Mapping[str, Any]) -> None:
    """Raise ValueError for a score or metric that nobody knows, and OSError for a file in place of a model."""
    from headroles.tables.io import check_no_file

    for parameter, (what, known) in {
        "scores": ("score", scores),
        "metric": ("metric", metrics),
        "metrics": ("metric", metrics),
    }.items():
        typed = given.get(parameter)
        for name in typed.split(",") if isinstance(typed, str) else ():
            if name.strip() not in (names := known()) and not name.strip().startswith("bleu-"):
                raise ValueError(unknown(what, name.strip(), names))
    if given.get("model") is not None:
        check_no_file(given["model"])


def scores() -> list[str]:
    """Return the names of all scores: their classes in lower case."""
    bases = {"Score", "GradientScore"}
    files = sorted((PACKAGE / "scores").rglob("*.py"))
    return sorted(name for path in files for name in _named(path, bases))


def metrics() -> list[str]:
    """Return the names of metrics, then of objectives."""
    from headroles.tables.declared import METRICS

    return list(dict.fromkeys([*METRICS, *signature("attribute").parameters["objective"].choices]))


def _named(path: Path, bases: set[str]) -> Iterator[str]:
    """Yield the names of the scores in a file: what their method `name` returns, else the class in lower case."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} & bases - {node.name}:
            texts = [
                ast.literal_eval(line.value)
                for method in node.body
                if isinstance(method, ast.FunctionDef) and method.name == "name"
                for line in method.body
                if isinstance(line, ast.Return) and isinstance(line.value, ast.Constant)
            ]
            yield texts[0] if texts else node.name.lower()
