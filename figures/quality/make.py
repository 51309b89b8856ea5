"""Checks of the statistics: `python figures/quality/make.py NAME ...`; with `--help` what each writes."""

from __future__ import annotations

import causal
import controls
import coverage
import decided
import effect_tests
import estimators
import forwards
import odds
import predicted
import relation_tests
import role_tests
import typer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
for module in (
    causal,
    controls,
    coverage,
    decided,
    effect_tests,
    estimators,
    forwards,
    odds,
    predicted,
    relation_tests,
    role_tests,
):
    app.command(module.__name__.replace("_", "-"), help=module.__doc__)(module.main)


if __name__ == "__main__":
    app()
