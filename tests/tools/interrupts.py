"""Interrupt blocks and functions at random moments, and see whether the next call of headroles undoes what is left.

    python tests/tools/interrupts.py --attempts 10000 --seed 0 --output figures/engineering/quality/interrupts.csv

Each operation runs on a tiny BERT and gets a signal, whose handler raises KeyboardInterrupt, as Ctrl-C does, after a
time drawn by chance from the time that it takes undisturbed; every fifth gets a second signal, up to 200 microseconds
later. The traceback is kept, as notebooks keep it. Afterwards, at once and after the next call (`hr.attention_sites`),
the model's own logits, hooks, attention implementation, training modes, parameters that take gradients, and the
process's function modes, gradient mode and compiler are compared with those before.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

import pandas as pd  # noqa: E402
import torch._dynamo.eval_frame  # noqa: E402, F401 - as where something was compiled
from helpers.interrupts import OPERATIONS, Attack, by_signal  # noqa: E402

SECOND = 200e-6  # seconds within which a second signal follows
COUNTS = ("interrupted", "other_errors", "twice", "left_at_once", "left_after_next_call")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="names of operations, with commas between them")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    names = given.only.split(",") if given.only else [*OPERATIONS]
    rows = [
        attacked(name, given.attempts // len(names) + (place < given.attempts % len(names)), given.seed)
        for place, name in enumerate(names)
    ]
    table = pd.DataFrame(rows)
    table.loc[len(table)] = {"operation": "all", **table.drop(columns=["operation", "what"]).sum(), "what": ""}
    print(table.to_string(index=False))
    if given.output:
        table.to_csv(given.output, index=False)


def attacked(name, attempts, seed):
    """A row of the table: an operation, and what was left of it."""
    attack, rng, left = Attack(name), random.Random(f"{seed} {name}"), Counter()
    begun = time.perf_counter()
    attack.operation(copy.deepcopy(attack.model) if attack.permanent else attack.model)
    seconds = time.perf_counter() - begun
    counts = Counter()
    for number in range(attempts):
        delays = [max(1e-6, rng.random() * seconds), *([1e-6 + rng.random() * SECOND] if number % 5 == 4 else [])]
        at_once, after = attack.run(partial(by_signal, delays))
        counts["interrupted"] += isinstance(attack.kept, KeyboardInterrupt)
        counts["other_errors"] += isinstance(attack.kept, Exception)
        counts["twice"] += len(delays) > 1
        counts["left_at_once"] += bool(at_once)
        counts["left_after_next_call"] += bool(after)
        left += Counter({f"{part} at once": 1 for part in at_once} | {f"{part} after": 1 for part in after})
        if after:
            attack = Attack(name)
    what = "; ".join(f"{part}: {count}" for part, count in sorted(left.items()))
    return {"operation": name, "attempts": attempts, **{column: counts[column] for column in COUNTS}, "what": what}


if __name__ == "__main__":
    main()
