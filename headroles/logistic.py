"""Odds: a logistic model of survival in which roles stand beside layer and kind (no torch)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import optimize, stats
from scipy.special import expit

from headroles import heads, role
from headroles.relation import outcomes_of, values

Array = npt.NDArray[np.floating[Any]]
LIMIT = stats.chi2.ppf(0.95, 1) / 2  # by how much the likelihood falls at the ends of a 95 % profile interval
FAR = 30.0  # log odds beyond which an end of an interval is not looked for


def odds(roles: pd.DataFrame, outcomes: pd.DataFrame, *, names: Sequence[str] | None = None) -> pd.DataFrame:
    """What a role adds to the odds of survival beside layer and kind: a row for each 0/1 outcome and term.

    The model is log odds = roles (of `hr.roles`, variants joined) + kind + depth within each kind (0: its lowest layer,
    1: its highest), fitted by Firth's penalised likelihood (Firth 1993; Heinze and Schemper 2002), which has an answer
    also where all heads of a role survive. `odds`: the factor by which the term multiplies the odds, with a 95 %
    interval of the profile of the likelihood, and `p` of its ratio. A head for which a role cannot be told has not got
    it. `note` says why a term is not in the model. Raises ValueError for tables of different heads and where no outcome
    is 0 or 1.
    """
    if len(roles) != len(outcomes) or not roles.index.sort_values().equals(outcomes.index.sort_values()):
        raise ValueError(f"roles and outcomes are of different heads: {len(roles)} and {len(outcomes)} rows")
    table = outcomes.loc[roles.index]
    told = outcomes_of(table, names)
    chosen = [name for name in told if set(values(table, name).dropna()) == {0.0, 1.0}]
    if not chosen:
        raise ValueError(f"no outcome with heads of 0 and of 1, as survival[...] has, among: {', '.join(told)}")
    rows = []
    for name in chosen:
        y = values(table, name).dropna()
        rows += [{"outcome": name} | row for row in _model(_terms(roles.loc[y.index]), y.to_numpy())]
    found = pd.DataFrame(rows)
    of = {"roles": heads.sources(roles, role.names(roles)), "outcomes": heads.sources(outcomes, chosen)}
    text = heads.sign(odds="Firth", terms="roles,kind,depth", **of)
    found.attrs["signatures"] = dict.fromkeys(found.columns, text)
    return found


def firth(x: Array, y: Array, *, fixed: int | None = None, at: float = 0.0) -> tuple[Array, float]:
    """Coefficients [terms] and penalised log likelihood of a logistic model of y [rows] by x [rows, terms].

    The likelihood is penalised by half the log of the determinant of the information (Jeffreys' prior); with `fixed`
    that coefficient stays at `at`.
    """
    free = np.arange(x.shape[1]) != fixed
    beta = np.where(free, 0.0, at)
    likelihood, information, score = _penalised(x, y, beta)
    for _ in range(200):
        step = np.zeros_like(beta)
        step[free] = np.linalg.solve(information[np.ix_(free, free)], score[free])
        step /= max(1.0, np.abs(step).max() / 2)  # far steps overshoot
        while (tried := _penalised(x, y, beta + step))[0] < likelihood - 1e-12 and np.abs(step).max() > 1e-10:
            step /= 2
        beta, (likelihood, information, score) = beta + step, tried
        if np.abs(step).max() < 1e-8:
            break
    return beta, likelihood


def _terms(roles: pd.DataFrame) -> pd.DataFrame:
    """The design: a column per role, kind but the first, and depth of each kind."""
    columns: dict[str, Any] = {
        name: roles[members].any(axis=1).astype(float) for name, members in role.families(roles).items()
    }
    kinds, layers = (roles.index.get_level_values(level) for level in ("kind", "layer"))
    columns |= {f"kind {kind}": (kinds == kind).astype(float) for kind in kinds.unique()[1:]}
    deepest = pd.Series(layers, index=roles.index).groupby(kinds).transform("max").clip(lower=1)
    depth = layers / deepest.to_numpy()
    columns |= {f"depth {kind}": depth * (kinds == kind) for kind in kinds.unique()}
    return pd.DataFrame(columns, index=roles.index)


def _model(terms: pd.DataFrame, y: Array) -> list[dict[str, Any]]:
    """A row for each term; those that are constant or follow from others are left out, and say so."""
    kept = np.ones((len(y), 1))
    notes: dict[str, str] = {}
    for name in terms:
        wider = np.column_stack([kept, terms[name]])
        if np.linalg.matrix_rank(wider) > kept.shape[1]:
            kept, notes[str(name)] = wider, ""
        else:
            same = not np.ptp(terms[name])
            notes[str(name)] = (
                "the same for all heads" if same else "follows from the other terms: cannot be told apart"
            )
    beta, best = firth(kept, y)
    rows: list[dict[str, Any]] = []
    place = 0
    for name, note in notes.items():
        row: dict[str, Any] = {"term": name, "heads": int((terms[name] != 0).sum())}
        columns = ("odds", "odds.low", "odds.high", "p")
        if note:
            rows.append(row | dict.fromkeys(columns, np.nan) | {"note": note})
            continue
        place += 1
        without = firth(kept, y, fixed=place)[1]
        p = float(stats.chi2.sf(max(2 * (best - without), 0.0), 1))
        low, high = (_end(kept, y, place, float(beta[place]), best, way) for way in (-1, 1))
        rows.append(row | dict(zip(columns, (*np.exp([beta[place], low, high]), p), strict=True)) | {"note": ""})
    return rows


def _end(x: Array, y: Array, place: int, middle: float, best: float, way: int) -> float:
    """An end of the profile interval of a coefficient; infinite where it is beyond reach."""

    def above(at: float) -> float:
        """How much likelihood is left above that of the interval's ends."""
        return float(firth(x, y, fixed=place, at=at)[1] - (best - LIMIT))

    reach = 0.5
    while above(middle + way * reach) > 0:
        reach *= 2
        if reach > FAR:
            return way * math.inf
    found: float = optimize.brentq(above, middle, middle + way * reach, xtol=1e-6)
    return found


def _penalised(x: Array, y: Array, beta: Array) -> tuple[float, Array, Array]:
    """Penalised log likelihood, information matrix and modified score at some coefficients."""
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
