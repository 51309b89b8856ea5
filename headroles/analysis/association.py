"""Relations: do heads with a role matter more than others, beyond their layer and kind? (no torch)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import numpy as np
import pandas as pd

from headroles.analysis import intervals, role_rules
from headroles.analysis.intervals import (
    PERMUTATIONS,
    Array,
    Bools,
    Whole,
    binary,
    corrected,
    relation,
    spearman,
    strata,
)
from headroles.tables import frame
from headroles.tables.arguments import one_of
from headroles.tables.columns import ENDS, Column
from headroles.tables.declared import carried, declared, quality, signature_of
from headroles.tables.frame import KINDS, Kind

log = logging.getLogger(__name__)
By = Literal["family", "variant"]

OUTCOMES = ("ablation", "importance", "relevance", "attribution", "survival")  # families of columns
ANY = "any"  # the family of all special roles
NUMBERS = ("difference", "median", "auc", "rank_biserial", "point_biserial", "spearman", "within")
NOWHERE = "the role does not apply to the heads with this outcome"
NO_SCORE = (
    "the role's score is NaN for all these heads: it does not apply to their kind, or the corpus lacks what it needs"
)
NOBODY, EVERYBODY = "no head has the role", "all heads have the role: there is no comparison group"
CONSTANT = "the outcome is the same for all heads"
ONE_GROUP = "no layer has heads with the role and heads without: role and layer are confounded"
ALONE = "a single head on one side: no interval"
FEW_PERMUTATIONS = "too few permutations within layers: no interval of within"
ALIKE = "the outcome is the same for all heads with the role, or for all without: no interval of differences"
NO_SPREAD = "too few heads, or nothing varies but by the role: no interval of the difference"


def associations(
    roles: pd.DataFrame,
    outcomes: pd.DataFrame,
    *,
    by: By = "family",
    columns: Sequence[str] | None = None,
    kinds: Sequence[Kind] | None = None,
    n_resamples: int = 1000,
    n_permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare the outcomes of heads with and without each role, as `hr.relate`, which has the documentation."""
    chosen = outcomes_of(outcomes, columns)
    frame.check_same_heads(roles, outcomes, "roles and outcomes")
    if kinds is not None:
        for kind in kinds:
            one_of("kind", kind, roles.index.unique("kind"))
        roles = roles[roles.index.get_level_values("kind").isin(kinds)]
    roles = roles.sort_index()  # permutations do not depend on the order of the rows
    outcomes = outcomes.loc[roles.index]
    _warn_of_other_weights(roles, outcomes)
    layers = strata(roles.index)
    rows = [
        {"role": name, "outcome": column, "matters": matters(column, signature_of(outcomes, column))}
        | _relation(held, margin, values(outcomes, column).to_numpy(float), layers, n_resamples, n_permutations, seed)
        for name, held, margin in _with_any(list(_roles(roles, by)))
        for column in chosen
    ]
    table = corrected(pd.DataFrame(rows))
    options = frame.sign(relate=by, resamples=n_resamples, permutations=n_permutations, seed=seed)
    of = {"roles": frame.sources(roles, role_rules.names(roles)), "outcomes": frame.sources(outcomes, chosen)}
    return frame.signed(table, options, frame.holding(**of), carried(roles, outcomes))


def outcomes_of(table: pd.DataFrame, columns: Sequence[str] | None) -> list[str]:
    """Return the outcomes in a table, or `columns`, which must be among its measurements."""
    known = [str(name) for name in table if measured(str(name), table)]
    chosen = [name for name in known if is_outcome(name, table)] if columns is None else list(columns)
    if not chosen or not set(chosen) <= set(known):
        expected = ", ".join(OUTCOMES if columns is None else chosen)
        hint = "; make them with hr.ablate" if columns is None else ""
        raise ValueError(f"outcomes must have columns of {expected}, got {frame.listed(known)}{hint}")
    return chosen


def values(table: pd.DataFrame, outcome: str) -> pd.Series[float]:
    """Return an outcome, NaN for heads of kinds that were not pruned, as in `survival[l0 12 enc-self]`."""
    could = table.index.get_level_values("kind").isin(Column.parse(outcome).kinds or KINDS)
    return finite(table[outcome]).where(could)


def finite(column: pd.Series) -> pd.Series[float]:
    """Return a column as numbers, NaN where unknown; raise ValueError where it is infinite."""
    known = column.astype(float)
    if (beyond := np.isinf(known)).any():
        first = ":".join(map(str, known.index[beyond][0]))
        raise ValueError(
            f"{column.name!r} must be finite, or NaN where unknown, got an infinite number for head {first}"
        )
    return known


def is_outcome(name: str, table: pd.DataFrame) -> bool:
    """Return whether a column is an outcome by its family, or is of a score that declares `matters`."""
    family = Column.parse(name).name
    return family in OUTCOMES or "matters" in declared("score", family, signature_of(table, name))


