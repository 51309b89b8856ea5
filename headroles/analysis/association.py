"""Relations: do heads with a role matter more than others, beyond their layer and kind? (no torch)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import numpy as np
import pandas as pd

from headroles.analysis import intervals, role_rules
from headroles.analysis.intervals import Array, Bools, Whole, corrected, spearman, strata, with_ends
from headroles.tables import frame
from headroles.tables.arguments import one_of
from headroles.tables.columns import ENDS, Column
from headroles.tables.declared import RELATED, carried, declared, quality, signature_of
from headroles.tables.frame import KINDS, Kind

log = logging.getLogger(__name__)
By = Literal["family", "variant"]

OUTCOMES = ("ablation", "importance", "relevance", "attribution", "survival")  # families of columns
ANY = "any"  # the family of all special roles
NOWHERE = "the role does not apply to the heads with this outcome"
NO_SCORE = (
    "the role's score is NaN for all these heads: it does not apply to their kind, or the corpus lacks what it needs"
)
NOBODY, EVERYBODY = "no head has the role", "all heads have the role: there is no comparison group"
CONSTANT = "the outcome is the same for all heads"
ONE_GROUP = "no layer has heads with the role and heads without: role and layer are confounded"
ENOUGH = 5  # heads on each side: with fewer p errs where spreads differ (engineering/quality/relation-tests.csv)
FEW_HEADS = f"too few heads on one side ({ENOUGH} are the least, 2 of outcomes of 0 and 1): no p and no interval"
FEW_PERMUTATIONS = "too few permutations within layers: no interval of within"
ALIKE = "the outcome is the same for all heads with the role, or for all without: no p, no interval of differences"
NO_SPREAD = "too few heads, or nothing varies but by the role: no interval of the difference"


def associations(
    roles: pd.DataFrame,
    outcomes: pd.DataFrame,
    by: By,
    columns: Sequence[str] | None,
    kinds: Sequence[Kind] | None,
    n_resamples: int,
    n_permutations: int,
    seed: int,
) -> pd.DataFrame:
    """Compare the outcomes of heads with and without each role; documented at `hr.relate`."""
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
        for name, held, margin in _roles(roles, by)
        for column in chosen
    ]
    table = corrected(pd.DataFrame(rows))
    options = frame.sign(relate=by, resamples=n_resamples, permutations=n_permutations, seed=seed)
    of = {"roles": frame.sources(roles, role_rules.names(roles)), "outcomes": frame.sources(outcomes, chosen)}
    return frame.signed(table, options, frame.holding(**of), carried(roles, outcomes))


def outcomes_of(table: pd.DataFrame, words: Sequence[str] | None) -> list[str]:
    """Return the outcomes in a table; with `words`, these columns, or the outcomes that begin with them.

    Raises:
        ValueError: If there is no outcome, and for a word with which no outcome, nor its bracket, begins.
    """
    known = measurements(table)
    if words and set(words) <= set(known):
        return list(words)
    outcomes = [name for name in known if is_outcome(name, table)]
    if not outcomes:
        expected = f"of {', '.join(OUTCOMES)}, got {frame.listed(known)}"
        raise ValueError(f"outcomes must have columns {expected}; make them with hr.ablate")
    for word in words or ():
        if not any(_begins(name, word) for name in outcomes):
            one_of("outcome", word, outcomes)
    return [name for name in outcomes if not words or any(_begins(name, word) for word in words)]


def _begins(name: str, word: str) -> bool:
    return name.startswith(word) or (Column.parse(name).detail or "").startswith(word)


def values(table: pd.DataFrame, outcome: str) -> pd.Series[float]:
    """Return an outcome, NaN for heads of kinds that were not pruned, as in `survival[l0 12 enc-self]`."""
    could = table.index.get_level_values("kind").isin(Column.parse(outcome).kinds or KINDS)
    return finite(table[outcome]).where(could)


def finite(column: pd.Series[float]) -> pd.Series[float]:
    """Return a column as numbers, NaN where unknown; raise ValueError where it is infinite."""
    known = column.astype(float)
    for head in known.index[np.isinf(known)]:
        where = ":".join(map(str, head))
        raise ValueError(
            f"{column.name!r} must be finite, or NaN where unknown, got an infinite number for head {where}"
        )
    return known


def is_outcome(name: str, table: pd.DataFrame) -> bool:
    """Return whether a column is an outcome by its family, or is of a score that declares `matters`."""
    family = Column.parse(name).name
    return family in OUTCOMES or "matters" in declared("score", family, signature_of(table, name))


def matters(outcome: str, signature: str = "") -> str:
    """Return which values of an outcome mean that a head matters more; "unknown" for other columns and metrics.

    An effect of ablation is the metric with the head ablated, less the metric of the intact model. With all but one
    head of a layer ablated, a better metric means that the remaining head matters more.
    """
    column = Column.parse(outcome)
    if column.name != "ablation":
        known = "higher" if column.name in OUTCOMES else "unknown"
        return declared("score", column.name, signature).get("matters", known)
    better = quality(column.metric or "", signature).better
    if not better:
        return "unknown"
    return "higher" if (better < 0) != ("all_but_one" in column.words) else "lower"


def measurements(*tables: pd.DataFrame) -> list[str]:
    """Return the columns that all tables have as measurements, not as intervals, p or other companions."""
    known = set.intersection(*(set(table.select_dtypes("number")) for table in tables))
    return [str(name) for name in tables[0] if name in known and Column.parse(name).is_measurement]


def _roles(roles: pd.DataFrame, by: By) -> Iterator[tuple[str, Bools, Array]]:
    """Name, heads and margins of each role, and of ANY; margins are NaN where the role does not apply."""
    groups = role_rules.families(roles)
    if one_of("by", by, get_args(By)) == "variant":
        groups = {name: [name] for members in groups.values() for name in members}
    special = []
    for group, members in groups.items():
        held = np.asarray(roles[members].to_numpy(bool).any(1))
        margin = roles[[f"{name}.margin" for name in members]].max(axis=1).to_numpy(float)
        yield group, held, margin
        if Column.parse(group).name in role_rules.SPECIAL:
            special.append((held, margin))
    if sum(held.any() for held, _ in special) > 1:  # of one, it would be the same
        helds, margins = zip(*special, strict=True)
        yield ANY, np.any(helds, axis=0), np.fmax.reduce(margins)


def _relation(
    held: Bools, margin: Array, y: Array, layers: Whole, n_resamples: int, n_permutations: int, seed: int
) -> dict[str, object]:
    """Compute the numbers of a role and an outcome; NaN where `note` gives the reason."""
    known, has_score = np.isfinite(margin) & np.isfinite(y), np.isfinite(margin).any()
    held, margin, y, layers = held[known], margin[known], y[known], layers[known]
    row: dict[str, object] = {"with": int(held.sum()), "without": int((~held).sum())}
    reasons = {
        NO_SCORE: not has_score,
        NOWHERE: not len(y),
        NOBODY: not held.any(),
        EVERYBODY: held.all(),
        CONSTANT: len(y) and not np.ptp(y),
    }
    if note := next((reason for reason, holds in reasons.items() if holds), ""):
        row |= dict.fromkeys([*(f"{name}{end}" for name in RELATED for end in ENDS), "p"], np.nan) | {"note": note}
        if note != CONSTANT and len(y) > 2:  # all heads are on one side of the threshold
            rank = float(spearman(margin[None], y[None])[0])
            row |= with_ends("spearman", rank, intervals.rank_correlation(rank, len(y) if n_resamples else 0))
        return row
    numbers = intervals.relation(held, margin, y, layers, n_resamples, n_permutations, seed)
    is_binary, one_group = intervals.binary(y), bool(np.isnan(numbers["within"]))
    few_heads = min(held.sum(), (~held).sum()) < (2 if is_binary else ENOUGH)  # of 0 and 1 equal means spread alike
    alike = not (few_heads or is_binary) and 0 in (np.ptp(y[held]), np.ptp(y[~held]))
    few = intervals.needed(n_permutations) > 0 and np.isnan(numbers["within.low"])
    unbounded = intervals.needed(n_resamples) > 0 and np.isnan(numbers["difference.low"])
    if few_heads:
        numbers |= {f"{name}{end}": np.nan for name in RELATED for end in ENDS[1:] if name != "spearman"}
    if few_heads or alike:
        numbers["p"] = np.nan
    lacking = {
        FEW_HEADS: few_heads,
        ONE_GROUP: one_group,
        ALIKE: alike,
        FEW_PERMUTATIONS: few and not (few_heads or alike or one_group),
        NO_SPREAD: unbounded and not (few_heads or alike),
    }
    return row | numbers | {"note": "; ".join(text for text, lacks in lacking.items() if lacks)}


def _warn_of_other_weights(roles: pd.DataFrame, outcomes: pd.DataFrame) -> None:
    texts: dict[str, str] = {**roles.attrs.get("signatures", {}), **outcomes.attrs.get("signatures", {})}
    digests = (dict(frame.fields(texts.get(str(name), ""))).get("weights") for name in (*roles, *outcomes))
    weights = sorted(set(filter(None, digests)))
    if len(weights) > 1:
        log.warning("roles and outcomes are of %d different sets of weights: %s", len(weights), ", ".join(weights))
