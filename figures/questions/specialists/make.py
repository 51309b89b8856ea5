"""Do heads with a role survive, and are they worth more? `make.py data`, `tables`, `pictures`, and their parts."""

from __future__ import annotations

import sys
from pathlib import Path

import overview
import shares
import typer

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add  # noqa: E402 - of all studies

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
for run in (overview.retest, overview.overview, overview.together, shares.shares):
    app.command()(run)
add(app, HERE)

if __name__ == "__main__":
    app()
