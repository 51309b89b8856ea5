"""Relate roles to outcomes: the relations, predictors and role changes (no torch)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd

from headroles.analysis import intervals
from headroles.analysis.association import By, associations, finite, measurements, outcomes_of, values
from headroles.analysis.changes import role_changes
from headroles.analysis.intervals import PERMUTATIONS, Array, Whole, corrected, strata, with_ends
from headroles.tables import frame
from headroles.tables.arguments import several
from headroles.tables.columns import Column, of_name, stem_of
from headroles.tables.frame import Kind
from headroles.tables.study import Place, Study, as_study, as_table, as_tables, study_of

PREDICTORS = ("confidence", "position", "rarity", "entropy", "distance", "importance", "relevance", "attribution")


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
        by: "family" joins the variants of a role (`positional[-1]` and `[+1]`), "variant" keeps them apart; both add
            "any", all special roles (all but sinks) together. `role_rules.SPECIAL` has the special roles.
        columns: Outcome columns, or words with which they or their brackets begin; by default all effects of ablation,
            importance, relevance, attribution and survival.
        kinds: Kinds of heads to include; by default all.
        n_resamples: Permutations of the role over all heads, for intervals.
        n_permutations: Permutations of the role within layers, for `p` and the interval of `within`.
        seed: Seed of the permutations.
        study: Study or folder that keeps the table as `relate`. If survival is an outcome, also as `predictors`: how
            well each score predicts it. If `outcomes` are studies with the roles of the remaining heads at several
            sizes, also as `role-changes-STRATEGY` (`hr.role_changes`).

    Returns:
        One row per role and outcome. `matters` is "higher" or "lower": which values mean that a head matters more
        ("unknown" for other metrics). `with` and `without` count the heads. `difference` of means, `median` of
        medians, `auc` (chance that a head with the role has the larger outcome, ties half), and `spearman` (with the
        margin above the threshold) are over all heads. `within` is the mean difference from the heads without the role
        in the same layer and kind. `p`, two-sided, permutes the role within each layer of each kind: a role that occurs
        in one layer does not pass for an effect of the layer. `holm` and `bh` correct it for all rows. `note` gives the
        reason for a missing number.

        Each number has `.low` and `.high`, a 95 % interval: as many standard errors as permutation rejects. The errors,
        and p, allow for roles that spread outcomes (studentised permutation: Chung and Romano 2013; `auc`: Pauly et al.
        2016; outcomes of 0 and 1: score intervals; `spearman`: Bonett and Wright 2000). `within` excludes 0 exactly
        where `p` < 0.05, `difference` and `auc` 0 and 0.5 where permutation over all heads gives p < 0.05. With fewer
        than five heads on one side (of outcomes of 0 and 1: than two), or if all on one side have the same outcome,
        there is neither p nor interval. Of skewed outcomes that the role also spreads p and intervals are too small.

    Raises:
        ValueError: For tables of different heads, an infinite outcome, an unknown kind, and without role or outcome.
        FileNotFoundError: If a study has no such table.
        FileExistsError: If the study holds relations of another model, unless it may be overwritten.
    """  # noqa: DOC502
    assigned = as_table(roles, "roles")
    is_table = isinstance(outcomes, pd.DataFrame)
    places = [] if is_table else several(cast(Sequence[Place], outcomes))
    measured = as_tables(outcomes if is_table or study_of(roles) is None else [roles, *places])
    table = associations(assigned, measured, by, columns, kinds, n_resamples, n_permutations, seed)
    if study is None:
        return table
    kept = as_study(study)
    kept.save("relate", table)
    for old in kept.names():
        if stem_of(old) in ("predictors", "role-changes"):
            kept.path(old).unlink()  # of other outcomes
    survival = of_name(dict.fromkeys(table["outcome"]), "survival")
    outcome = measured.loc[assigned.index]
    if survival and any(map(predicts, map(str, outcome))):
        kept.save("predictors", predict_outcome(outcome, outcome, outcome_columns=survival, seed=seed))
    for strategy, tables in _remaining(places).items():
        kept.save(f"role-changes-{strategy}", role_changes(assigned, tables))
    return table


def _remaining(places: Sequence[Place]) -> dict[str, dict[int, pd.DataFrame]]:
    """Load the roles of the remaining heads at each size, by strategy."""
    sizes: dict[str, dict[int, pd.DataFrame]] = {}
    for study in filter(None, map(study_of, places)):
        for name in study.names():
            if (parts := re.fullmatch(r"roles-(.+)-(\d+)", name)) is not None:
                sizes.setdefault(parts[1], {})[int(parts[2])] = study.load(name)
    return {strategy: dict(sorted(tables.items(), reverse=True)) for strategy, tables in sizes.items()}


