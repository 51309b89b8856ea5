"""Role changes: which heads keep, lose or gain a role when others are pruned (no torch)."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from headroles.analysis import role_rules
from headroles.tables import frame


def role_changes(before: pd.DataFrame, after: pd.DataFrame | Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    """Count how roles change by pruning (Voita et al. 2019, section 6.3 and Fig. 8).

    Args:
        before: Table of `hr.roles` of the whole model.
        after: The same of the pruned model, heads by their old numbers; or several by number of heads left, such as
            `{72: ..., 36: ...}`.

    Returns:
        One row per role, its variants joined; with several tables, a column `heads` has their keys. Of the heads that
        had the role `before`: `stayed` kept it, `lost` are left without it, `went` were pruned. `new` had it not
        before. `after` = stayed + new; a role is taken over where `went` and `new` are above 0.

    Raises:
        ValueError: If `after` is empty, or has heads that `before` has not.
    """
    if isinstance(after, Mapping):
        parts = [role_changes(before, table).assign(heads=size) for size, table in after.items()]
        if not parts:
            raise ValueError("no table of roles after pruning: got an empty mapping; expected at least one")
        return _signed(pd.concat(parts, ignore_index=True), before)
    if len(extra := after.index.difference(before.index)):
        raise ValueError(
            f"{len(extra)} heads of the pruned model are not in the whole one, such as {':'.join(map(str, extra[0]))}"
        )
    had, has = (
        {name: set(roles.index[roles[members].any(axis=1)]) for name, members in role_rules.families(roles).items()}
        for roles in (before, after)
    )
    rows = []
    for name, old in had.items():
        now = has.get(name, set())
        left = old & set(after.index)
        counts = {"before": len(old), "stayed": len(left & now), "lost": len(left - now), "went": len(old - left)}
        rows.append({"role": name, **counts, "new": len(now - old), "after": len(now)})
    return _signed(pd.DataFrame(rows), before)


def _signed(table: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    texts = list(before.attrs.get("signatures", {}).values())
    text = frame.holding(drift="of", roles=texts[0] if texts else "unsigned")
    return frame.signed(table, text)
