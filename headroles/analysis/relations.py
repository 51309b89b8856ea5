"""Relate roles to outcomes: the relations, and in a study odds of survival, predictors and role changes (no torch)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from headroles.analysis.association import By, associations, outcomes_of, values
from headroles.analysis.changes import role_changes
from headroles.analysis.logistic import survival_odds
from headroles.analysis.prediction import predict_outcome, predicts
from headroles.analysis.resampling import PERMUTATIONS
from headroles.tables.arguments import unknown
from headroles.tables.columns import Column, of_name, stem_of
from headroles.tables.frame import Kind
from headroles.tables.study import Place, Study, as_study, as_table, as_tables


def relate(
    roles: pd.DataFrame | Study | str | Path,
    outcomes: pd.DataFrame | Study | str | Path | Sequence[str | Path],
    *,
    by: By = "family",
    columns: Sequence[str] | None = None,
    kinds: Sequence[Kind] | None = None,
    n_resamples: int = 1000,
    n_permutations: int = PERMUTATIONS,
    seed: int = 0,
    study: Study | str | Path | None = None,
) -> pd.DataFrame:
    """Compare outcomes of heads with and without each role.

    Layers and kinds are compared within themselves. Heads to which a role does not apply, without the outcome, or that
    could not be pruned, are left out.

    Args:
        roles: Study with a table of roles, or its file; the scores of the study are outcomes too. Or a table of
            `hr.roles`.
        outcomes: Table of the same heads with effects of ablation, importance, relevance, attribution or survival
            (`.order`: when a head is pruned); or studies and files with such columns. Of a column in several the first
            is taken. Columns of several seeds are averaged; of survival this is the share of seeds in which a head
            stays.
        by: "family" joins the variants of a role (`positional[-1]` and `[+1]`) and adds "any", all special roles
            (all but sinks) together; "variant" keeps them apart. `role_rules.SPECIAL` has the special roles.
        columns: Outcome columns, or words with which they or their brackets begin; by default all effects of ablation,
            importance, relevance, attribution and survival.
        kinds: Kinds of heads to include; by default all.
        n_resamples: Permutations of the role over all heads, for intervals.
        n_permutations: Permutations of the role within layers, for `p` and the interval of `within`.
        seed: Seed of the permutations.
        study: Study or folder that keeps the table as `relate`. If there is an outcome of 0 and 1, also as
            `survival-odds` (`hr.survival_odds`) and `predictors`: how well each score predicts survival. If `outcomes`
            are studies with the roles of the remaining heads at several sizes, also as `role-changes-STRATEGY`
            (`hr.role_changes`).

    Returns:
        One row per role and outcome. `matters` is "higher" or "lower": which values mean that a head matters more
        ("unknown" for other metrics). `with` and `without` count the heads. `difference` of means, `median` of
        medians, `auc` (chance that a head with the role has the larger outcome, ties half), `rank_biserial` =
        2 auc - 1, `point_biserial` (Pearson's correlation with having the role), and `spearman` (with the margin above
        the threshold) are over all heads. `within` is the mean difference from the heads without the role in the same
        layer and kind. `p`, two-sided, permutes the role within each layer of each kind: a role that occurs in one
        layer does not pass for an effect of the layer. `holm` and `bh` correct it for all rows. `note` gives the
        reason for a missing number.

        Each number has `.low` and `.high`, a 95 % interval: as many standard errors as permutation rejects. The errors,
        and p, allow for roles that spread outcomes (studentised permutation: Chung and Romano 2013; `auc`: Pauly et al.
        2016; outcomes of 0 and 1: score intervals; `spearman`: Bonett and Wright 2000). `within` excludes 0 exactly
        where `p` < 0.05; `difference` and `auc` exclude 0 and 0.5 exactly where permutation over all heads gives
        p < 0.05. Intervals of two or three heads are wide; there is none if all heads with the role, or all without,
        have the same outcome. Of skewed outcomes that are also spread by the role they are too short.

    Raises:
        ValueError: For tables of different heads, an infinite outcome, an unknown kind, and if there is no role or no
            outcome.
        FileNotFoundError: If a study has no such table.
        FileExistsError: If the study holds relations of another model, unless it may be overwritten.
    """  # noqa: DOC502
    assigned = as_table(roles, "roles")
    measured = outcomes if isinstance(outcomes, pd.DataFrame) else as_tables(_places(roles, outcomes))
    table = associations(
        assigned,
        measured,
        by=by,
        columns=_chosen(measured, columns),
        kinds=kinds,
        n_resamples=n_resamples,
        n_permutations=n_permutations,
        seed=seed,
    )
    if study is None:
        return table
    kept = as_study(study)
    kept.save("relate", table)
    for old in kept.names():
        if stem_of(old) in ("survival-odds", "predictors", "role-changes"):
            kept.path(old).unlink()  # of other outcomes
    survival = of_name(dict.fromkeys(table["outcome"]), "survival")
    outcome = measured.loc[assigned.index]
    sure = [name for name in survival if set(values(outcome, name).dropna()) == {0.0, 1.0}]
    if sure:
        kept.save("survival-odds", survival_odds(assigned, outcome, columns=sure))
    if survival and any(map(predicts, map(str, outcome))):
        kept.save("predictors", predict_outcome(outcome, outcome, outcome_columns=survival, seed=seed))
    for strategy, tables in _remaining([] if isinstance(outcomes, pd.DataFrame) else _places(None, outcomes)).items():
        kept.save(f"role-changes-{strategy}", role_changes(assigned, tables))
    return table


def _places(roles: Place | None, outcomes: Study | str | Path | Sequence[str | Path]) -> list[Place]:
    """Return the places of outcomes; a study of roles comes first."""
    places = [outcomes] if isinstance(outcomes, Study | str | Path) else list(outcomes)
    if roles is None or isinstance(roles, pd.DataFrame) or (not isinstance(roles, Study) and Path(roles).is_file()):
        return [*places]
    return [roles, *places]


def _chosen(table: pd.DataFrame, words: Sequence[str] | None) -> list[str] | None:
    """Select the outcomes of these names, or that begin, or have a bracket that begins, with one of these words."""
    if words is None or set(words) <= set(map(str, table)):
        return None if words is None else list(words)
    known = outcomes_of(table, None)
    names = {word: [name for name in known if _begins(Column.parse(name), word)] for word in words}
    if lacking := [word for word in words if not names[word]]:
        raise ValueError(unknown("outcome", lacking[0], known))
    return [name for name in known if any(name in chosen for chosen in names.values())]


def _begins(column: Column, word: str) -> bool:
    return str(column).startswith(word) or (column.detail or "").startswith(word)


def _remaining(places: Sequence[Place]) -> dict[str, dict[int, pd.DataFrame]]:
    """Load the roles of the remaining heads at each size, by strategy."""
    sizes: dict[str, dict[int, pd.DataFrame]] = {}
    for place in places:
        if isinstance(place, pd.DataFrame) or (not isinstance(place, Study) and Path(place).is_file()):
            continue
        study = place if isinstance(place, Study) else Study(place)
        for name in study.names():
            if (parts := re.fullmatch(r"roles-(.+)-(\d+)", name)) is not None:
                sizes.setdefault(parts[1], {})[int(parts[2])] = study.load(name)
    return {strategy: dict(sorted(tables.items(), reverse=True)) for strategy, tables in sizes.items()}
