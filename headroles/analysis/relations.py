"""Relate roles to outcomes: the relations, odds of survival, predictors and role changes (no torch)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from scipy import optimize, stats
from scipy.special import expit

from headroles.analysis import intervals, role_rules
from headroles.analysis.association import By, associations, finite, measurements, outcomes_of, values
from headroles.analysis.changes import role_changes
from headroles.analysis.intervals import PERMUTATIONS, Array, Whole, corrected, strata, with_ends
from headroles.tables import frame
from headroles.tables.arguments import several
from headroles.tables.columns import Column, of_name, stem_of
from headroles.tables.frame import Kind
from headroles.tables.study import Place, Study, as_study, as_table, as_tables, study_of

LIMIT = stats.chi2.ppf(0.95, 1) / 2  # fall of the log likelihood at the ends of a 95 % profile interval
NO_LAYER = "no layer has surviving and pruned heads: role and layer are confounded"
NO_OTHERS = "the same for all heads of the layers with surviving and pruned heads"
FOLLOWS = "collinear with the layers or other roles"
ODDS = ("odds", "odds.low", "odds.high", "p")
FAR = 30.0  # log odds at which the search for an end of an interval stops
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
        study: Study or folder that keeps the table as `relate`. If there is an outcome of 0 and 1, also as
            `survival-odds` (`hr.survival_odds`) and `predictors`: how well each score predicts survival. If `outcomes`
            are studies with the roles of the remaining heads at several sizes, also as `role-changes-STRATEGY`
            (`hr.role_changes`).

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
        if stem_of(old) in ("survival-odds", "predictors", "role-changes"):
            kept.path(old).unlink()  # of other outcomes
    survival = of_name(dict.fromkeys(table["outcome"]), "survival")
    outcome = measured.loc[assigned.index]
    if sure := [name for name in survival if _is_binary(outcome, name)]:
        kept.save("survival-odds", survival_odds(assigned, outcome, columns=sure))
    if survival and any(map(predicts, map(str, outcome))):
        kept.save("predictors", predict_outcome(outcome, outcome, outcome_columns=survival, seed=seed))
    for strategy, tables in _remaining(places).items():
        kept.save(f"role-changes-{strategy}", role_changes(assigned, tables))
    return table


def _is_binary(table: pd.DataFrame, outcome: str) -> bool:
    return set(values(table, outcome).dropna()) == {0.0, 1.0}


def _remaining(places: Sequence[Place]) -> dict[str, dict[int, pd.DataFrame]]:
    """Load the roles of the remaining heads at each size, by strategy."""
    sizes: dict[str, dict[int, pd.DataFrame]] = {}
    for study in filter(None, map(study_of, places)):
        for name in study.names():
            if (parts := re.fullmatch(r"roles-(.+)-(\d+)", name)) is not None:
                sizes.setdefault(parts[1], {})[int(parts[2])] = study.load(name)
    return {strategy: dict(sorted(tables.items(), reverse=True)) for strategy, tables in sizes.items()}


def survival_odds(roles: pd.DataFrame, outcomes: pd.DataFrame, *, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Estimate by what factor each role multiplies the odds of survival, within layers.

    The model is log odds = roles (of `hr.roles`, variants joined) + a term for every layer of every kind. It is fitted
    by Firth's penalised likelihood (Firth 1993; Heinze and Schemper 2002), which is finite also if all heads of a role
    survive. Layers in which all heads survive, or none, say nothing about differences within layers and are left out.

    Args:
        roles: Table of `hr.roles`. A head to which a role does not apply counts as without it.
        outcomes: Table of the same heads with outcomes of 0 and 1, such as `survival[...]`.
        columns: Outcome columns, or words with which they or their brackets begin; by default all outcomes.

    Returns:
        One row per outcome of 0 and 1 and role: `heads` with the role in the remaining layers; `odds`, the factor, with
        a 95 % profile likelihood interval; `p` of the likelihood ratio; `note`, why a role is not in the model.

    Raises:
        ValueError: For tables of different heads, an infinite outcome, and if no outcome is 0 or 1.
    """
    frame.check_same_heads(roles, outcomes, "roles and outcomes")
    table = outcomes.loc[roles.index]
    known = outcomes_of(table, columns)
    chosen = [name for name in known if _is_binary(table, name)]
    if not chosen:
        raise ValueError(f"outcomes must have columns of 0 and 1, such as survival[...], got {', '.join(known)}")
    rows = []
    for name in chosen:
        y = values(table, name).dropna()
        rows += [{"outcome": name} | row for row in _odds(roles.loc[y.index], y)]
    of = {"roles": frame.sources(roles, role_rules.names(roles)), "outcomes": frame.sources(outcomes, chosen)}
    text = f"{frame.sign(odds='Firth', terms='roles,layers')}|{frame.holding(**of)}"
    return frame.signed(pd.DataFrame(rows), text)


