"""What the commands say on a terminal: a line, the figures drawn, the heads with roles, a table of numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def say(text: str) -> None:
    """Print one line as it is."""
    Console(soft_wrap=True, highlight=False).print(text, markup=False)


def list_figures(files: list[Path], folder: Path) -> None:
    """Say where the tables are and which figures were drawn."""
    say(f"tables are in {folder}, and these figures: {', '.join(file.name for file in files)}")


def show_roles(told: Any) -> None:
    """Print the heads that have roles, a line each: the role, the score it rests on, its stability."""
    from headroles.role import held

    rows = held(told)
    rows["text"] = [f"{row.role} {row.value:.2f} ({row.stability:.2f})" for row in rows.itertuples()]
    lines = rows.groupby(["kind", "layer", "head"], sort=False)["text"].agg(", ".join).reset_index()
    shown = Table(title=f"{len(lines)} of {len(told)} heads have a role", caption="role, its score, its stability")
    for column in ("kind", "layer", "head", "roles"):
        shown.add_column(column, justify="right" if column in ("layer", "head") else "left")
    for row in lines.astype(str).to_dict("records"):
        shown.add_row(row["kind"], row["layer"], row["head"], escape(row["text"]))
    Console().print(shown)


def show_table(table: Any, title: str) -> None:
    """Print a table of numbers, one row to a line; the columns `.low` and `.high` go into the cells of theirs."""
    names = [str(name) for name in table]
    shown = Table(title=title)
    shown.add_column(str(table.index.name), no_wrap=True)
    own = [name for name in names if not name.removesuffix("low").removesuffix("high").endswith(".")]
    for name in own:
        shown.add_column(name, justify="right", no_wrap=True)
    for label, row in table.iterrows():
        shown.add_row(escape(str(label)), *(_cell(row, name) for name in own))
    Console().print(shown)


def _cell(row: Any, name: str) -> str:
    ends = [row.get(f"{name}.{end}") for end in ("low", "high")]
    interval = "" if None in ends else " \\[{:.3f}, {:.3f}]".format(*ends)
    return f"{row[name]:.3f}{interval}"
