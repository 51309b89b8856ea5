"""Roles: named predicates over the columns of a score table, and how stable they are (no torch)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headroles.tables import frame

Values = npt.NDArray[np.floating[Any]]
ROUNDING = 1e-9  # so that .594 over a baseline of .494 is .10
COARSE = 2**-13  # the same for resamples, which are kept to 13 significant bits


@dataclass(frozen=True)
class Role:
    """A head has the role if a column reaches a threshold; with `over`, the column minus `column + over` does.

    `column` is a regular expression; its group, if it has one, tells the role's variants apart: `positional[-1]`.
    """

    name: str
    column: str
    threshold: float
    over: str | None = None
    strictly: bool = False  # whether the threshold itself is not enough

    def variants(self, columns: Iterable[str]) -> Iterator[tuple[str, str]]:
        """The role's variants among `columns`: (variant, column)."""
        for column in columns:
            if (found := re.fullmatch(self.column, column)) is not None:
                yield (f"{self.name}[{found[1]}]" if found.groups() else self.name), column

    def holds(self, values: Values, baseline: Values | float, *, rounding: float = ROUNDING) -> npt.NDArray[np.bool_]:
        """Whether values reach the threshold (over a baseline, if the role has one); NaN does not."""
        margin = values - baseline - self.threshold
        held: npt.NDArray[np.bool_] = margin > rounding if self.strictly else margin >= -rounding
        return held


ROLES = (
    Role("positional", r"position\[([+-]1)\]", 0.90),  # Voita et al. 2019, section 5.1
    Role("syntactic", r"syntax\[([^\]]+)\]", 0.10, over=".baseline"),  # section 5.2
    Role("rare", r"rarity", 0.50, strictly=True),  # section 5.3; "more than 50 %" is the authors' slides'
    Role("sink", r"sink\[(special|first)\]", 0.50, strictly=True),  # Clark et al. 2019: "over half"
    Role("alignment", r"alignment\[(monotone)\]", 0.50),  # our choice
    Role("induction", r"induction", 0.50, strictly=True),  # Olsson et al. 2022 have no threshold: over half, as a sink
    Role("duplicate", r"duplicate", 0.50, strictly=True),  # Wang et al. 2022; the same
)


def roles(
    table: pd.DataFrame, roles: Iterable[Role] = ROLES, *, thresholds: Mapping[str, float] | None = None
) -> pd.DataFrame:
    """Which heads have which roles: a bool column for each variant of a role, its `.value`, `.margin` and `.stability`.

    `value` is the score the role rests on, `margin` how far it is above the threshold; `stability` is the share of the
    table's bootstrap resamples in which the
    head has the role (NaN without resamples). `thresholds` replaces those of the roles it names. Raises ValueError for
    a threshold of an unknown role, where a baseline is missing and where no role can be told from the table's columns.
    """
    chosen = _with_thresholds(list(roles), thresholds or {})
    columns: dict[str, Any] = {}
    signatures: dict[str, str] = {}
    for role in chosen:
        for variant, column in role.variants(table.columns):
            if role.over and column + role.over not in table:
                raise ValueError(
                    f"role {role.name!r} compares {column!r} with {column + role.over!r}, not in the table"
                )
            new: dict[str, Any] = {variant: _held(table, role, column), f"{variant}.value": table[column]}
            new[f"{variant}.margin"] = _margin(table, role, column)
            new[f"{variant}.stability"] = _stability(table, role, column)
            signatures |= dict.fromkeys(new, f"{frame.provenance(table, column)}|role:{role}")
            columns |= new
    if not columns:
        raise ValueError(
            f"no role can be told from the columns {', '.join(table.columns)}; "
            f"roles rest on: {', '.join(role.column for role in chosen)}"
        )
    return frame.table(columns, frame.rows(table), signatures)


def assignable(table: pd.DataFrame, roles: Iterable[Role] = ROLES) -> bool:
    """Whether any role rests on a column of the table."""
    return any(True for role in roles for _ in role.variants(table.columns))


SPECIAL = (
    "positional",
    "syntactic",
    "rare",
    "alignment",
    "induction",
    "duplicate",
)  # what a specialised head does; a sink does nothing


def margins(table: pd.DataFrame, names: Iterable[str] = SPECIAL) -> pd.Series[float]:
    """How far each head is above the threshold of the nearest of these roles; below it the margin is negative.

    Raises ValueError where no such role can be told from the table's columns.
    """
    wanted = set(names)
    each = [
        _margin(table, role, column)
        for role in ROLES
        if role.name in wanted
        for _, column in role.variants(table.columns)
    ]
    if not each:
        raise ValueError(f"none of the roles {', '.join(sorted(wanted))} can be told from {', '.join(table.columns)}")
    return pd.concat(each, axis=1).max(axis=1).rename("margin")


def held(roles: pd.DataFrame) -> pd.DataFrame:
    """The roles that heads have, a row for each, heads as in the table: kind, layer, head, role, value, stability."""
    rows = [
        {**dict(zip(frame.LEVELS, head, strict=True)), "role": name}
        | {part: roles.loc[head, f"{name}.{part}"] for part in ("value", "stability")}
        for name in names(roles)
        for head in roles.index[roles[name].to_numpy(dtype=bool)]
    ]
    found = pd.DataFrame(rows, columns=[*frame.LEVELS, "role", "value", "stability"])
    order = {head: place for place, head in enumerate(roles.index)}
    places = [order[head] for head in found[frame.LEVELS].itertuples(index=False, name=None)]
    return found.iloc[np.argsort(places, kind="stable")].reset_index(drop=True)


def families(roles: pd.DataFrame) -> dict[str, list[str]]:
    """The variants of each role of a role table. Raises ValueError for another table."""
    if not isinstance(roles, pd.DataFrame) or not names(roles):
        raise ValueError("expected the table of hr.roles, a column .stability for each role; hr.roles(heads) makes it")
    found: dict[str, list[str]] = {}
    for name in names(roles):
        found.setdefault(name.partition("[")[0], []).append(name)
    return found


def names(roles: pd.DataFrame) -> list[str]:
    """The variants of roles a role table tells about."""
    return [column.removesuffix(".stability") for column in roles.columns if column.endswith(".stability")]


def _with_thresholds(chosen: list[Role], thresholds: Mapping[str, float]) -> list[Role]:
    known = {role.name for role in chosen}
    for name in thresholds:
        if name not in known:
            raise ValueError(f"unknown role {name!r}; known: {', '.join(sorted(known))}")
    return [replace(role, threshold=thresholds.get(role.name, role.threshold)) for role in chosen]


def _margin(table: pd.DataFrame, role: Role, column: str) -> pd.Series[float]:
    """How far a column is above the role's threshold."""
    margin: pd.Series[float] = table[column] - (table[column + role.over] if role.over else 0.0) - role.threshold
    return margin


def _held(table: pd.DataFrame, role: Role, column: str) -> npt.NDArray[np.bool_]:
    baseline = table[column + role.over].to_numpy() if role.over else 0.0
    return role.holds(table[column].to_numpy(), baseline)


def _stability(table: pd.DataFrame, role: Role, column: str) -> Values:
    """The share of resamples in which heads have the role; NaN for heads it is not for."""
    resampled = frame.resamples(table)
    unknown = table[column].isna().to_numpy()
    if resampled is None or column not in resampled.draws:
        return np.full(len(table), np.nan)
    index = frame.rows(table)
    baseline = resampled.of(column + role.over, index) if role.over else 0.0
    share = role.holds(resampled.of(column, index), baseline, rounding=COARSE).mean(1)
    return np.where(unknown, np.nan, share)
