"""The benchmarks: `make.py data`, `tables`, `pictures`; `OMP_NUM_THREADS=1 python make.py NAME` measures one."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[3] / "tests"), str(Path(__file__).parents[2])]  # tiny models, all studies
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
from studies import add

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
for module in (ablation, against, gates, large, length, long_text, peers, plain, precision, relevance, scores):
    app.command(module.__name__, help=module.__doc__)(module.main)
add(app, Path(__file__).parent)

if __name__ == "__main__":
    app()
