"""The table of the page of results, from the tables of the study: python figures/models/real-models/table.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import rows_of  # noqa: E402 - of all studies

MODELS = {"smollm2": "SmolLM2", "gemma3": "Gemma 3", "mpnet": "MPNet"}
ROLES = {"duplicate": "duplicate token", "any": "any but sinks"}


def rows() -> Iterator[str]:
    """Heads with a role less others of their layer, a line a role of two heads or more: the primary outcomes."""
    for model, title in MODELS.items():
        flags = rows_of(HERE / "roles.parquet", of=model).select_dtypes(bool)
        held = flags.T.groupby(lambda name: str(name).partition("[")[0]).any().T
        counts = held.sum().to_dict() | {"any": int(held.drop(columns="sink").any(axis=1).sum())}
        relate = rows_of(HERE / "relate.parquet", of=model)
        outcomes = [name for name in relate["outcome"].unique() if str(name).startswith("ablation")]
        outcomes += ["importance", f"survival[l0 {round(len(held) / 4)}]"]
        for role, tests in relate.groupby("role", sort=False):
            if counts[role] > 1:
                tests = tests.set_index("outcome")
                cells = [_cell(tests.loc[name]) if name in tests.index else "" for name in outcomes]
                yield f"| {' | '.join([title, f'{ROLES.get(role, role)} ({counts[role]})', *cells])} |"


def _cell(test: pd.Series) -> str:
    """Return a difference with its interval, bold and with its p if that is below .05."""
    ends = "" if pd.isna(test["within.low"]) else f" [{_signed(test['within.low'])}, {_signed(test['within.high'])}]"
    text = f"{_signed(test['within'])}{ends}"
    if not test["holm"] < 0.05:  # or not tested: fewer than five heads with the role, or all alike
        return text
    return f"**{text}**, p {'< 0.001' if test['holm'] < 0.001 else format(test['holm'], '.3f')}"


def _signed(value: float) -> str:
    return f"{value:+.4f}" if abs(value) < 0.1 else f"{value:+.2f}"


if __name__ == "__main__":
    print(*rows(), sep="\n")
