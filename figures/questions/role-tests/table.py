"""The table of the page of results, from the tables of the study: python figures/questions/role-tests/table.py."""

from __future__ import annotations

import sys
from math import isnan, nan
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
    "dependency=nsubj": "subject to its verb",
    "dependency=obj": "object to its verb",
    "dependency=obj,head-to-dep": "verb to its object",
    "first": "first token",
}
CONTROLS = {"wrong": "elsewhere", "mean": "mean", "uniform": "uniform", "removed_local": "removed there"}
PREVIOUS = {"smollm2": "dec-self:16:0", "gemma3": "dec-self:4:1"}  # the heads of the plan on repeated tokens
MOST = 0.45  # of the tokens, at least; of dependencies those of MiniLM's heads


def rows() -> list[str]:
    """Every head and set whose pattern applies to half of the tokens or nearly, without single sinks and diagonals."""
    found = []
    for name in MODELS:
        for part in ("", "-repeated", "-previous"):
            table = rows_of(HERE / "tests.parquet", model=name, part=part.removeprefix("-"))
            if not table.empty:
                table = beside_its_layer(table, PREVIOUS[name]) if part == "-previous" else table
                found += [
                    _row(name, part, place, row) for place, row in table.iterrows() if _shown(name, part, place, row)
                ]
    return found


def beside_its_layer(table: pd.DataFrame, head: str) -> pd.DataFrame:
    """The row of one head of a table of all heads of its layer; the others, which lack the role, are its placebo."""
    others = table[~table.index.get_level_values("heads").str.startswith("all ")].drop(index=head)
    placebo = {"placebo_removed": others["removed"].mean(), "placebo_pattern": others["role_pattern"].mean()}
    return table.loc[[head]].assign(**placebo)


def _shown(name: str, part: str, place: tuple[str, str], row: pd.Series) -> bool:
    heads, role = place
    alone = not heads.startswith("all ")
    if part == "-previous":
        return True
    if role in ("special", "all"):  # the same sinks but for punctuation; mostly sinks, with few heads of other roles
        return False
    if alone and (role == "diagonal" or (role == "first" and name != "translator")):
        return False
    return bool(row["applies"] >= MOST) or (name == "minilm" and alone)


def _row(name: str, part: str, place: tuple[str, str], row: pd.Series) -> str:
    heads, role = place
    who = heads if heads.startswith("all ") else heads.partition(":")[2]
    where = ", repeated tokens" if part == "-previous" else ""
    control = min(CONTROLS, key=lambda each: row.get(each, float("inf")))
    explained = (
        ""
        if pd.isna(row["explained"])
        else "{:.2f} [{:.2f}, {:.2f}]".format(*row[["explained", "explained.low", "explained.high"]])
    )
    cells = [
        f"{MODELS[name]} {who}, {ROLES.get(role, role)}{where}",
        f"{row['applies']:.0%}",
        _cost(row["removed"]),
        _cost(row["role_pattern"]),
        f"{_cost(row[control])} ({CONTROLS[control]})",
        f"{_cost(row.get('placebo_removed', nan))}, {_cost(row.get('placebo_pattern', nan))}",
        explained,
        row["verdict"],
    ]
    return f"| {' | '.join(cells)} |"


def _cost(value: float) -> str:
    if isnan(value):
        return "none"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def main() -> None:
    """Print the rows."""
    print("\n".join(rows()))


if __name__ == "__main__":
    main()
