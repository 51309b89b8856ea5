"""Checks of the statistics: `make.py data`, `tables`, `pictures`; with `--help` the parts, and what each writes."""

from __future__ import annotations

import sys
from pathlib import Path

import causal
import controls
import coverage
import decided
import effect_tests
import estimators
import forwards
import predicted
import relation_tests
import role_tests
import simulations
import typer

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add  # noqa: E402 - of all studies

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
for module in (
    causal,
    controls,
    coverage,
    decided,
    effect_tests,
    estimators,
    forwards,
    predicted,
    relation_tests,
    role_tests,
    simulations,
):
    app.command(module.__name__.replace("_", "-"), help=module.__doc__)(module.main)
add(app, HERE)

if __name__ == "__main__":
    app()
