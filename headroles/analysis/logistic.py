"""Odds: a logistic model of survival in which roles stand beside an effect of every layer (no torch)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import optimize, stats
from scipy.special import expit

from headroles.analysis import role_rules
from headroles.analysis.association import outcomes_of, values
from headroles.analysis.resampling import strata
from headroles.tables import frame

Array = npt.NDArray[np.floating[Any]]
LIMIT = stats.chi2.ppf(0.95, 1) / 2  # by how much the likelihood falls at the ends of a 95 % profile interval
NO_LAYER = "in no layer do some heads survive and others not: it cannot be told from the layer"
NO_OTHERS = "the same for all heads of layers in which some survive and others not"
FOLLOWS = "follows from the layer or from other roles: cannot be told apart"
FAR = 30.0  # log odds beyond which an end of an interval is not looked for


def survival_odds(roles: pd.DataFrame, outcomes: pd.DataFrame, *, names: Sequence[str] | None = None) -> pd.DataFrame:
    """What a role adds to the odds of survival of heads of one layer: a row for each 0/1 outcome and role.

    The model is log odds = roles (of `hr.roles`, variants joined) + a term for every layer of every kind, so that
    layers may differ in any way: it adjusts for layer, kind and the other roles. It is fitted by Firth's penalised
    likelihood (Firth 1993; Heinze and Schemper 2002), which has an answer also where all heads of a role survive.
    Layers in which all heads survive, or none, say nothing of differences within layers, and are left out. `heads`: how
    many heads of the other layers have the role; `odds`: the factor by which it multiplies the odds, with a 95 %
    interval of the profile of the likelihood, and `p` of its ratio. A head for which a role cannot be told has not got
    it. `note` says why a role is not in the model. Raises ValueError for tables of different heads, an outcome that is
    infinite, and where no outcome is 0 or 1.
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
        rows += [{"outcome": name} | row for row in _model(*_mixed(_terms(roles.loc[y.index]), y))]
    found = pd.DataFrame(rows)
    of = {"roles": frame.sources(roles, role_rules.names(roles)), "outcomes": frame.sources(outcomes, chosen)}
    text = f"{frame.sign(odds='Firth', terms='roles,layers')}|{frame.holding(**of)}"
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
    """A column per role: the heads that have it."""
    columns = {name: roles[members].any(axis=1).astype(float) for name, members in role_rules.families(roles).items()}
    return pd.DataFrame(columns, index=roles.index)


def _mixed(terms: pd.DataFrame, y: pd.Series[float]) -> tuple[pd.DataFrame, Array, Array]:
    """The terms, a column for each layer of each kind, and the outcome, of layers in which some survive, not all."""
    rate = y.groupby(level=["kind", "layer"]).transform("mean")
    mixed = ((rate > 0) & (rate < 1)).to_numpy()
    layers = strata(terms.index)[mixed]
    return terms[mixed], np.eye(layers.max(initial=-1) + 1)[:, np.unique(layers)][layers], y[mixed].to_numpy()


def _model(terms: pd.DataFrame, kept: Array, y: Array) -> list[dict[str, Any]]:
    """A row for each term beside the columns `kept`; those that follow from them or from others are left out."""
    notes: dict[str, str] = {}
    first = kept.shape[1]
    for name in terms:
        wider = np.column_stack([kept, terms[name]])
        if len(y) and np.linalg.matrix_rank(wider) > kept.shape[1]:
            kept, notes[str(name)] = wider, ""
        else:
            notes[str(name)] = FOLLOWS if len(y) and np.ptp(terms[name]) else NO_OTHERS if len(y) else NO_LAYER
    beta, best = firth(kept, y) if kept.shape[1] > first else (np.zeros(first), 0.0)
    rows: list[dict[str, Any]] = []
    place = first - 1
    for name, note in notes.items():
        row: dict[str, Any] = {"term": name, "heads": int(terms[name].sum())}
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
