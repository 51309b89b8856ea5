"""What prediction-powered effects save: `python tests/benchmarks/early.py MODEL CORPUS [TARGET]`.

Ablates every head and measures the loss, in one run: on the whole corpus, with `precision=1.1`, with `early=True`, and,
on a sample of the sentences, by a naive loop (a full forward for every head), by TransformerLens and by nnsight (extra
`[bench]`). Prints processor times over those of `precision=1.1` and `early=True`, those of a sample scaled to the
corpus; the share of heads x examples that was ablated; how wide the intervals are; and for how many heads the decision
at p < 0.01 is the same. OMP_NUM_THREADS=1 makes processor time the time a quiet machine takes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import closing
import pandas as pd
from setting import Setting

import headroles as hr

PEERS = ("naive loop", "TransformerLens", "nnsight")
LEVEL = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("corpus")
    parser.add_argument("target", nargs="?")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--sample", type=int, default=50, help="sentences that others are timed on")
    parser.add_argument("--max-tokens", type=int, default=2048)
    parser.add_argument("--precision", type=float, default=1.1)
    parser.add_argument("--output", type=Path, help="a file for what is printed")
    given = parser.parse_args()
    model, tokenizer = hr.load(given.model)
    corpus = hr.read(given.corpus, given.target, limit=given.limit)
    sample = corpus.sample(given.sample)
    times, notes = dict[str, float](), dict[str, str]()
    of = Setting(model, tokenizer, sample, max_tokens=given.max_tokens)
    for name in PEERS:
        try:
            run = closing.JOB.tools[name].make(of)
            times[name] = timed(run)[1] * len(corpus) / len(sample)
        except Exception as error:  # others may fail in any way
            notes[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
    tables = dict[str, pd.DataFrame]()
    ways = {"whole": {}, "precision": {"precision": given.precision}, "early": {"early": True}}
    for name, options in ways.items():
        options = {"n_resamples": 0, "max_tokens": given.max_tokens, **options}
        tables[name], times[name] = timed(lambda options=options: hr.ablate(model, tokenizer, corpus, **options))
    report = summary(tables, times, len(corpus), given.precision) | ({"why not": notes} if notes else {})
    print(json.dumps(report, indent=1))
    if given.output:
        given.output.write_text(json.dumps(report, indent=1) + "\n")


def summary(tables: dict[str, pd.DataFrame], times: dict[str, float], size: int, precision: float) -> dict[str, object]:
    """Ratios of times, shares of the work, widths of intervals, and decisions."""
    names = {name: str(table.columns[0]) for name, table in tables.items()}
    p = {name: table[f"{names[name]}.p"] for name, table in tables.items()}
    share = {name: float(tables[name][f"{names[name]}.examples"].mean()) / size for name in ("precision", "early")}
    column = names["precision"]
    half = tables["precision"][f"{column}.high"] - tables["precision"][column]
    error = abs(tables["whole"][names["whole"]]) / quantile(p["whole"])  # of a t test
    width = half / (1.96 * error)
    decided = (p["early"] < LEVEL) == (p["whole"] < LEVEL)
    return {
        "sentences": size,
        "heads": len(half),
        "precision": precision,
        "time / precision": {name: round(value / times["precision"], 2) for name, value in times.items()},
        "time / early": {name: round(value / times["early"], 2) for name, value in times.items()},
        "share of heads x examples ablated": {name: round(value, 3) for name, value in share.items()},
        "interval / whole corpus, median": round(float(width.median()), 3),
        "interval / whole corpus, largest": round(float(width.max()), 3),
        "heads with p < 0.01": int((p["whole"] < LEVEL).sum()),
        "heads with the same decision": f"{int(decided.sum())} of {len(decided)}",
    }


def quantile(p: pd.Series) -> pd.Series:
    """|z| of two-sided p-values."""
    from scipy.stats import norm

    return pd.Series(norm.isf(p / 2), p.index)


def timed(run: Callable[[], pd.DataFrame]) -> tuple[pd.DataFrame, float]:
    start = time.process_time()
    return run(), time.process_time() - start


if __name__ == "__main__":
    main()
