"""By what factor does each role multiply the odds of survival, with a term for each layer? A table of odds.

Reads a table of roles and one of survival of the same heads, and writes `odds.parquet`, such as that of
figures/multi30k-en-de/relate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import optimize, stats
from scipy.special import expit

import headroles as hr
from headroles.analysis import role_rules
from headroles.analysis.association import outcomes_of, values
from headroles.analysis.intervals import Array, strata
from headroles.tables import frame

LIMIT = stats.chi2.ppf(0.95, 1) / 2  # fall of the log likelihood at the ends of a 95 % profile interval
NO_LAYER = "no layer has surviving and pruned heads: role and layer are confounded"
NO_OTHERS = "the same for all heads of the layers with surviving and pruned heads"
FOLLOWS = "collinear with the layers or other roles"
ODDS = ("odds", "odds.low", "odds.high", "p")
FAR = 30.0  # log odds at which the search for an end of an interval stops


def main(roles: Path, survival: Path, output: Path = Path("odds.parquet")) -> None:
    hr.save_table(survival_odds(hr.load_table(roles), hr.load_table(survival)), output)


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
    chosen = [name for name in known if set(values(table, name).dropna()) == {0.0, 1.0}]
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
