"""The pictures of the study of PLAN.md, from its tables: python figures/substitution/picture.py."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import headroles as hr
from headroles.analysis.role_rules import names
from headroles.patterns.of_roles import pattern_of

HERE = Path(__file__).parent
MODELS = {"smollm2": "SmolLM2-135M", "gemma3": "Gemma 3 270M", "minilm": "MiniLM", "mpnet": "MPNet base"}
SINKS = ("sink",)
LEAST = 0.02  # share of tokens to which the pattern of a head in the picture applies


def tested(name: str) -> pd.DataFrame:
    """The tested heads of a model, with the names of their roles; without sinks and patterns of few tokens."""
    roles = {
        pattern.label: role
        for role in names(hr.load_table(HERE / f"{name}-roles.parquet"))
        if not role.startswith(SINKS) and (pattern := pattern_of(role)) is not None
    }
    files = [HERE / f"{name}{part}.parquet" for part in ("", "-repeated")]
    tables = [hr.load_table(file) for file in files if file.is_file()]
    parts = [
        table[table.index.get_level_values("role").isin(roles)].rename(index=roles, level="role") for table in tables
    ]
    together = pd.concat([part[part["applies"] >= LEAST] for part in parts])
    together.attrs = tables[0].attrs
    return together


def main() -> None:
    """Draw the roles of every model, and the costs of the heads of every one that has a table of tests."""
    for file in sorted(HERE.glob("*-roles.parquet")):
        ax = hr.plots.roles(hr.load_table(file))
        ax.set_title(MODELS[file.name.removesuffix("-roles.parquet")])
        ax.figure.savefig(file.with_suffix(".png"), dpi=150)
        plt.close(ax.figure)
    found = [name for name in MODELS if (HERE / f"{name}.parquet").is_file()]
    tables = {name: tested(name) for name in found}
    alone = {
        name: table[~table.index.get_level_values("heads").str.startswith("all ")] for name, table in tables.items()
    }
    rows = max(map(len, alone.values()))
    figure, axes = plt.subplots(
        1, len(found), figsize=(7 * len(found), 1.4 + 0.3 * rows), layout="constrained", squeeze=False
    )
    for ax, (name, table) in zip(axes[0], alone.items(), strict=True):
        hr.plots.role_costs(table, ax=ax)
        ax.set_title(MODELS[name])
        ax.locator_params(axis="x", nbins=4)
        if ax is not axes[0][-1]:
            ax.get_legend().remove()
    figure.savefig(HERE / "roles.png", dpi=120)


if __name__ == "__main__":
    main()
