"""The benchmarks: `OMP_NUM_THREADS=1 python figures/benchmarks/make.py NAME ...`; with `--help` what each measures."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests"))  # tiny models, and reference implementations
import ablation
import against
import gates
import large
import length
import long_text
import peers
import plain
import precision
import relevance
import scores
import typer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
for module in (ablation, against, gates, large, length, long_text, peers, plain, precision, relevance, scores):
    app.command(module.__name__, help=module.__doc__)(module.main)


if __name__ == "__main__":
    app()
