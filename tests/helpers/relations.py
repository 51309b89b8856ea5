"""Tables of roles and outcomes."""

from __future__ import annotations

from itertools import product

import pandas as pd

from headroles.analysis.role_rules import Role, roles
from headroles.tables import frame

ROLES = (Role("rare", "rarity", 0.5), Role("positional", r"position\[([+-]1)\]", 0.5))


def index(layers: int = 4, many: int = 8, kinds: tuple[str, ...] = ("enc-self",)) -> pd.MultiIndex:
    return frame.index({(kind, layer): many for kind, layer in product(kinds, range(layers))})  # type: ignore[misc]


def told(where: pd.MultiIndex, **columns: object) -> pd.DataFrame:
    """A table of roles from scores."""
    named = {name.replace("minus", "position[-1]").replace("plus", "position[+1]"): v for name, v in columns.items()}
    return roles(frame.table(named, where, "weights:a1"), ROLES)


def effects(where: pd.MultiIndex, **columns: object) -> pd.DataFrame:
    named = {f"ablation[{name}]": values for name, values in columns.items()}
    return frame.table(named, where, "weights:a1")


NOBODY, EVERYBODY = "no head has the role", "all heads have the role: there is no comparison group"
NOWHERE, CONSTANT = "the role does not apply to the heads with this outcome", "the outcome is the same for all heads"