def predict_outcome(
    scores: pd.DataFrame,
    outcomes: pd.DataFrame,
    *,
    columns: Sequence[str] | None = None,
    outcome_columns: Sequence[str] | None = None,
    n_resamples: int = 1000,
    n_permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> pd.DataFrame:
    """Rank scores by how well they predict which heads survive, or another outcome.

    Args:
        scores: Table of `hr.score`.
        outcomes: Table of the same heads with columns `survival[...]`, or other outcomes.
        columns: Columns of `scores`; by default all that are measured without ablation (of position the best).
        outcome_columns: Columns of `outcomes`, or words, as in `relate`; by default `survival[...]`.
        n_resamples: Permutations over all heads, for the interval of `auc`.
        n_permutations: Permutations within layers, for `p`.
        seed: Seed of the permutations.

    Returns:
        One row per outcome and score, the largest |spearman| first. `spearman` is the rank correlation over all heads
        that could be pruned. If an outcome is 0 or 1, `auc` is the chance that a head with 1 has the larger score. Both
        have a 95 % interval (Bonett and Wright 2000; for `auc` as in `hr.relate`); NaN for few heads. `within` is the
        correlation of ranks within layers of a kind, pooled, and `p` its permutation p; `holm` and `bh` correct it for
        all rows. `note` gives the reason for a missing number.

    Raises:
        ValueError: For tables of different heads, an infinite number, and if there is no score or no outcome.
    """
    chosen = outcomes_of(outcomes, outcome_columns)
    chosen = of_name(chosen, "survival") if outcome_columns is None else chosen
    known = measurements(scores)
    predictors = list(filter(predicts, known)) if columns is None else list(columns)
    if not chosen:
        raise ValueError(f"outcomes must have survival[...], got {', '.join(map(str, outcomes))}")
    if not predictors or not set(predictors) <= set(known):
        expected = ", ".join(predictors) or f"some of {', '.join(PREDICTORS)}"
        raise ValueError(f"scores must have {expected}, got {', '.join(map(str, scores))}")
    frame.check_same_heads(scores, outcomes, "scores and outcomes")
    scores = scores.sort_index()  # permutations do not depend on the order of the rows
    layers, rows = strata(scores.index), []
    for outcome, name in product(chosen, predictors):
        x, y = finite(scores[name]).to_numpy(float), values(outcomes, outcome)[scores.index].to_numpy(float)
        known_heads = np.isfinite(x) & np.isfinite(y)
        row = _prediction(x[known_heads], y[known_heads], layers[known_heads], n_resamples, n_permutations, seed)
        rows.append({"outcome": outcome, "score": name} | row)
    table = corrected(pd.DataFrame(rows))
    place = table["outcome"].map(chosen.index)
    table = table.iloc[np.lexsort((-table["spearman"].abs().fillna(-1), place))].reset_index(drop=True)
    of_tables = {"scores": frame.sources(scores, predictors), "outcomes": frame.sources(outcomes, chosen)}
    text = frame.sign(predictors=",".join(chosen), resamples=n_resamples, permutations=n_permutations, seed=seed)
    return frame.signed(table, text, frame.holding(**of_tables))


def predicts(name: str) -> bool:
    """Return whether a column is measured without ablation, and not at one of several offsets."""
    family = Column.parse(name).name
    return family in PREDICTORS and (family != "position" or name == "position[best]")


def _prediction(
    x: Array, y: Array, layers: Whole, n_resamples: int, n_permutations: int, seed: int
) -> dict[str, object]:
    """Compute the numbers of one score and outcome; NaN where `note` gives the reason."""
    names = ["spearman", "spearman.low", "spearman.high", "auc", "auc.low", "auc.high", "within", "p"]
    if len(x) < 3 or not np.ptp(x) or not np.ptp(y):
        note = "fewer than three heads" if len(x) < 3 else f"the {'score' if np.ptp(y) else 'outcome'} is constant"
        return {"heads": len(x), **dict.fromkeys(names, np.nan), "note": note}
    rank, area, ends = float(intervals.spearman(x[None], y[None])[0]), np.nan, intervals.NONE
    if intervals.binary(y):
        permutations = intervals.permuted_roles(y == 1, np.zeros_like(layers), n_resamples, seed)
        area, ends = intervals.auc(y == 1, x, permutations)
    of_rank = intervals.rank_correlation(rank, len(x) if n_resamples else 0)
    row: dict[str, object] = {"heads": len(x), **with_ends("spearman", rank, of_rank), **with_ends("auc", area, ends)}
    a, b = (intervals.centred_ranks(values, layers) for values in (x, y))
    if not a.any() or not b.any():
        return row | {"within": np.nan, "p": np.nan, "note": "alike within each layer"}
    permuted = intervals.permuted_values(b, layers, n_permutations, np.random.default_rng(seed)) @ a
    p = intervals.p_value(permuted, float(a @ b))
    return row | {"within": float(a @ b / np.sqrt((a @ a) * (b @ b))), "p": p, "note": ""}
