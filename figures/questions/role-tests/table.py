"""The table of the page of results, from the tables of the study; .docs/measured.py asks for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import rows_of  # noqa: E402 - of all studies

MODELS = {
    "minilm": "MiniLM",
    "mpnet": "MPNet",
    "smollm2": "SmolLM2",
    "gemma3": "Gemma 3",
    "marian": "Marian",
    "translator": "demo translator",
}
ROLES = {
    "offset=-1": "previous token",
    "offset=1": "next token",
    "first": "first token",
}
CONTROLS = {"wrong": "elsewhere", "mean": "mean", "uniform": "uniform", "removed_local": "removed there"}
PLACEBO = ("placebo_removed", "placebo_pattern")  # of the other heads of the layers
PREVIOUS = {"smollm2": "dec-self:16:0", "gemma3": "dec-self:4:1"}  # the heads of the plan on repeated tokens
MOST = 0.45  # of the tokens, at least


def rows() -> list[str]:
    """All heads of a role together, of every role whose pattern applies to half of the tokens or nearly."""
    found = []
    for name in MODELS:
        for part in ("", "-repeated", "-previous"):
            table = rows_of(HERE / "tests.parquet", model=name, part=part.removeprefix("-"))
            if not table.empty:
                together = beside_its_layer(table, PREVIOUS[name]) if part == "-previous" else _together(table)
                found += [_row(name, part, place, row) for place, row in together.iterrows()]
    return found


def beside_its_layer(table: pd.DataFrame, head: str) -> pd.DataFrame:
    """The row of one head of a table of all heads of its layer; the others, which lack the role, are its placebo."""
    others = table[~table.index.get_level_values("heads").str.startswith("all ")].drop(index=head)
    placebo = {"placebo_removed": others["removed"].mean(), "placebo_pattern": others["role_pattern"].mean()}
    return table.loc[[head]].assign(**placebo)


def _together(table: pd.DataFrame) -> pd.DataFrame:
    """The row of each role: its set, or the head that is the only one with it."""
    heads, roles = (table.index.get_level_values(level) for level in ("heads", "role"))
    sets = heads.str.startswith("all ")
    # special: the sinks but for punctuation; all: heads of all roles, mostly sinks
    return table[(sets | ~roles.isin(roles[sets])) & ~roles.isin(["special", "all"]) & (table["applies"] >= MOST)]


def _row(name: str, part: str, place: tuple[str, str], row: pd.Series) -> str:
    heads, role = place
    who = heads if heads.startswith("all ") else "L{1}H{2}".format(*heads.split(":"))
    where = ", repeated tokens" if part == "-previous" else ""
    control = min(CONTROLS, key=lambda each: row.get(each, float("inf")))
    cells = [
        f"{MODELS[name]} {who}, {ROLES.get(role, role)}{where}",
        _cost(row["removed"]),
        "{} [{}, {}]".format(*map(_cost, row[["role_pattern", "role_pattern.low", "role_pattern.high"]])),
        f"{_cost(row[control])} ({CONTROLS[control]})",
        ", ".join(_cost(row[name]) for name in PLACEBO if row.notna().get(name)),
        row["verdict"].replace("has the pattern, but the pattern", "its pattern"),
    ]
    return f"| {' | '.join(cells)} |"


def _cost(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.4f}" if abs(value) < 0.001 else f"{value:.2g}"
