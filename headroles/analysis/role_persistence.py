"""Succession: does a role stay with its head when others are pruned, go with it, or pass to another? (no torch)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from headroles.analysis import role_rules
from headroles.tables import frame


def role_changes(before: pd.DataFrame, after: pd.DataFrame | Mapping[Any, pd.DataFrame]) -> pd.DataFrame:
    """What became of each role after pruning (Voita et al. 2019, section 6.3 and Fig. 8): a row per role.

    `before` and `after` are tables of `hr.roles`, the second of what is left, heads by their old numbers; several,
    such as `{72: ..., 36: ...}`, are told apart by a column `heads`. Of the heads that had the role `before`, it
    `stayed` with those left that have it still, was `lost` by those left that have not, and `went` with those that are
    gone; it is `new` in heads that had it not. `after` = stayed + new: where a role is taken over, `went` and `new` are
    above 0. Variants of a role are one. Raises ValueError where heads are left that were not there before.
    """
    if isinstance(after, Mapping):
        parts = [role_changes(before, one).assign(heads=size) for size, one in after.items()]
        if not parts:
            raise ValueError("nothing to compare with: give at least one table of roles after pruning")
        return _signed(pd.concat(parts, ignore_index=True), before)
    if len(extra := after.index.difference(before.index)):
        raise ValueError(
            f"{len(extra)} heads are left that were not there before, such as {':'.join(map(str, extra[0]))}"
        )
    had, have = (_holders(table) for table in (before, after))
    rows = []
    for name, old in had.items():
        now = have.get(name, set())
        left = old & set(after.index)
        counts = {"before": len(old), "stayed": len(left & now), "lost": len(left - now), "went": len(old - left)}
        rows.append({"role": name, **counts, "new": len(now - old), "after": len(now)})
    return _signed(pd.DataFrame(rows), before)


def _holders(told: pd.DataFrame) -> dict[str, set[Any]]:
    return {name: set(told.index[told[members].any(axis=1)]) for name, members in role_rules.families(told).items()}


def _signed(table: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    texts = list(before.attrs.get("signatures", {}).values())
    text = frame.holding(drift="of", roles=texts[0] if texts else "unsigned")
    table.attrs["signatures"] = dict.fromkeys(table.columns, text)
    return table
