"""Is a pruned model better than one trained from scratch with its heads? Voita et al., Table 2, on translators of ours.

`python tests/benchmarks/scratch.py GATES SCRATCH DATA OUTPUT`: GATES is a training of gates of `prune_arm`, with the
control and the pruned model; SCRATCH the model of `headroles specialise --without` that never had the other heads; DATA
the folder of `headroles prepare`. Rows of OUTPUT, by loss and BLEU on the test pairs: each of the three models, and
differences between two, paired by sentence (95 % intervals of 1,000 bootstrap resamples).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from pruned_bleu import trained
from transformers import PreTrainedModel

import headroles as hr
from headroles.ablation.evaluation import interval
from headroles.ablation.metrics import metric
from headroles.ablation.sweep import sweep
from headroles.papers import prepared
from headroles.pruning.cached_evaluation import values

PAIRS = [("pruned", "scratch"), ("pruned", "all heads"), ("scratch", "all heads")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("gates", "scratch", "data", "output"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--heads", type=int, default=6, help="encoder heads left")
    given = parser.parse_args()
    whole, pruned = trained(given.gates, given.heads)
    scratch, tokenizer = hr.load(given.scratch)
    models, test, rows = {"all heads": whole, "pruned": pruned, "scratch": scratch}, prepared(given.data).test, []
    if heads(pruned) != heads(scratch):
        raise ValueError(f"other heads: got {heads(scratch)} from scratch; expected {heads(pruned)}, as pruned")
    for name in ("loss", "bleu"):
        chosen = metric(name)
        runs = [sweep(model, tokenizer, test, [], chosen) for model in models.values()]
        stats = [run.take(np.argsort(run.numbers)).intact for run in runs]
        draws = dict(zip(models, values(chosen, stats), strict=True))
        draws |= {f"{one} less {other}": draws[one] - draws[other] for one, other in PAIRS}
        for what, draw in draws.items():
            rows.append([name, what, *interval(draw)])
    table = pd.DataFrame(rows, columns=["metric", "model", "value", "low", "high"])
    print(table.to_string())
    table.to_csv(given.output, index=False, float_format="%.4f")


def heads(model: PreTrainedModel) -> list[tuple[str, int, int]]:
    """Return the heads that a model has, by their numbers in the whole model."""
    return [(site.kind, site.layer, number) for site in hr.attention_sites(model) for number in site.numbers]


if __name__ == "__main__":
    main()
