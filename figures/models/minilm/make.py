"""MiniLM: `make.py data`, `tables`, `pictures`; the commands are in figures/studies.toml."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add  # noqa: E402 - of all studies

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
add(app, HERE)

if __name__ == "__main__":
    app()
