"""Relations: do heads that have a role matter more than those without it, beyond their layer and kind? (no torch)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from headroles.analysis import intervals, role_rules
from headroles.analysis.multiple_testing import corrected
from headroles.analysis.resampling import ENDS, Array, Bools, Whole, relation, spearman, strata
from headroles.tables import frame
from headroles.tables.frame import KINDS, Kind

log = logging.getLogger(__name__)
By = Literal["family", "variant"]

OUTCOMES = ("ablation", "importance", "relevance", "attribution", "survival")  # names before a bracket
ANY = "any"  # the family of all roles of heads that do something special
LOWER = ("loss", "perplexity")  # metrics of which less is better: to ablate a head that matters raises them
HIGHER = ("agreement", "accuracy", "f1", "matthews", "bleu", "chrf")
NUMBERS = ("difference", "median", "auc", "rank_biserial", "point_biserial", "spearman", "within")
NOWHERE = "the role is not for the heads that have the outcome"
UNTOLD = (
    "the role's score is NaN for all these heads: it is not for their kind, or the corpus has nothing to tell it from"
)
NOBODY, EVERYBODY = "no head has the role", "every head has the role: there is none to compare with"
CONSTANT, FILLED = (
    "the outcome is the same for all heads",
    "in no layer are there heads with the role and heads without: it cannot be told from the layer",
)
ALONE = "a single head on one side: no interval"
FEW_WAYS = "too few ways to deal the role out within layers: no interval of within"
NO_SPREAD = "too few heads, or nothing varies but by the role: no interval of the difference"


def relate(
    roles: pd.DataFrame,
    outcomes: pd.DataFrame,
    *,
    by: By = "family",
    names: Sequence[str] | None = None,
    kinds: Sequence[Kind] | None = None,
    n_resamples: int = 1000,
    n_permutations: int = 9999,
    seed: int = 0,
) -> pd.DataFrame:
    """Whether heads with a role differ in an outcome from those without: a row for each role and outcome.

    `roles` is the table of `hr.roles`; `by` joins the variants of a role into one (`positional[-1]` and `[+1]`), and
    adds "any", the roles of `role.SPECIAL` together. Outcomes are the columns of effects of ablation, importance,
    relevance, attribution and survival (`.turn`: when a head goes), or those of `names`. Heads for which a role cannot
    be told, that have no outcome or could not go, are left out; `kinds` leaves out heads of the others.

    `matters` says which values of the outcome mean that a head matters more: "higher" or "lower", "unknown" of a metric
    of your own. `with` and `without` count the heads. Of the outcome: `difference` of means, `median` of medians,
    `auc`, the chance that a head with the role has the larger outcome (ties half), `rank_biserial` = 2 auc - 1,
    `point_biserial`, Pearson's correlation with having the role, and `spearman`, with how far a head is above the
    threshold. `within` is the mean difference from the heads without the role in the same layer of the same kind. `p`,
    two-sided, is how often it is as large when the role is dealt out anew within each layer of each kind: a role that
    lives in one layer does not pass for the effect of the layer. `holm` and `bh` correct it for all rows.

    Each number has `.low` and `.high`, a 95 % interval: the values that a test by dealing the role out anew does not
    reject. `within` leaves out 0 exactly where `p` < 0.05. The others are of all heads, layers not taken out, and have
    no p here; `difference` and `auc` leave out 0 and 0.5 exactly where dealing out over all heads (`resamples` times)
    gives p < 0.05. They hold from two heads on if a role moves outcomes but does not spread them (`auc`: Newcombe 2006;
    outcomes of 0 and 1: score intervals; `spearman`: Bonett and Wright 2000). `note` says why a number is missing.

    Raises ValueError for tables of different heads, an outcome that is infinite, and where there is no role or no
    outcome.
    """
    chosen = outcomes_of(outcomes, names)
    if len(roles) != len(outcomes) or not roles.index.sort_values().equals(outcomes.index.sort_values()):
        raise ValueError(
            f"roles and outcomes are of different heads: {len(roles)} and {len(outcomes)} rows, "
            f"{len(roles.index.intersection(outcomes.index))} in common; relate tables of one model"
        )
    if kinds is not None:
        roles = roles[roles.index.get_level_values("kind").isin(kinds)]
    roles = roles.sort_index()  # resamples and permutations do not depend on the order of the rows
    outcomes = outcomes.loc[roles.index]
    _warn_of_other_weights(roles, outcomes)
    layers = strata(roles.index)
    rows = [
        {"role": name, "outcome": column, "matters": matters(column)}
        | _relation(held, margin, values(outcomes, column).to_numpy(float), layers, n_resamples, n_permutations, seed)
        for name, held, margin in _with_any(list(_roles(roles, by)))
        for column in chosen
    ]
    table = corrected(pd.DataFrame(rows))
    options = frame.sign(relate=by, resamples=n_resamples, permutations=n_permutations, seed=seed)
    of = {"roles": frame.sources(roles, role_rules.names(roles)), "outcomes": frame.sources(outcomes, chosen)}
    table.attrs["signatures"] = dict.fromkeys(table.columns, f"{options}|{frame.holding(**of)}")
    return table


def outcomes_of(table: pd.DataFrame, names: Sequence[str] | None) -> list[str]:
    """The outcomes of a table, or those of `names`. Raises ValueError where there is none of them."""
    known = [str(name) for name in table if measured(str(name), table)]
    found = [name for name in known if re.split(r"[\[.]", name)[0] in OUTCOMES] if names is None else list(names)
    if not found or not set(found) <= set(known):
        asked = "ablation, importance, relevance, attribution or survival" if names is None else ", ".join(found)
        raise ValueError(f"no outcome ({asked}) among the columns: {', '.join(known) or 'none'}")
    return found


def values(table: pd.DataFrame, outcome: str) -> pd.Series[float]:
    """An outcome; NaN for heads that could not go where only some kinds could, as in `survival[l0 12 enc-self]`."""
    kinds = set(re.split(r"[\[\] ]", outcome)) & set(KINDS)
    could = table.index.get_level_values("kind").isin(kinds or KINDS)
    return finite(table[outcome]).where(could)


def finite(column: pd.Series[Any]) -> pd.Series[float]:
    """A column as numbers, NaN where unknown. Raises ValueError where one is infinite."""
    known = column.astype(float)
    if (beyond := np.isinf(known)).any():
        first = ":".join(map(str, known.index[beyond][0]))
        raise ValueError(
            f"{column.name!r} is infinite for {int(beyond.sum())} of {len(known)} heads, such as {first}; "
            "expected finite numbers, or NaN where there is none; leave these heads out, or choose other columns"
        )
    return known


def matters(outcome: str) -> str:
    """Which values of an outcome mean that a head matters more: higher, lower, or unknown.

    An effect of ablation is the metric without the head less that with it; with all but one head of a layer ablated, it
    is the one that is left that does better.
    """
    family, _, details = outcome.partition("[")
    if family != "ablation":
        return "higher" if family.partition(".")[0] in OUTCOMES else "unknown"
    metric, *unit = details.partition("]")[0].split(" ")
    if metric not in (*LOWER, *HIGHER):
        return "unknown"
    return "higher" if (metric in LOWER) != ("rest" in unit) else "lower"


def measured(name: str, table: pd.DataFrame) -> bool:
    """Whether a column is a measurement, not its interval, its p or another companion."""
    plain = re.fullmatch(r"[^.\[]+(\[[^\]]*\])?(\.turn|\.size)?", name) is not None
    return plain and pd.api.types.is_numeric_dtype(table[name]) and not pd.api.types.is_bool_dtype(table[name])


def _roles(told: pd.DataFrame, by: By) -> Iterator[tuple[str, Bools, Array]]:
    """Each role: its name, which heads have it, how far each is above its threshold (NaN: the role is not for it)."""
    if by not in ("family", "variant"):
        raise ValueError(f"by={by!r}; expected 'family' or 'variant'")
    groups = role_rules.families(told)
    if by == "variant":
        groups = {name: [name] for members in groups.values() for name in members}
    if missing := [name for members in groups.values() for name in members if f"{name}.margin" not in told]:
        raise ValueError(f"the table of roles has no column {missing[0]}.margin; tell the roles again: hr.roles(heads)")
    for group, members in groups.items():
        margins = told[[f"{name}.margin" for name in members]]
        yield group, np.asarray(told[members].to_numpy(bool).any(1)), margins.max(axis=1).to_numpy(float)


def _with_any(found: list[tuple[str, Bools, Array]]) -> list[tuple[str, Bools, Array]]:
    """The roles, and all of those that are special as one, where heads have more than one of them."""
    special = [one for one in found if one[0].partition("[")[0] in role_rules.SPECIAL]
    if sum(held.any() for _, held, _ in special) < 2:
        return found
    held = np.any([one for _, one, _ in special], axis=0)
    return [*found, (ANY, held, np.fmax.reduce([margin for _, _, margin in special]))]


def _relation(
    held: Bools, margin: Array, y: Array, layers: Whole, n_resamples: int, n_permutations: int, seed: int
) -> dict[str, Any]:
    """One row: the numbers of a role and an outcome, NaN where `note` says why."""
    known, known_margin = np.isfinite(margin) & np.isfinite(y), np.isfinite(margin).any()
    held, margin, y, layers = held[known], margin[known], y[known], layers[known]
    row: dict[str, Any] = {"with": int(held.sum()), "without": int((~held).sum())}
    note = (
        UNTOLD
        if not known_margin
        else NOWHERE
        if not len(y)
        else NOBODY
        if not held.any()
        else EVERYBODY
        if held.all()
        else CONSTANT
        if not np.ptp(y)
        else ""
    )
    columns = [f"{name}{end}" for name in NUMBERS for end in ENDS]
    if note:
        row |= dict.fromkeys([*columns, "p"], np.nan) | {"note": note}
        return row if note == CONSTANT or len(y) < 3 else row | _ranks(margin, y, n_resamples)
    row |= relation(held, margin, y, layers, n_resamples, n_permutations, seed)
    alone, filled = 1 in (row["with"], row["without"]), bool(np.isnan(row["within"]))
    lacking = {
        ALONE: alone,
        FILLED: filled,
        FEW_WAYS: not alone and not filled and intervals.needed(n_permutations) > 0 and np.isnan(row["within.low"]),
        NO_SPREAD: not alone and intervals.needed(n_resamples) > 0 and np.isnan(row["difference.low"]),
    }
    return row | {"note": "; ".join(text for text, lacks in lacking.items() if lacks)}


def _ranks(margin: Array, y: Array, n_resamples: int) -> dict[str, float]:
    """`spearman` where all heads are on one side of the threshold."""
    found = float(spearman(margin[None], y[None])[0])
    ends = intervals.rank_correlation(found, len(y)) if n_resamples else intervals.NONE
    return dict(zip(("spearman", "spearman.low", "spearman.high"), (found, *ends), strict=True))


def _warn_of_other_weights(roles: pd.DataFrame, outcomes: pd.DataFrame) -> None:
    found: dict[str, str] = {**roles.attrs.get("signatures", {}), **outcomes.attrs.get("signatures", {})}
    weights = {
        one for name in (*roles, *outcomes) if (one := dict(frame.fields(found.get(str(name), ""))).get("weights"))
    }
    if len(weights) > 1:
        log.warning(
            "roles and outcomes are of %d different sets of weights: %s", len(weights), ", ".join(sorted(weights))
        )
