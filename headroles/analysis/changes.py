"""Changes from one model to another: scores and roles of heads, and roles when other heads are pruned (no torch)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headroles.analysis import role_rules
from headroles.analysis.intervals import Array, Bools, Whole, difference
from headroles.analysis.role_rules import ROLES, STABLE, Role
from headroles.analysis.seeds import match_heads, shared_scores
from headroles.tables import frame
from headroles.tables.declared import signature_of
from headroles.tables.study import Place, as_table

Draws = npt.NDArray[np.generic]  # of scores, or whether a head has a role: [heads, resamples]
CHANGE = ".change"  # suffix of a column of differences


def compare_models(first: Place, second: Place, *, match: bool = False, roles: Iterable[Role] = ROLES) -> pd.DataFrame:
    """Compare the heads of two models of one shape: which roles are gained and lost, how each score changes.

    Args:
        first: Study of a model. Or its table of `hr.score`, or the file of that table.
        second: The same of a model with the same heads: another checkpoint, another seed, another training.
        match: Whether heads are matched by their scores within layers (`hr.analysis.match_heads`), as for models that
            were trained from other seeds. By default a head is compared with the head at its place.
        roles: Roles to look for.

    Returns:
        One row per head of the first model:

        - `gained` and `lost`: names of roles. Only roles for which both models were scored count. `unsure`: the gained
          and lost roles that change in fewer than 95 % of the resamples.
        - `.change` of each score, effect of ablation and survival that both tables have: the second less the first. Its
          95 % interval, `.change.low` and `.change.high`, combines the intervals of both (Zou and Donner 2008). On the
          same text with the same seed it takes the correlation of the resamples, on other texts none; else it is NaN.
        - With `match`, `match.layer`, `match.head` and `similarity` of the head of the second model.

        The signature of each column holds the signatures of both models.

    Raises:
        ValueError: For models of different shapes, and for tables without a common score.
    """
    before, after = as_table(first), as_table(second)
    frame.check_same_heads(before, after, "the models")
    after = after.loc[before.index]
    if not (scores := shared_scores(before, after)):
        given = " and ".join(frame.listed(list(map(str, table))) for table in (before, after))
        raise ValueError(f"both tables must have a common score, got {given}")
    columns: dict[str, object] = {}
    places = np.arange(len(before))
    if match:
        matches = match_heads(before, after).loc[before.index]
        heads = zip(before.index.get_level_values("kind"), matches["match.layer"], matches["match.head"], strict=True)
        places, columns = before.index.get_indexer(pd.MultiIndex.from_tuples(heads)), dict(matches)
    columns |= _roles(before, after, places, roles)
    of_all = frame.holding(first=frame.sources(before, scores), second=frame.sources(after, scores))
    signatures = dict.fromkeys(columns, of_all)
    for name in scores:
        texts = frame.holding(first=signature_of(before, name), second=signature_of(after, name))
        changes = _change(before, after, places, name)
        columns |= changes
        signatures |= dict.fromkeys(changes, texts)
    how = frame.sign(compare="second less first", match="layer" if match else "place")
    return frame.table(columns, frame.rows(before), {name: f"{how}|{text}" for name, text in signatures.items()})


def _roles(before: pd.DataFrame, after: pd.DataFrame, places: Whole, roles: Iterable[Role]) -> dict[str, list[str]]:
    """Names of the roles that each head gains and loses, and of the unsure ones among these, as columns."""
    changed: dict[str, list[list[str]]] = {name: [[] for _ in places] for name in ("gained", "lost", "unsure")}
    for role in roles:
        for variant, column in role.variants(before.columns):
            if not {column, column + (role.over or "")} <= {*before} & {*after}:
                continue
            had, has = role_rules.holders(before, role, column), role_rules.holders(after, role, column)[places]
            known = before[column].notna().to_numpy() & after[column].notna().to_numpy()[places]
            draws = [role_rules.resampled_holders(table, role, column) for table in (before, after)]
            drawn = _together(draws, places, _paired(before, after, column))
            for what, old, new in (("gained", False, True), ("lost", True, False)):
                for row in np.flatnonzero(known & (had == old) & (has == new)):
                    changed[what][row].append(variant)
                    if drawn and ((drawn[0][row] == old) & (drawn[1][row] == new)).mean() < STABLE:
                        changed["unsure"][row].append(variant)
    return {name: [", ".join(names) for names in rows] for name, rows in changed.items()}


def _change(before: pd.DataFrame, after: pd.DataFrame, places: Whole, name: str) -> dict[str, Array]:
    """The second less the first, with its interval if both tables have intervals."""
    both, bounds, change = (before, after), [f"{name}.low", f"{name}.high"], f"{name}{CHANGE}"
    old, new = (table[name].to_numpy(float) for table in both)
    if not {*bounds} <= {*before} & {*after}:
        return {change: new[places] - old}
    ends = [table[bounds].to_numpy(float).T for table in both]
    paired = _paired(*both, name)
    drawn = _together([frame.resamples_of(table, name) for table in both], places, paired)
    unknown = np.full(len(places), 0.0 if paired is False else np.nan)
    correlations = _correlations(*drawn) if paired and drawn else unknown
    low, high = difference((old, new[places]), (ends[0], ends[1][:, places]), correlations)
    return {change: new[places] - old, f"{change}.low": low, f"{change}.high": high}


def _paired(before: pd.DataFrame, after: pd.DataFrame, column: str) -> bool | None:
    """Return whether resamples of a column are of the same sentences; False for other texts, None if unknown."""
    old, new = (dict(frame.fields(signature_of(table, column))) for table in (before, after))
    if "text" not in old or "text" not in new:
        return None
    if old["text"] != new["text"]:
        return False
    return True if "seed" in old and old["seed"] == new.get("seed") else None


def _together(draws: Iterable[Draws | None], places: Whole, paired: bool | None) -> tuple[Draws, Draws] | None:
    """Equally many resamples of both models; of different texts they are moved by one, so that none share counts."""
    first, second = draws
    if first is None or second is None or paired is None:
        return None
    count = min(first.shape[1], second.shape[1])
    return first[:, :count], second[places, :count] if paired else np.roll(second[places, :count], 1, axis=1)


def _correlations(first: Draws, second: Draws) -> Array:
    """Compute the correlation of the resamples of each head; 0 where either does not vary or has none."""
    valid = [np.ma.masked_invalid(draws.astype(float)) for draws in (first, second)]
    old, new = (draws - draws.mean(axis=1, keepdims=True) for draws in valid)
    spread = np.ma.sqrt((old**2).mean(axis=1) * (new**2).mean(axis=1)).filled(0)
    together = (old * new).mean(axis=1).filled(0)
    return np.asarray(np.clip(np.divide(together, spread, out=np.zeros(len(spread)), where=spread > 0), -1, 1))


def role_changes(before: pd.DataFrame, after: pd.DataFrame | Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    """Count how roles change by pruning (Voita et al. 2019, section 6.3 and Fig. 8).

    Args:
        before: Table of `hr.roles` of the whole model.
        after: The same of the pruned model, heads by their old numbers; or several by number of heads left, such as
            `{72: ..., 36: ...}`.

    Returns:
        One row per role, its variants joined; with several tables, a column `heads` has their keys. `before` counts the
        heads that had the role: `kept` still have it, `lost` are left without it, `removed` were pruned; of `unknown`
        it was not measured afterwards. `new` did not have it before, of the variants that were measured before.
        `after` = kept + new; a role is taken over where `removed` and `new` are above 0.

    Raises:
        ValueError: If `after` has heads that `before` has not.
    """
    several, rows = isinstance(after, Mapping), []
    families = role_rules.families(before)
    for size, table in after.items() if isinstance(after, Mapping) else [(0, after)]:
        if len(extra := table.index.difference(before.index)):
            raise ValueError(f"heads after pruning must be among those before, got {':'.join(map(str, extra[0]))}")
        role_rules.families(table)  # raises for another table
        left = before.index.isin(table.index)
        for name, variants in families.items():
            old, known_before = _members(before, variants, before.index)
            new, known = _members(table, variants, before.index)
            had, has = old.any(axis=1), (new & known_before).any(axis=1)
            unknown = left & had & ~has & (old & ~known).any(axis=1)
            heads = {"before": had, "kept": had & has, "lost": left & had & ~has & ~unknown, "removed": had & ~left}
            heads |= {"unknown": unknown, "new": has & ~had, "after": has}
            row = {"role": name, **{count: int(flags.sum()) for count, flags in heads.items()}}
            rows.append(row | ({"heads": size} if several else {}))
    text = next(iter(before.attrs.get("signatures", {}).values()), "unsigned")
    return frame.signed(pd.DataFrame(rows), frame.holding(role_changes="of", roles=text))


def _members(roles: pd.DataFrame, variants: Iterable[str], index: pd.Index[Any]) -> tuple[Bools, Bools]:
    """Whether each head has each variant of a role, and whether that was measured: both [head, variant]."""
    nothing = pd.Series(np.nan, index)
    pairs = [(roles.get(name, nothing), roles.get(f"{name}.value", nothing)) for name in variants]
    held, values = (np.stack([part.reindex(index) for part in parts], axis=1) for parts in zip(*pairs, strict=True))
    return held == 1, ~np.isnan(values.astype(float))
