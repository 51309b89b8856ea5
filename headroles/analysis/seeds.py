"""Heads of models from several seeds: their matches by similarity, and which roles recur (no torch)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations, pairwise
from typing import Literal, get_args

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment

from headroles.analysis import role_rules
from headroles.analysis.association import is_outcome, measurements
from headroles.analysis.intervals import LEVEL, PERMUTATIONS, Array, Bools, Whole, Z, corrected, strata, t_limit
from headroles.analysis.role_rules import ROLES, Role
from headroles.tables import frame
from headroles.tables.arguments import one_of

Similarity = Callable[[int, int, int], Array]  # two models, a resample (0: the corpus) -> [heads of one, of the other]
Tables = Mapping[str, pd.DataFrame] | Sequence[pd.DataFrame]
Match = Literal["layer", "same"]
Pairs = Literal["all", "next"]
ALL = "all heads"


def stability(
    tables: Tables,
    *,
    match: Match = "layer",
    pairs: Pairs = "all",
    columns: Sequence[str] | None = None,
    roles: Iterable[Role] = ROLES,
    n_resamples: int = 200,
    n_permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> pd.DataFrame:
    """Match the heads of models of one shape: which heads and roles recur?

    Heads have other numbers in a model trained from another seed. They are matched one to one, so that their mean
    similarity is largest (Hungarian method). Bali et al. 2026 (arXiv 2602.16740) ask the same, but take the best match
    in the layer for each head, which several heads may share.

    Args:
        tables: Tables of `hr.score` of two or more models with the same heads, on the same text.
        match: Heads are matched within their "layer", or each head is compared with the "same" one (checkpoints of one
            training).
        pairs: "all" pairs of models, or each model with the "next" (checkpoints in order).
        columns: Scores by which heads are compared; by default all that every table has.
        roles: Roles to look for.
        n_resamples: Bootstrap resamples of the tables to use; fewer if the tables have fewer.
        n_permutations: Permutations for the chance level.
        seed: Seed of the permutations.

    Returns:
        One row per `quantity` and `of`, its `value` a mean over pairs of models:

        - "similarity" of matched heads, of all and of each layer: 1 less half the mean squared difference of
          standardised scores. Equal heads have 1, and two heads drawn at random 0 on average.
        - "matched", of each role: share of its heads that are matched to a head with it, 2 both / (first + second).
        - "layers", of each role: the same for the number of its heads in each layer, without matching.

        `models` counts the models that have the role, `heads` its heads on average. `low` and `high` are a 95 %
        interval over sentences, by the resamples; from three models on (all pairs) also over models, by the jackknife
        with t. `chance`, with `chance.low` and `chance.high` (95 % of permutations), is the value if the heads of each
        layer are distributed over the models at random and matched again, or, with match="same", change places within
        their layer. `p`, one-sided, is against chance, and `holm` and `bh` correct it for all rows. A value that no
        permutation changes has no chance and no p.

    Raises:
        ValueError: For fewer than two tables, tables of different heads, and if no score is left.
    """  # noqa: DOC502
    one_of("match", match, get_args(Match))
    one_of("pairs", pairs, get_args(Pairs))
    models, index = _ordered(tables)
    used = scores_of(models, columns)
    similarity, layers = by_scores(models, used), strata(index)
    assigned = [role for role in roles if all(role_rules.assignable(table, [role]) for table in models)]
    drawn = [frame.resamples(table) for table in models]
    draws = min(n_resamples, *(values.shape[1] for part in drawn for values in part.values())) if all(drawn) else 0
    held = np.array([[_held(table, role, draws) for role in assigned] for table in models], bool)
    held = held.reshape(len(models), len(assigned), 1 + draws, len(index))
    distributed = _distributed(index, len(models), n_permutations, seed, alone=match == "same")
    numbers = range(len(models))
    everything = np.block([[similarity(left, right, 0) for right in numbers] for left in numbers])  # all models' heads
    every_role = np.concatenate([*held[:, :, 0]], axis=-1)  # [role, heads of all models]
    compared = list(combinations(numbers, 2) if pairs == "all" else pairwise(numbers))
    statistics = partial(_statistics, layers=layers, match=match)
    values, permuted = [], []
    for earlier, later in compared:
        pairs_of_draws = zip(held[earlier].swapaxes(0, 1), held[later].swapaxes(0, 1), strict=True)
        values.append([statistics(similarity(earlier, later, at), *pair) for at, pair in enumerate(pairs_of_draws)])
        for first, second in zip(distributed[:, earlier], distributed[:, later], strict=True):
            permuted.append(statistics(everything[np.ix_(first, second)], every_role[:, first], every_role[:, second]))
    estimates = np.array(values)  # [pair, 1 + draws, statistic]
    chance = np.array(permuted).reshape(len(compared), n_permutations, estimates.shape[2])
    table = _labels([role.name for role in assigned], held[:, :, 0], index)
    table = pd.concat([table, _summary(estimates, chance, compared if pairs == "all" else [])], axis=1)
    table["low"] = table["low"].where(table["quantity"] == "similarity", table["low"].clip(lower=0))
    table = table[table["value"].notna()]
    sizes = {"resamples": draws, "permutations": n_permutations}
    options = frame.sign(stability=match, pairs=pairs, by="scores", **sizes, seed=seed)
    of = frame.holding(**{f"model {place}": frame.sources(model, used) for place, model in enumerate(models)})
    return frame.signed(corrected(table.reset_index(drop=True)), options, of)


def match_heads(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Match each head of a model to one in the same layer of another model of the same shape.

    Args:
        first: Table of `hr.score` of a model.
        second: The same of another model, on the same text.

    Returns:
        A row per head of the first model: `match.layer` and `match.head`, its match, and their `similarity`, as in
        `stability`.
    """
    models, index = _ordered([first, second])
    used = scores_of(models, None)
    similar = by_scores(models, used)(0, 1, 0)
    places = _matched(similar, strata(index))
    table = pd.DataFrame({f"match.{level}": index.get_level_values(level)[places] for level in ("layer", "head")})
    table = table.assign(similarity=similar[np.arange(len(index)), places]).set_index(index)
    of = frame.holding(first=frame.sources(first, used), second=frame.sources(second, used))
    return frame.signed(table, frame.sign(match="layer"), of)


