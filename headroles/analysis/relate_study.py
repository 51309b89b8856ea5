"""Relate roles to outcomes in one study folder: relations, odds, predictors, role changes (no torch)."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from headroles.analysis.association import By, outcomes_of, relate, values
from headroles.analysis.logistic import survival_odds
from headroles.analysis.prediction import predict_outcome, predicts
from headroles.analysis.role_persistence import role_changes
from headroles.tables import frame
from headroles.tables.columns import Column, of_name, table_of
from headroles.tables.frame import Kind
from headroles.tables.io import load_table, save_table
from headroles.tables.study import Study

log = logging.getLogger(__name__)


def relate_study(
    study: Study,
    roles: str | Path,
    outcomes: Sequence[str | Path],
    *,
    by: By = "family",
    only: Sequence[str] | None = None,
    kinds: Sequence[Kind] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Relate the roles of one study to the outcomes of others, and keep the tables in `study`.

    The tables are `relate`, as of `hr.relate`; if there is an outcome of 0 and 1, `odds`, as of `hr.survival_odds`, and
    `predictors`, how well each score predicts survival; and `drift-STRATEGY`, as of `hr.role_changes`, for studies with
    the roles of the remaining heads at several sizes. Of a column in several studies the first is taken. Columns of
    several seeds are averaged; of survival this is the share of seeds in which a head stays.

    With `only`, outcomes are kept if their name or their bracket begins with one of its words.

    Returns:
        The table `relate`.
    """
    assigned = load_table(roles) if Path(roles).is_file() else Study(roles).load("roles")
    measured = joined([*([] if Path(roles).is_file() else [roles]), *outcomes])
    table = relate(assigned, measured, by=by, columns=_named(measured, only), kinds=kinds, seed=seed)
    study.remove(study.claim("relate", frame.provenance(table, "role")))
    for old in study.names():
        if old != "relate" and table_of(old).command == "relate":
            study.path(old).unlink()  # of other outcomes
    save_table(table, study.path("relate"))
    survival = of_name(dict.fromkeys(table["outcome"]), "survival")
    outcome = measured.loc[assigned.index]
    sure = [name for name in survival if set(values(outcome, name).dropna()) == {0.0, 1.0}]
    if sure:
        save_table(survival_odds(assigned, outcome, columns=sure), study.path("odds"))
    if survival and any(map(predicts, map(str, outcome))):
        save_table(predict_outcome(outcome, outcome, outcome_columns=survival, seed=seed), study.path("predictors"))
    for strategy, tables in _remaining(outcomes).items():
        save_table(role_changes(assigned, tables), study.path(f"drift-{strategy}"))
    return table


def _named(table: pd.DataFrame, words: Sequence[str] | None) -> list[str] | None:
    """Select the outcomes that begin, or have a bracket that begins, with one of these words."""
    if words is None:
        return None
    known = outcomes_of(table, None)
    names = [name for name in known if any(name.startswith(word) or f"[{word}" in name for word in words)]
    if not names:
        raise ValueError(f"no outcome begins with {' or '.join(words)}; there are: {', '.join(known)}")
    return names


def joined(places: Sequence[str | Path]) -> pd.DataFrame:
    """Join the columns of several studies or files, each once; columns of several seeds are averaged."""
    tables: list[pd.DataFrame] = []
    for place in places:
        table = load_table(place) if Path(place).is_file() else Study(place).scores()
        repeated = [name for earlier in tables for name in earlier if name in table]
        if repeated:
            log.info("%s: %d columns of an earlier study are left out", place, len(repeated))
        table = frame.only(table, [name for name in map(str, table) if name not in repeated])
        if table.shape[1]:
            tables.append(table)
    return _over_seeds(frame.join(*tables))


def _over_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """Average columns that differ only by a seed, as in `survival[random 36 seed 0]`."""
    seeds: dict[str, list[str]] = {}
    unseeded = []
    for name in map(str, table):
        if (short := str(Column.parse(name).without_seed)) != name:
            seeds.setdefault(short, []).append(name)
        else:
            unseeded.append(name)
    rest = frame.only(table, unseeded)
    means = {name: table[columns].mean(axis=1) for name, columns in seeds.items()}
    signed = {name: f"{frame.provenance(table, columns[0])}|seeds:{len(columns)}" for name, columns in seeds.items()}
    return frame.join(*filter(len, [rest] if not means else [rest, frame.table(means, frame.rows(table), signed)]))


def _remaining(places: Sequence[str | Path]) -> dict[str, dict[int, pd.DataFrame]]:
    """Load the roles of the remaining heads at each size, by strategy."""
    sizes: dict[str, dict[int, pd.DataFrame]] = {}
    for study in (Study(place) for place in places if not Path(place).is_file()):
        for name in study.names():
            if (parts := re.fullmatch(r"roles-(.+)-(\d+)", name)) is not None:
                sizes.setdefault(parts[1], {})[int(parts[2])] = study.load(name)
    return {strategy: dict(sorted(tables.items(), reverse=True)) for strategy, tables in sizes.items()}
