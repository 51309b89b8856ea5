"""What the arguments of commands say: scores, thresholds, heads, kinds, numbers of heads, strategies."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any


def opened(model: str, device: str | None, *, submodel: Any = None, dtype: str | None = None) -> tuple[Any, Any]:
    """The model that a command names, where it is asked for, and its tokenizer; "auto": over all devices there are."""
    from headroles.models.loading import load, place

    options: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    if device == "auto":
        return load(model, submodel=submodel, device_map="auto", **options)
    loaded, tokenizer = load(model, submodel=submodel, **options)
    return place(loaded, device), tokenizer


def study_of(folder: Path, *, overwrite: bool = False) -> Any:
    """The study that a command will write, found to be writable before a model is loaded."""
    from headroles.tables.study import Study

    study = Study(folder, overwrite=overwrite)
    study.check_writable()
    return study


def scores_of(scores: str, rules: str) -> list[Any]:
    """The scores of a list with commas, relevance by each rule set of another."""
    from headroles.scores import Relevance

    found: list[Any] = []
    for name in (name.strip() for name in scores.split(",")):
        each: Any = [rule.strip() for rule in rules.split(",")]
        found += [Relevance(rules=rule) for rule in each] if name == "relevance" else [name]
    return found


def assignment(text: str) -> tuple[str, float]:
    """The role and the number of a text such as positional=0.8. Raises ValueError for another form."""
    name, _, value = text.partition("=")
    with contextlib.suppress(ValueError):
        if not math.isnan(number := float(value)):
            return name, number
    raise ValueError(f"threshold {text!r} is not of the form role=number, such as positional=0.8")


def heads_of(text: str) -> Any:
    """The heads of a text such as enc-self:0:2,cross:1:0; or those that go by a column of a table, FILE:COLUMN or FILE.

    Raises ValueError for another form, and for a FILE with several columns of which none is named.
    """
    from headroles.tables.io import load_table

    file, mark, column = text.partition(".parquet")
    if not mark:
        return [head_of(one) for one in text.split(",")]
    table = load_table(f"{file}{mark}")
    columns = [name for name in map(str, table) if not name.endswith((".open", ".turn"))]
    columns = [name for name in columns if set(table[name].unique()) <= {0.0, 1.0}]
    name = column.removeprefix(":") or (columns[0] if len(columns) == 1 else "")
    if name in columns:
        return table[name]
    if not columns:
        raise ValueError(f"{file}{mark} has no column of heads that stay (1) or go (0); give one of headroles prune")
    what = f"no column {name!r} of heads that go (0)" if name else f"{len(columns)} columns of heads that go"
    raise ValueError(f"{what} in {file}{mark}; name one of {', '.join(columns)}, as {file}{mark}:{columns[0]}")


def pairs_of(text: str) -> Any:
    """The sentence pairs of a table of two columns, or of two files with a comma between."""
    from headroles.data.readers import read

    source, comma, target = text.partition(",")
    return read(source, target) if comma else read(source)


def strategy_named(name: str, gate_rate: float | None, freeze: Any, told: Path | None) -> Any:
    """The strategy of a name, gates with their options, roles from a table of scores."""
    from headroles.pruning.l0 import L0, SubsetSelection
    from headroles.pruning.rankings import ByRoles
    from headroles.tables.io import load_table

    if name in ("l0", "exactly"):
        return (L0 if name == "l0" else SubsetSelection)(rate=gate_rate, freeze=freeze)
    return ByRoles(load_table(told)) if name == "roles" and told is not None else name


def numbers(text: str) -> list[float]:
    """Numbers of heads, or shares. Raises ValueError for what are none."""
    try:
        return [float(one) if "." in one else int(one) for one in text.split(",")]
    except ValueError:
        raise ValueError(
            f"expected numbers of heads or shares with commas between, as 0.5,0.25; got {text!r}"
        ) from None


def shares(text: str) -> tuple[float, ...]:
    """Shares of heads. Raises ValueError for what are none."""
    return tuple(map(float, numbers(text)))


def kinds_of(text: str | None) -> Any:
    """Kinds of heads; None: all."""
    return None if text is None else [one.strip() for one in text.split(",")]


def head_of(text: str) -> Any:
    """The head of a text such as enc-self:0:2. Raises ValueError for another form."""
    parts = text.strip().split(":")
    if len(parts) != 3 or not (parts[1].isdigit() and parts[2].isdigit()):
        raise ValueError(f"head {text!r} is not of the form kind:layer:head, such as enc-self:0:2")
    return parts[0], int(parts[1]), int(parts[2])
