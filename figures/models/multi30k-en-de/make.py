"""The small Marian of captions: `make.py data`, `tables`, `pictures`; with `--help` the parts that are scripts."""

from __future__ import annotations

import sys
from pathlib import Path

import ablated
import curves
import scored
import typer

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add  # noqa: E402 - of all studies

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
for run in (ablated.ablation, curves.curves, scored.scores):
    app.command()(run)
add(app, HERE)

if __name__ == "__main__":
    app()
