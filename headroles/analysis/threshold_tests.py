"""Tests of roles: does the score of a head exceed the threshold significantly, corrected over heads? (no torch)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import scipy

from headroles.analysis.intervals import COARSE, LEVEL, Array, bounds, corrections, least_p, t_limit, unskewed
from headroles.tables import frame
from headroles.tables.columns import with_suffix
from headroles.tables.declared import signature_of


def tested(
    table: pd.DataFrame, variants: Sequence[tuple[str, str]], threshold: float, over: str | None
) -> dict[str, Array]:
    """Return tests of whether each head exceeds the threshold of a role: column -> [heads].

    The null hypothesis is that the score, less its baseline, is at most the threshold in the population of sentences
    (one-sided, as in the code of Pande et al. 2021, arXiv 2101.09115, which does not correct over heads). Near 0 and 1
    a score varies less than at the threshold, and t would reject too often. So a share of queries has a score test
    (Wilson 1927): its error at the threshold follows from the number of queries that the interval in the table
    implies, and p is below 0.025 exactly where that interval lies above the threshold. Mean weights and scores over a
    baseline have a t test, their error the spread of the resamples, and p is not below that corrected for skewness
    (`intervals.unskewed`).

    Each of the variants (name, column) has `.p`, not below that of a sign test on as many sentences, and `.holm` and
    `.bh`, corrected for all heads and variants of the role; NaN where the score is.
    """
    p = np.stack([_p_values(table, column, threshold, over) for _, column in variants])  # [variants, heads]
    by_name = {"p": p} | corrections(p)
    return {f"{variant}.{end}": by_name[end][at] for end in by_name for at, (variant, _) in enumerate(variants)}


def role_decisions(roles: pd.DataFrame) -> pd.DataFrame:
    """Compare roles assigned by thresholds with roles established by tests.

    Args:
        roles: Table of `hr.roles(scores, test=True)`.

    Returns:
        One row per variant of a role: the number of `heads` that have its score; how many of them exceed the threshold
        (`threshold`), and how many significantly, by `p`, `holm` and `bh` at 0.05.

    Raises:
        ValueError: If the table has no tests.
    """
    names = with_suffix(roles, "holm")
    if not names:
        columns = frame.listed([str(name) for name in roles])
        raise ValueError(f"roles must have tests, got {columns}; make them with hr.roles(scores, test=True)")
    rows = []
    for name in names:
        part = roles[roles[f"{name}.p"].notna()]
        sure = {end: int((part[f"{name}.{end}"] < LEVEL).sum()) for end in ("p", "holm", "bh")}
        rows.append({"heads": len(part), "threshold": int(part[name].sum()), **sure})
    table = pd.DataFrame(rows, index=pd.Index(names, name="role"))
    return frame.signed(table, frame.sign(decisions=LEVEL), signature_of(roles, f"{names[0]}.p"))


def _p_values(table: pd.DataFrame, column: str, threshold: float, over: str | None) -> Array:
    """Return the uncorrected one-sided p of each head: [heads]; ValueError without intervals or resamples."""
    values, sentences = table[column].to_numpy(float), _sentences(table, column)
    known, ends = values[np.isfinite(values)], [f"{column}.low", f"{column}.high"]
    bounded = over is None and 0 < threshold < 1 and bool(((known >= 0) & (known <= 1)).all())
    draws = frame.resamples_of(table, column, over)
    if not {*ends} <= {*table} if bounded else draws is None:
        raise ValueError(f"{column} must have resamples to be tested; make it with hr.score and n_resamples above 0")
    is_share = bounded
    if bounded and draws is not None:  # a mean has percentiles as interval, a share Wilson's
        percentiles = np.stack(bounds(draws), axis=1)
        is_share = not np.allclose(table[ends], percentiles, rtol=COARSE, atol=COARSE**2, equal_nan=True)
    if is_share or draws is None:
        low, high = table[ends].to_numpy(float).T
        ratio: Array = _of_shares(values, low, high, threshold) * t_limit(sentences - 1)
    else:
        ratio = _of_means(values - (table[f"{column}{over}"].to_numpy(float) if over else 0.0), draws, threshold)
    p = np.maximum(scipy.special.stdtr(sentences - 1, -ratio), least_p(int(min(sentences, 1000))) / 2)
    return np.where(np.isnan(values), np.nan, p)


def _of_shares(values: Array, low: Array, high: Array, threshold: float) -> Array:
    """Return by how many half widths of an interval at the threshold shares exceed it: [heads]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        end = np.where(values > threshold, low, high)
        # the end is as many errors away as the t quantile: `width` is that quantile over the root of the queries
        width = np.where(end == values, 0.0, np.abs(values - end) / np.sqrt(end * (1 - end)))
        return np.asarray((values - threshold) / np.sqrt(threshold * (1 - threshold)) / width)


def _of_means(values: Array, draws: Array, threshold: float) -> Array:
    """Return by how many standard errors means exceed the threshold, or by fewer if corrected for skewness: [heads]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        away = draws - values[:, None]
        count = np.isfinite(away).sum(1)
        square, cube = (np.nansum(away**power, axis=1) / count for power in (2, 3))
        ratio = (values - threshold) / np.sqrt(square)
        return np.asarray(np.minimum(ratio, unskewed(ratio, cube / square**1.5)))


def _sentences(table: pd.DataFrame, column: str) -> float:
    """Number of sentences that a column is measured on, from its provenance; infinite if not known."""
    number = dict(frame.fields(signature_of(table, column))).get("sentences", "")
    words = float(table[f"{column}.words"].max()) if f"{column}.words" in table else np.inf
    return min(float(number) if number.isdigit() else np.inf, words)