def _ordered(tables: Tables) -> tuple[list[pd.DataFrame], pd.MultiIndex]:
    """Return the tables with their heads in order, and the heads."""
    named: dict[object, pd.DataFrame] = dict(tables.items() if isinstance(tables, Mapping) else enumerate(tables))
    if len(named) < 2:
        raise ValueError(f"tables must be of two or more models, got {len(named)}")
    first, *rest = named
    index = frame.rows(named[first].sort_index())
    for name in rest:
        frame.check_same_heads(named[first], named[name], f"tables {first!r} and {name!r}")
    return [table.loc[index] for table in named.values()], index


def scores_of(tables: Sequence[pd.DataFrame], columns: Sequence[str] | None) -> list[str]:
    """Return the columns by which heads are compared: `columns`, or all scores that every table has."""
    known = shared_scores(*tables)
    chosen = [name for name in known if not is_outcome(name, tables[0])] if columns is None else list(columns)
    if not chosen or not set(chosen) <= set(known):
        raise ValueError(f"columns must be some of {frame.listed(known)}, got {frame.listed(chosen)}")
    return chosen


def shared_scores(*tables: pd.DataFrame) -> list[str]:
    """Return the measurements that all tables have, but for `position[offset]`: a difference of two says nothing."""
    return [name for name in measurements(*tables) if name != "position[offset]"]


def by_scores(tables: Sequence[pd.DataFrame], chosen: Sequence[str]) -> Similarity:
    """Return the similarity of heads by their scores: 1 minus half the mean squared difference.

    Scores are standardised over the heads of a kind of all models. A score that is missing for some head of a kind, or
    constant, is left out for that kind.

    Raises:
        ValueError: If no score is left for the heads of a kind.
    """
    kinds = tables[0].index.get_level_values("kind").to_numpy()
    values = np.stack([table[list(chosen)].to_numpy(float) for table in tables])  # [model, heads, columns]
    mean, scale = np.zeros(values.shape[1:]), np.full(values.shape[1:], np.inf)
    for kind in np.unique(kinds):
        part = values[:, kinds == kind].reshape(-1, len(chosen))
        usable = np.isfinite(part).all(0) & (np.ptp(part, axis=0) > 0)
        if not usable.any():
            needed = f"some score must vary over the {kind} heads and be known for all"
            raise ValueError(f"{needed}, got {', '.join(chosen)}; try other columns")
        mean[np.ix_(kinds == kind, usable)] = part[:, usable].mean(0)
        scale[np.ix_(kinds == kind, usable)] = part[:, usable].std(0) * np.sqrt(2 * usable.sum())
    drawn = map(frame.resamples, tables)
    draws = [{at: part[name] for at, name in enumerate(chosen) if name in part} for part in drawn]

    def standardised(model: int, draw: int) -> Array:
        scores = values[model].copy()
        for place, resampled in draws[model].items() if draw else ():
            scores[:, place] = resampled[:, draw - 1]
        return np.where(np.isfinite(scale) & np.isfinite(scores), (scores - mean) / scale, 0.0)

    def similarity(left: int, right: int, draw: int) -> Array:
        a, b = standardised(left, draw), standardised(right, draw)
        return np.asarray(1 - (a**2).sum(1)[:, None] - (b**2).sum(1) + 2 * a @ b.T)

    return similarity


