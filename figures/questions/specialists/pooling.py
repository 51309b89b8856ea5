"""Meta-analysis over trained models: do roles predict which heads survive, within layers?."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from headroles.analysis.intervals import LEVEL, Array, Whole, centred_ranks, corrections, needed, p_value, strata
from headroles.tables import frame
from headroles.tables.columns import of_name

PREDICTORS = ("positional", "syntactic")
COVARIATES = ("confidence", "sink")
NUMBERS = ("r", "r.low", "r.high", "p", "power", "detectable", "agree", "i2")
NUMBERS += ("population", "population.low", "population.high", "population.p")
ALIKE = 0.8  # rank correlation of the same heads from which on two models must share an encoder


def graded_roles(scores: pd.DataFrame) -> pd.DataFrame:
    """Return how positional and how syntactic each head is, a row each, by a table of `hr.score`.

    `positional` is the larger share at offset -1 or +1; `syntactic`, the largest accuracy less its baseline over
    relations and ways; `confidence`; `sink`, the larger weight on special tokens or the first token.
    """
    relations = of_name(scores, "syntax")
    margins = [scores[name] - scores[f"{name}.baseline"] for name in relations]
    columns = {
        "positional": scores[["position[-1]", "position[+1]"]].max(axis=1),
        "syntactic": pd.concat(margins, axis=1).max(axis=1),
        "confidence": scores["confidence"],
        "sink": scores[["sink[special]", "sink[first]"]].max(axis=1),
    }
    signature = frame.sources(scores, [str(scores.columns[0])])
    return frame.table(columns, frame.rows(scores), f"graded_roles|{signature}")


class Ranks(NamedTuple):
    """Ranks of predictor and outcome of a model within layers, less covariates."""

    x: Array  # [heads]
    y: Array  # [heads]
    layers: Whole  # [heads]
    freedom: int
    places: list[tuple[str, int]]  # kind and layer of each head
    covariates: Array  # orthonormal basis of the covariates' ranks: [heads, covariates]


def pooled_survival(
    models: Mapping[str, pd.DataFrame],
    outcomes: Sequence[str],
    *,
    predictors: Sequence[str] = PREDICTORS,
    covariates: Sequence[str] = COVARIATES,
    encoders: Mapping[str, str] | None = None,
    n_permutations: int = 9999,
    seed: int = 0,
) -> pd.DataFrame:
    """Test over several models whether `predictors` rank the surviving heads.

    Of each model the partial rank correlation within layers, given `covariates`, is taken over the layers in which the
    outcome varies. Fisher's z of all models is averaged, weighted by degrees of freedom. The test permutes the
    outcome's residuals within the layers of each model, and fits the covariates to them again (Freedman and Lane). It
    is about these models: 3 to 15 do not say how much others differ, and the interval of a random-effects mean
    (`population`), kept for the studies that fixed it beforehand, hardly ever rejects (figures/engineering/quality).

    Models with one pretrained encoder share errors: their heads are permuted in the same way, so that they count as
    much as they differ.

    Args:
        models: One table per trained model, one row per head: `predictors`, `covariates` and `outcomes`.
        outcomes: Columns of survival: the share of gate seeds in which the head survives.
        predictors: Columns of `graded_roles` to test.
        covariates: Columns to adjust for.
        encoders: Model -> name of the pretrained encoder that it shares with other models.
        n_permutations: Number of permutations.
        seed: Seed of the permutations.

    Returns:
        One row per outcome and predictor: `models`, `r` with `r.low` and `r.high` (as far to either side as permutation
        rejects), `p` (two-sided), `holm` over all rows; `power`, the chance of p < .05 if r is .5 in every model, and
        `detectable`, the r that is found with a chance of .8 at the strictest step of Holm; `agree` (share of models
        with the sign of `r`), `i2` (share of variance between models); and `population`, `.low`, `.high`, `.p`,
        `.holm` by DerSimonian and Laird and by Hartung and Knapp, at least as wide as the plain random-effects
        interval.

    Raises:
        ValueError: For fewer than two models, for a column that a model lacks, for models of one encoder with other
            heads, and for models whose heads agree as those of one encoder do, without `encoders`.
    """
    if len(models) < 2:
        raise ValueError(f"too few models to pool: got {len(models)}; expected at least 2, trained from other seeds")
    for name, table in models.items():
        if lacking := [column for column in (*outcomes, *predictors, *covariates) if column not in table]:
            raise ValueError(f"model {name!r} lacks column {lacking[0]!r}; it has {', '.join(map(str, table))}")
    shared = dict(encoders or {})
    _check_encoders(models, [*predictors, *covariates, *PREDICTORS, *COVARIATES], shared)
    groups = [shared.get(name, f"model {name}") for name in models]
    rows = []
    for outcome in outcomes:
        for predictor in predictors:
            ranks = [residual_ranks(table, predictor, outcome, covariates) for table in models.values()]
            tests = len(outcomes) * len(predictors)
            rows.append(
                {"outcome": outcome, "predictor": predictor} | _pooled(ranks, groups, n_permutations, seed, tests)
            )
    table = pd.DataFrame(rows)
    for name in ("", "population."):
        table[f"{name}holm"] = corrections(table[f"{name}p"].to_numpy(float))["holm"]
    text = frame.sign(
        pooled="permutation within layers",
        models=",".join(models),
        encoders=",".join(f"{name}={encoder}" for name, encoder in shared.items()) or "own",
        covariates=",".join(covariates),
        permutations=n_permutations,
        seed=seed,
    )
    return frame.signed(table, text)


def _check_encoders(models: Mapping[str, pd.DataFrame], columns: Sequence[str], shared: Mapping[str, str]) -> None:
    """Raise ValueError for models that are not known to share an encoder, and agree head by head."""
    columns = [name for name in dict.fromkeys(columns) if all(name in table for table in models.values())]
    tables = {name: table.sort_index() for name, table in models.items()}
    ranks = {name: ranks_of(table, columns) for name, table in tables.items()}
    for first, second in combinations(models, 2):
        alike = shared.get(first, first) == shared.get(second, second)
        if alike or not tables[first].index.equals(tables[second].index):
            continue
        if (found := agreement(ranks[first], ranks[second])) > ALIKE:
            raise ValueError(
                f"models {first!r} and {second!r} agree head by head: got a rank correlation of {found:.2f} within "
                f"layers, mean over {', '.join(columns)}; expected models trained apart; say which share a pretrained "
                f"encoder: encoders={{model: encoder}}"
            )


def ranks_of(table: pd.DataFrame, columns: Sequence[str]) -> Array:
    """Return the ranks of columns within layers, less their mean; 0 where a value is missing: [heads, columns]."""
    layers = strata(table.index)
    ranks = [np.nan_to_num(centred_ranks(table[name].to_numpy(float), layers)) for name in columns]
    return np.stack(ranks, axis=1)


def agreement(first: Array, second: Array) -> float:
    """Return the correlation of the ranks of the same heads, [heads, columns], mean over columns."""
    scales = np.sqrt((first**2).sum(0) * (second**2).sum(0))
    found = (first * second).sum(0)[scales > 0] / scales[scales > 0]
    return float(found.mean()) if len(found) else 0.0


def residual_ranks(table: pd.DataFrame, predictor: str, outcome: str, covariates: Sequence[str]) -> Ranks:
    """Return ranks of predictor and outcome within layers, less covariates."""
    kept = table[[predictor, outcome, *covariates]].dropna().sort_index()
    layers = strata(kept.index)
    varies = kept[outcome].groupby(layers).transform("nunique").to_numpy() > 1
    kept, layers = kept[varies], layers[varies]
    ranks = {name: centred_ranks(kept[name].to_numpy(float), layers) for name in kept}
    adjusted = np.stack([ranks[name] for name in covariates], 1) if covariates else np.empty((len(kept), 0))
    axes, sizes, _ = np.linalg.svd(adjusted, full_matrices=False)
    basis = axes[:, sizes > 1e-9 * sizes.max(initial=0)]
    x, y = (ranks[name] - adjusted @ np.linalg.lstsq(adjusted, ranks[name])[0] for name in (predictor, outcome))
    freedom = len(kept) - len(np.unique(layers)) - len(covariates) - 2
    return Ranks(x, y, layers, freedom, [head[:2] for head in kept.index], basis)


def _pooled(
    ranks: Sequence[Ranks], groups: Sequence[str], n_permutations: int, seed: int, tests: int
) -> dict[str, float]:
    """Numbers of one row; NaN for fewer than two usable models."""
    usable = [
        (part, group)
        for part, group in zip(ranks, groups, strict=True)
        if part.freedom > 0 and part.x.any() and part.y.any()
    ]
    if len(usable) < 2:
        return {"models": len(usable), **dict.fromkeys(NUMBERS, np.nan)}
    z = np.array([fisher_z(part.x, part.y) for part, _ in usable])
    freedom = np.array([part.freedom for part, _ in usable])
    numbers = {group: number for number, group in enumerate(sorted({group for _, group in usable}))}
    permuted = np.zeros(n_permutations)
    for (part, group), weight in zip(usable, freedom / freedom.sum(), strict=True):
        permuted += weight * fisher_z(part.x, permuted_alike(part, n_permutations, [seed, numbers[group]]))
    mean = float(freedom @ z / freedom.sum())
    sizes, effect = np.sort(np.abs(permuted)), np.arctanh(0.5)
    half = float(sizes[-needed(n_permutations)])  # what p of 0.05 is
    strict = float(np.quantile(sizes, 1 - LEVEL / tests, method="higher"))
    middle, low, high, p, share = random_effects(z, 1 / freedom)
    values = (
        *np.tanh([mean, mean - half, mean + half]).tolist(),
        p_value(permuted, mean),
        float((np.abs(permuted + effect) > half).mean()),
        float(np.tanh(strict + np.quantile(permuted, 0.8))),
        float((np.sign(z) == np.sign(mean)).mean()),
        share,
        *np.tanh([middle, low, high]).tolist(),
        p,
    )
    return {"models": len(usable), **dict(zip(NUMBERS, values, strict=True))}


def permuted_alike(part: Ranks, n_permutations: int, seed: Sequence[int]) -> Array:
    """Permute the outcome within layers, alike for the same seed and layer, less covariates: [permutations, heads]."""
    permuted = np.empty((n_permutations, len(part.y)))
    for layer in np.unique(part.layers):
        heads = np.flatnonzero(part.layers == layer)
        kind, number = part.places[heads[0]]
        generator = np.random.default_rng([*seed, frame.KINDS.index(kind), number, len(heads)])
        permuted[:, heads] = part.y[heads][generator.random((n_permutations, len(heads))).argsort(1)]
    return permuted - permuted @ part.covariates @ part.covariates.T


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
