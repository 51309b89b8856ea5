"""Roles meet outcomes in one study folder: relations, odds, predictors, and what became of roles (no torch)."""

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
    """Relate the roles of one study to the outcomes of others; kept in `study` as tables; `relate` is returned.

    `roles` and `outcomes` are study folders or files of tables. `relate` is that of `hr.relate`. Where there is an
    outcome of 0 and 1, `odds` is that of `hr.survival_odds`, and `predictors` tells which score says best who survives; where a
    study has the roles of what is left at several sizes, `drift-STRATEGY` is that of `hr.role_changes`. A column that comes
    twice is that of the first study; what is the same for several seeds is their mean, of survival the share of seeds
    in which a head stays. `only` keeps outcomes that begin, or whose brackets begin, with one of these words. Raises
    FileNotFoundError, or ValueError as `hr.relate`.
    """
    told = load_table(roles) if Path(roles).is_file() else Study(roles).load("roles")
    measured = _joined([*([] if Path(roles).is_file() else [roles]), *outcomes])
    found = relate(told, measured, by=by, names=_named(measured, only), kinds=kinds, seed=seed)
    study.remove(study.claim("relate", frame.provenance(found, "role")))
    for old in study.names():
        if old.partition("-")[0] in ("odds", "predictors", "drift"):
            study.path(old).unlink()  # of other outcomes
    save_table(found, study.path("relate"))
    survival = [name for name in dict.fromkeys(found["outcome"]) if re.fullmatch(r"survival\[[^\]]*\]", name)]
    own = measured.loc[told.index]
    sure = [name for name in survival if set(values(own, name).dropna()) == {0.0, 1.0}]
    if sure:
        save_table(survival_odds(told, own, names=sure), study.path("odds"))
    if survival and any(map(predicts, map(str, own))):
        save_table(predict_outcome(own, own, of=survival, seed=seed), study.path("predictors"))
    for strategy, tables in _left(outcomes).items():
        save_table(role_changes(told, tables), study.path(f"drift-{strategy}"))
    return found


def _named(table: pd.DataFrame, words: Sequence[str] | None) -> list[str] | None:
    """The outcomes that begin with one of these words, or have one at the beginning of their brackets."""
    if words is None:
        return None
    known = outcomes_of(table, None)
    found = [name for name in known if any(name.startswith(word) or f"[{word}" in name for word in words)]
    if not found:
        raise ValueError(f"no outcome begins with {' or '.join(words)}; there are: {', '.join(known)}")
    return found


def _joined(places: Sequence[str | Path]) -> pd.DataFrame:
    """The columns of several studies or files, each once."""
    tables: list[pd.DataFrame] = []
    for place in places:
        table = load_table(place) if Path(place).is_file() else Study(place).scores()
        twice = [name for one in tables for name in one if name in table]
        if twice:
            log.info("%s: %d columns that an earlier study has are left out", place, len(twice))
        table = frame.only(table, [name for name in map(str, table) if name not in twice])
        if table.shape[1]:
            tables.append(table)
    return _over_seeds(frame.join(*tables))


def _over_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """Columns that differ only by a seed, as in `survival[random 36 seed 0]`, as their mean."""
    seeds: dict[str, list[str]] = {}
    for name in map(str, table):
        if (short := re.sub(r" seed \d+(?=\])", "", name)) != name:
            seeds.setdefault(short, []).append(name)
    rest = frame.only(table, [name for name in map(str, table) if not any(name in each for each in seeds.values())])
    means = {name: table[each].mean(axis=1) for name, each in seeds.items()}
    signed = {name: f"{frame.provenance(table, each[0])}|seeds:{len(each)}" for name, each in seeds.items()}
    return frame.join(*filter(len, [rest] if not means else [rest, frame.table(means, frame.rows(table), signed)]))


def _left(places: Sequence[str | Path]) -> dict[str, dict[int, pd.DataFrame]]:
    """The roles of what is left at each size, by strategy."""
    found: dict[str, dict[int, pd.DataFrame]] = {}
    for study in (Study(place) for place in places if not Path(place).is_file()):
        for name in study.names():
            if (parts := re.fullmatch(r"roles-(.+)-(\d+)", name)) is not None:
                found.setdefault(parts[1], {})[int(parts[2])] = study.load(name)
    return {strategy: dict(sorted(tables.items(), reverse=True)) for strategy, tables in found.items()}