def firth(x: Array, y: Array, *, fixed: int | None = None, at: float = 0.0) -> tuple[Array, float]:
    """Return coefficients and penalised log likelihood of a logistic model of y [rows] by x [rows, terms] (Firth 1993).

    The log likelihood is penalised by half the log determinant of the information matrix (Jeffreys' prior). The
    coefficient `fixed` is held at `at`.
    """
    free = np.arange(x.shape[1]) != fixed
    beta = np.where(free, 0.0, at)
    likelihood, information, score = _penalised(x, y, beta)
    for _ in range(200):
        step = np.zeros_like(beta)
        step[free] = np.linalg.solve(information[np.ix_(free, free)], score[free])
        step /= max(1.0, np.abs(step).max() / 2)  # long steps overshoot
        while (tried := _penalised(x, y, beta + step))[0] < likelihood - 1e-12 and np.abs(step).max() > 1e-10:
            step /= 2
        beta, (likelihood, information, score) = beta + step, tried
        if np.abs(step).max() < 1e-8:
            break
    return beta, likelihood


def _odds(roles: pd.DataFrame, outcome: pd.Series[float]) -> list[dict[str, object]]:
    """A row per role, in the layers in which some but not all heads survive; collinear roles are left out."""
    rate = outcome.groupby(level=["kind", "layer"]).transform("mean")
    mixed = ((rate > 0) & (rate < 1)).to_numpy()
    layers, y = strata(roles.index)[mixed], outcome[mixed].to_numpy()
    x = np.eye(layers.max(initial=-1) + 1)[:, np.unique(layers)][layers]  # [heads, terms], a term for each layer
    n_layers, entered = x.shape[1], []
    rows: list[dict[str, object]] = []
    for name, members in role_rules.families(roles).items():
        has_role = roles.loc[mixed, members].any(axis=1).to_numpy(float)
        rows.append({"term": name, "heads": int(has_role.sum())} | dict.fromkeys(ODDS, np.nan) | {"note": ""})
        wider = np.column_stack([x, has_role])
        if not len(y):
            rows[-1]["note"] = NO_LAYER
        elif np.linalg.matrix_rank(wider) > x.shape[1]:
            x = wider
            entered.append(rows[-1])
        else:
            rows[-1]["note"] = FOLLOWS if np.ptp(has_role) else NO_OTHERS
    beta, best = firth(x, y) if entered else (np.zeros(n_layers), 0.0)
    for place, row in enumerate(entered, n_layers):
        p = float(stats.chi2.sf(max(2 * (best - firth(x, y, fixed=place)[1]), 0.0), 1))
        ends = (_end(x, y, place, float(beta[place]), best, way) for way in (-1, 1))
        row |= dict(zip(ODDS, (*np.exp([beta[place], *ends]), p), strict=True))
    return rows


def _end(x: Array, y: Array, place: int, middle: float, best: float, way: int) -> float:
    """Return an end of the profile likelihood interval of a coefficient; infinite beyond FAR."""

    def above(at: float) -> float:
        return float(firth(x, y, fixed=place, at=at)[1] - (best - LIMIT))

    reach = 0.5
    while above(middle + way * reach) > 0:
        reach *= 2
        if reach > FAR:
            return way * math.inf
    end: float = optimize.brentq(above, middle, middle + way * reach, xtol=1e-6)
    return end


def _penalised(x: Array, y: Array, beta: Array) -> tuple[float, Array, Array]:
    """Compute the penalised log likelihood, information matrix and modified score at some coefficients."""
    logits = x @ beta
    chance = expit(logits)
    weighed = x * np.sqrt(chance * (1 - chance))[:, None]
    information = weighed.T @ weighed
    sign, log_det = np.linalg.slogdet(information)
    if sign <= 0:
        return -np.inf, information, np.zeros_like(beta)
    leverage = np.einsum("ij,ji->i", weighed, np.linalg.solve(information, weighed.T))
    likelihood = float((y * logits - np.logaddexp(0, logits)).sum() + log_det / 2)
    return likelihood, information, x.T @ (y - chance + leverage * (0.5 - chance))


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
        outcome_columns: Columns of `outcomes`, or words, as in `survival_odds`; by default `survival[...]`.
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
