"""Parse command-line argument strings: scores, thresholds, heads, kinds, numbers of heads, strategies."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any


def opened(model: str, device: str | None, *, submodel: Any = None, dtype: str | None = None) -> tuple[Any, Any]:
    """Load a model onto a device, or with "auto" onto all available ones, and its tokenizer."""
    from headroles.models.loading import load, place

    options: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    if device == "auto":
        return load(model, submodel=submodel, device_map="auto", **options)
    loaded, tokenizer = load(model, submodel=submodel, **options)
    return place(loaded, device), tokenizer


def study_of(folder: Path, *, overwrite: bool = False) -> Any:
    """Open the study of a command and check that it can be written before a model is loaded."""
    from headroles.tables.study import Study

    study = Study(folder, overwrite=overwrite)
    study.check_writable()
    return study


def scores_of(scores: str, rules: str) -> list[Any]:
    """Return the scores of a comma-separated list, relevance by each rule set of another list."""
    from headroles.scores import Relevance

    named: Any = [rule.strip() for rule in rules.split(",")]
    parsed: list[Any] = []
    for name in (name.strip() for name in scores.split(",")):
        parsed += [Relevance(rules=rule) for rule in named] if name == "relevance" else [name]
    return parsed


def assignment(text: str) -> tuple[str, float]:
    """Return the name and the number of a text such as positional=0.8; raise ValueError for another form."""
    name, _, value = text.partition("=")
    with contextlib.suppress(ValueError):
        if not math.isnan(number := float(value)):
            return name, number
    raise ValueError(f"threshold {text!r} is not of the form role=number, such as positional=0.8")


def heads_of(text: str) -> Any:
    """Return the heads of a text, such as enc-self:0:2,cross:1:0, or of a column of a survival table.

    Args:
        text: Heads, or FILE:COLUMN of a survival table; FILE alone if it has one such column.

    Returns:
        The heads, or the column of heads that are kept (1) or pruned (0).

    Raises:
        ValueError: For another form, and for a file with several columns without a name.
    """
    from headroles.tables.io import load_table

    file, mark, column = text.partition(".parquet")
    if not mark:
        return [head_of(part) for part in text.split(",")]
    table = load_table(f"{file}{mark}")
    columns = [name for name in map(str, table) if not name.endswith((".open", ".turn"))]
    columns = [name for name in columns if set(table[name].unique()) <= {0.0, 1.0}]
    name = column.removeprefix(":") or (columns[0] if len(columns) == 1 else "")
    if name in columns:
        return table[name]
    if not columns:
        raise ValueError(
            f"{file}{mark} has no column of kept (1) and pruned (0) heads; give a table of headroles prune"
        )
    what = f"no column {name!r} of pruned heads" if name else f"{len(columns)} columns of pruned heads"
    raise ValueError(f"{what} in {file}{mark}; name one of {', '.join(columns)}, as {file}{mark}:{columns[0]}")


def pairs_of(text: str) -> Any:
    """Read the sentence pairs of a table of two columns, or of two files separated by a comma."""
    from headroles.data.readers import read

    source, comma, target = text.partition(",")
    return read(source, target) if comma else read(source)


def strategy_named(name: str, gate_rate: float | None, freeze: Any, role_scores: Path | None) -> Any:
    """Return the strategy of a name: gates with their options, roles from a score table."""
    from headroles.pruning.l0 import L0, SubsetSelection
    from headroles.pruning.rankings import ByRoles
    from headroles.tables.io import load_table

    if name in ("l0", "exactly"):
        return (L0 if name == "l0" else SubsetSelection)(rate=gate_rate, freeze=freeze)
    return ByRoles(load_table(role_scores)) if name == "roles" and role_scores is not None else name


def numbers(text: str) -> list[float]:
    """Parse numbers of heads, or shares; raise ValueError for other text."""
    try:
        return [float(number) if "." in number else int(number) for number in text.split(",")]
    except ValueError:
        raise ValueError(
            f"expected numbers of heads or shares with commas between, as 0.5,0.25; got {text!r}"
        ) from None


def shares(text: str) -> tuple[float, ...]:
    """Parse shares of heads; raise ValueError for other text."""
    return tuple(map(float, numbers(text)))


def kinds_of(text: str | None) -> Any:
    """Parse kinds of heads; None: all."""
    return None if text is None else [kind.strip() for kind in text.split(",")]


def head_of(text: str) -> Any:
    """Parse a head such as enc-self:0:2; raise ValueError for another form."""
    parts = text.strip().split(":")
    if len(parts) != 3 or not (parts[1].isdigit() and parts[2].isdigit()):
        raise ValueError(f"head {text!r} is not of the form kind:layer:head, such as enc-self:0:2")
    return parts[0], int(parts[1]), int(parts[2])