def matters(outcome: str, signature: str = "") -> str:
    """Return which values of an outcome mean that a head matters more; "unknown" for other columns and metrics.

    An effect of ablation is the metric with the head ablated, minus that of the intact model. With all but one head of
    a layer ablated, a better metric means that the remaining head matters more.
    """
    column = Column.parse(outcome)
    if column.name != "ablation":
        known = "higher" if column.name in OUTCOMES else "unknown"
        return declared("score", column.name, signature).get("matters", known)
    better = quality(column.metric or "", signature).better
    if not better:
        return "unknown"
    return "higher" if (better < 0) != ("all_but_one" in column.words) else "lower"


def measured(name: str, table: pd.DataFrame) -> bool:
    """Return whether a column is a measurement, not its interval, its p or another companion."""
    plain = Column.parse(name).is_measurement
    return plain and pd.api.types.is_numeric_dtype(table[name]) and not pd.api.types.is_bool_dtype(table[name])


def _roles(roles: pd.DataFrame, by: By) -> Iterator[tuple[str, Bools, Array]]:
    """Name, heads and margins above the threshold of each role; NaN margins where the role does not apply."""
    groups = role_rules.families(roles)
    if one_of("by", by, get_args(By)) == "variant":
        groups = {name: [name] for members in groups.values() for name in members}
    for group, members in groups.items():
        margins = roles[[f"{name}.margin" for name in members]]
        yield group, np.asarray(roles[members].to_numpy(bool).any(1)), margins.max(axis=1).to_numpy(float)


def _with_any(roles: list[tuple[str, Bools, Array]]) -> list[tuple[str, Bools, Array]]:
    """The roles, and all special ones as one role if heads have more than one of them."""
    special = [role for role in roles if Column.parse(role[0]).name in role_rules.SPECIAL]
    if sum(held.any() for _, held, _ in special) < 2:
        return roles
    held = np.any([having for _, having, _ in special], axis=0)
    return [*roles, (ANY, held, np.fmax.reduce([margin for _, _, margin in special]))]


def _relation(
    held: Bools, margin: Array, y: Array, layers: Whole, n_resamples: int, n_permutations: int, seed: int
) -> dict[str, object]:
    """Numbers of a role and an outcome; NaN where `note` gives the reason."""
    known, known_margin = np.isfinite(margin) & np.isfinite(y), np.isfinite(margin).any()
    held, margin, y, layers = held[known], margin[known], y[known], layers[known]
    row: dict[str, object] = {"with": int(held.sum()), "without": int((~held).sum())}
    reasons = (
        (NO_SCORE, not known_margin),
        (NOWHERE, not len(y)),
        (NOBODY, not held.any()),
        (EVERYBODY, held.all()),
        (CONSTANT, len(y) and not np.ptp(y)),
    )
    note = next((reason for reason, holds in reasons if holds), "")
    columns = [f"{name}{end}" for name in NUMBERS for end in ENDS]
    if note:
        row |= dict.fromkeys([*columns, "p"], np.nan) | {"note": note}
        return row if note == CONSTANT or len(y) < 3 else row | _ranks(margin, y, n_resamples)
    numbers = relation(held, margin, y, layers, n_resamples, n_permutations, seed)
    alone, one_group = 1 in (row["with"], row["without"]), bool(np.isnan(numbers["within"]))
    alike = not alone and not binary(y) and 0 in (np.ptp(y[held]), np.ptp(y[~held]))
    expected = not alone and not alike
    few = intervals.needed(n_permutations) > 0 and np.isnan(numbers["within.low"])
    unbounded = intervals.needed(n_resamples) > 0 and np.isnan(numbers["difference.low"])
    lacking = {
        ALONE: alone,
        ONE_GROUP: one_group,
        ALIKE: alike,
        FEW_PERMUTATIONS: expected and not one_group and few,
        NO_SPREAD: expected and unbounded,
    }
    return row | numbers | {"note": "; ".join(text for text, lacks in lacking.items() if lacks)}


def _ranks(margin: Array, y: Array, n_resamples: int) -> dict[str, float]:
    """Rank correlation of outcome and margin if all heads are on one side of the threshold."""
    rank = float(spearman(margin[None], y[None])[0])
    ends = intervals.rank_correlation(rank, len(y)) if n_resamples else intervals.NONE
    return dict(zip(("spearman", "spearman.low", "spearman.high"), (rank, *ends), strict=True))


def _warn_of_other_weights(roles: pd.DataFrame, outcomes: pd.DataFrame) -> None:
    texts: dict[str, str] = {**roles.attrs.get("signatures", {}), **outcomes.attrs.get("signatures", {})}
    digests = (dict(frame.fields(texts.get(str(name), ""))).get("weights") for name in (*roles, *outcomes))
    weights = set(filter(None, digests))
    if len(weights) > 1:
        log.warning(
            "roles and outcomes are of %d different sets of weights: %s", len(weights), ", ".join(sorted(weights))
        )
