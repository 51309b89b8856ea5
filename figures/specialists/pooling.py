"""Meta-analysis over trained models: do roles predict which heads survive, within layers?."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from headroles.analysis.intervals import p_value
from headroles.analysis.multiple_testing import holm
from headroles.analysis.resampling import Array, Whole, centred_ranks, permuted_values, strata
from headroles.tables import frame

PREDICTORS = ("positional", "syntactic")
COVARIATES = ("confidence", "sink")


def graded_roles(scores: pd.DataFrame) -> pd.DataFrame:
    """Return how positional and how syntactic each head is, a row each, by a table of `hr.score`.

    `positional` is the larger share at offset -1 or +1; `syntactic`, the largest accuracy less its baseline over
    relations and ways; `confidence`; `sink`, the larger weight on special tokens or the first token.
    """
    relations = [name for name in map(str, scores) if name.startswith("syntax[") and name.endswith("]")]
    margins = [scores[name] - scores[f"{name}.baseline"] for name in relations]
    columns = {
        "positional": scores[["position[-1]", "position[+1]"]].max(axis=1),
        "syntactic": pd.concat(margins, axis=1).max(axis=1),
        "confidence": scores["confidence"],
        "sink": scores[["sink[special]", "sink[first]"]].max(axis=1),
    }
    signature = frame.sources(scores, [str(scores.columns[0])])
    return frame.table(columns, frame.rows(scores), f"graded_roles|{signature}")


def pooled_survival(
    models: Mapping[str, pd.DataFrame],
    outcomes: Sequence[str],
    *,
    predictors: Sequence[str] = PREDICTORS,
    covariates: Sequence[str] = COVARIATES,
    n_permutations: int = 9999,
    seed: int = 0,
) -> pd.DataFrame:
    """Test over several models whether `predictors` rank the surviving heads.

    The test is a random-effects meta-analysis.

    Of each model the partial rank correlation within layers, given `covariates`, is taken over the layers in which the
    outcome varies; Fisher's z of all models is pooled with the between-model variance of DerSimonian and Laird and the
    interval of Hartung and Knapp, which has as many degrees of freedom as there are models less one.

    Args:
        models: One table per trained model, one row per head: `predictors`, `covariates` and `outcomes`.
        outcomes: Columns of survival: the share of gate seeds in which the head survives.
        predictors: Columns of `graded_roles` to test.
        covariates: Columns to adjust for.
        n_permutations: Permutations of the outcome's residuals within the layers of each model (Freedman and Lane).
        seed: Seed of the permutations.

    Returns:
        One row per outcome and predictor: `models`, `r` with `r.low` and `r.high`, `p` (two-sided, t), `holm` over all
        rows, `agree` (share of models with the sign of `r`), `i2` (share of variance between models), `p.within` (the
        permutation p of the mean z).

    Raises:
        ValueError: For fewer than two models, and for a column that a model lacks.
    """
    if len(models) < 2:
        raise ValueError(f"too few models to pool: got {len(models)}; expected at least 2, trained from other seeds")
    for name, table in models.items():
        if lacking := [column for column in (*outcomes, *predictors, *covariates) if column not in table]:
            raise ValueError(f"model {name!r} lacks column {lacking[0]!r}; it has {', '.join(map(str, table))}")
    rows = []
    for outcome in outcomes:
        for predictor in predictors:
            residuals = [residual_ranks(table, predictor, outcome, covariates) for table in models.values()]
            rows.append({"outcome": outcome, "predictor": predictor} | _pooled(residuals, n_permutations, seed))
    table = pd.DataFrame(rows)
    table["holm"] = holm(table["p"].to_numpy(float))
    text = frame.sign(
        pooled="random effects",
        models=",".join(models),
        covariates=",".join(covariates),
        permutations=n_permutations,
        seed=seed,
    )
    return frame.signed(table, text)


def residual_ranks(
    table: pd.DataFrame, predictor: str, outcome: str, covariates: Sequence[str]
) -> tuple[Array, Array, Whole, int]:
    """Return ranks of predictor and outcome within layers, less covariates; layers; degrees of freedom."""
    kept = table[[predictor, outcome, *covariates]].dropna().sort_index()
    layers = strata(kept.index)
    varies = kept[outcome].groupby(layers).transform("nunique").to_numpy() > 1
    kept, layers = kept[varies], layers[varies]
    ranks = {name: centred_ranks(kept[name].to_numpy(float), layers) for name in kept}
    adjusted = np.stack([ranks[name] for name in covariates], 1) if covariates else np.empty((len(kept), 0))
    x, y = (ranks[name] - adjusted @ np.linalg.lstsq(adjusted, ranks[name])[0] for name in (predictor, outcome))
    return x, y, layers, len(kept) - len(np.unique(layers)) - len(covariates) - 2


def _pooled(residuals: Sequence[tuple[Array, Array, Whole, int]], n_permutations: int, seed: int) -> dict[str, float]:
    """Numbers of one row; NaN for fewer than two usable models."""
    usable = [(x, y, layers, freedom) for x, y, layers, freedom in residuals if freedom > 0 and x.any() and y.any()]
    if len(usable) < 2:
        missing = ("r", "r.low", "r.high", "p", "agree", "i2", "p.within")
        return {"models": len(usable), **dict.fromkeys(missing, np.nan)}
    z = np.array([fisher_z(x, y) for x, y, _, _ in usable])
    variance = 1 / np.array([freedom for *_, freedom in usable])
    mean, low, high, p, share = random_effects(z, variance)
    random = np.random.default_rng(seed)
    permuted = np.zeros(n_permutations)
    for x, y, layers, _ in usable:
        permuted += fisher_z(x, permuted_values(y, layers, n_permutations, random)) / len(usable)
    return {
        "models": len(usable),
        **dict(zip(("r", "r.low", "r.high"), np.tanh([mean, low, high]).tolist(), strict=True)),
        "p": p,
        "agree": float((np.sign(z) == np.sign(mean)).mean()),
        "i2": share,
        "p.within": p_value(permuted, float(z.mean())),
    }


def random_effects(effects: Array, variance: Array) -> tuple[float, float, float, float, float]:
    """Compute mean, ends of its 95 % interval, p and I2 of effects (DerSimonian and Laird; Hartung and Knapp)."""
    count, fixed = len(effects), 1 / variance
    q = float((fixed * (effects - (fixed * effects).sum() / fixed.sum()) ** 2).sum())
    between = max(0.0, (q - count + 1) / (fixed.sum() - (fixed**2).sum() / fixed.sum()))
    weights = 1 / (variance + between)
    mean = float((weights * effects).sum() / weights.sum())
    spread = float((weights * (effects - mean) ** 2).sum() / (count - 1))
    error = np.sqrt(max(1.0, spread) / weights.sum())  # never less than the plain random-effects interval
    half = stats.t.ppf(0.975, count - 1) * error
    p = float(2 * stats.t.sf(abs(mean) / error, count - 1))
    return mean, mean - half, mean + half, p, max(0.0, 1 - (count - 1) / q) if q else 0.0


def fisher_z(x: Array, y: Array) -> Array:
    """Return Fisher's z of the correlation of x [heads] with each row of y [..., heads]."""
    r = y @ x / np.sqrt((x @ x) * (y**2).sum(-1))
    return np.asarray(np.arctanh(np.clip(r, -0.999, 0.999)))
