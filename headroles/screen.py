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
    """Print a table of numbers, one row to a line."""
    shown = Table(title=title)
    shown.add_column(str(table.index.name), no_wrap=True)
    for column in table:
        shown.add_column(str(column).replace(".", " "), justify="right")
    for name, row in table.iterrows():
        shown.add_row(escape(str(name)), *(f"{value:.3f}" for value in row))
    Console().print(shown)