def _held(table: pd.DataFrame, role: Role, draws: int) -> Bools:
    """Return whether heads have any variant of a role, on the corpus and on its resamples: [1 + draws, heads]."""
    held = np.zeros((1 + draws, len(table)), bool)
    for _, column in role.variants(table.columns):
        held[0] |= role_rules.holders(table, role, column)
        resampled = role_rules.resampled_holders(table, role, column)
        if draws and resampled is not None:
            held[1:] |= resampled[:, :draws].T
    return held


def _distributed(index: pd.MultiIndex, models: int, n_permutations: int, seed: int, *, alone: bool) -> Whole:
    """Shuffle the heads of all models within layers, with `alone` within each model: [permutations, model, heads]."""
    random, layers, size = np.random.default_rng(seed), strata(index), len(index)
    distributed: Whole = np.tile(np.arange(models * size).reshape(models, size), (n_permutations, 1, 1))
    for layer in np.unique(layers):
        part = distributed[..., layers == layer]
        both = part if alone else part.reshape(n_permutations, models * part.shape[-1])
        distributed[..., layers == layer] = random.permuted(both, axis=-1).reshape(part.shape)
    return distributed


def _matched(similarity: Array, layers: Whole) -> Whole:
    """Return the place of each head's match in its layer: [heads]."""
    matches: Whole = np.arange(len(similarity))
    for layer in np.unique(layers):
        places = np.flatnonzero(layers == layer)
        matches[places] = places[linear_sum_assignment(similarity[np.ix_(places, places)], maximize=True)[1]]
    return matches


def _statistics(similarity: Array, first: Bools, second: Bools, layers: Whole, match: Match) -> Array:
    """Compute the statistics of a pair of models, in the order of `_labels`; roles as [roles, heads]."""
    matches = _matched(similarity, layers) if match == "layer" else np.arange(len(similarity))
    matched = similarity[np.arange(len(matches)), matches]
    members = layers == np.arange(layers.max() + 1)[:, None]  # [layer, heads]
    counts = [held.astype(float) @ members.T for held in (first, second)]  # [roles, layer]
    with np.errstate(invalid="ignore"):  # roles that no head of the two models has
        both = np.stack([(first & second[:, matches]).sum(1), np.minimum(*counts).sum(1)])
        shares = 2 * both / (first.sum(1) + second.sum(1))
    by_layer = members @ matched / members.sum(1)
    return np.concatenate([[matched.mean()], by_layer, *shares])


def _labels(roles: Sequence[str], held: Bools, index: pd.MultiIndex) -> pd.DataFrame:
    """Return name, number of models and number of heads of each statistic; `held` is [models, roles, heads]."""
    counts, models, layers = held.sum(2), len(held), [f"{kind}:{layer}" for kind, layer, _ in index]
    rows: list[tuple[str, str, int, float]] = [("similarity", ALL, models, len(index))]
    rows += [("similarity", layer, models, layers.count(layer)) for layer in dict.fromkeys(layers)]
    of = list(zip(roles, (counts > 0).sum(0).tolist(), counts.mean(0).tolist(), strict=True))
    rows += [(quantity, *row) for quantity in ("matched", "layers") for row in of]
    return pd.DataFrame(rows, columns=["quantity", "of", "models", "heads"])


def _summary(values: Array, chance: Array, compared: Sequence[tuple[int, int]]) -> pd.DataFrame:
    """Compute means over pairs, with intervals, chance levels and p; `compared` are all pairs of models, or empty."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # roles that no model has
        mean, null = np.nanmean(values, axis=0), np.nanmean(chance, axis=0)  # [1 + draws or permutations, statistic]
        half = Z * np.nanstd(mean[1:], axis=0) if len(mean) > 1 else np.full(mean.shape[1], np.nan)
        models = 1 + max((right for _, right in compared), default=0)
        if models > 2:
            rest = [[model not in pair for pair in compared] for model in range(models)]
            left_out = np.stack([np.nanmean(values[kept, 0], axis=0) for kept in rest])
            error = np.sqrt((models - 1) * left_out.var(axis=0))
            half = np.hypot(np.nan_to_num(half), t_limit(models - 1) * error)
        chance = np.full((3, len(half)), np.nan)
        if len(null):
            chance = np.stack([null.mean(0), *np.nanquantile(null, [LEVEL / 2, 1 - LEVEL / 2], axis=0)])
    observed = mean[0]
    p = np.where(np.isnan(observed), np.nan, (1 + (null >= observed - 1e-12).sum(0)) / (1 + len(null)))
    unmoved = len(null) and (np.abs(null - observed) < 1e-12).all(0)  # no permutation changes it
    middle, low, high, p = np.where(unmoved, np.nan, [*chance, p])
    columns = {"value": observed, "low": observed - half, "high": np.minimum(observed + half, 1.0)}
    return pd.DataFrame(columns | {"chance": middle, "chance.low": low, "chance.high": high, "p": p})
