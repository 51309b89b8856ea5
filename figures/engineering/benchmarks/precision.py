"""What prediction-powered effects save: `make.py precision MODEL CORPUS [TARGET]`.

Ablates every head and measures the loss, in one run: on the whole corpus, with `precision=1.1`, and, on a sample of the
batches, by a naive loop (a full forward for every head), by TransformerLens and by nnsight (extra `[bench]`). Prints
processor times over those of `precision=1.1`, those of a sample scaled to the tokens of the corpus; the share of heads
x examples that was ablated; how wide the intervals are; and for how many heads the decision at p < 0.01 is the same.
OMP_NUM_THREADS=1 makes processor time the time a quiet machine takes.

Batches are of sentences of similar length. A sample of sentences would be padded more than the corpus (50 of 2,500
everyday sentences: 2.1 times as many tokens a sentence), at the expense of the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import closing
import pandas as pd
import typer
from setting import Setting
from timing import keep, timed

import headroles as hr
from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel

PEERS = ("naive loop", "TransformerLens", "nnsight")
LEVEL = 0.01


def main(
    model: str,
    corpus: str,
    target: Annotated[str | None, typer.Argument()] = None,
    limit: int | None = None,
    sample: Annotated[int, typer.Option(help="Batches of the corpus that others are timed on.")] = 2,
    max_tokens: int = 2048,
    precision: float = 1.1,
    output: Path | None = None,
) -> None:
    loaded, tokenizer = hr.load(model)
    texts = hr.read(corpus, target, limit=limit)
    chosen, scale = part(loaded, tokenizer, texts, max_tokens, sample)
    times, notes = dict[str, float](), dict[str, str]()
    of = Setting(loaded, tokenizer, chosen, max_tokens=max_tokens)
    for name in PEERS:
        try:
            run = closing.JOB.tools[name].make(of)
            times[name] = timed(run)[1] * scale
        except Exception as error:  # others may fail in any way
            notes[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
    tables = dict[str, pd.DataFrame]()
    ways = {"whole": {}, "precision": {"precision": precision}}
    for name, options in ways.items():
        options = {"n_resamples": 0, "max_tokens": max_tokens, **options}
        tables[name], times[name] = timed(lambda options=options: hr.ablate(loaded, tokenizer, texts, **options))
    keep(summary(tables, times, len(texts), precision) | ({"why not": notes} if notes else {}), "precision", output)


def part(model, tokenizer, corpus: hr.Corpus, max_tokens: int, count: int) -> tuple[hr.Corpus, float]:
    """Sentences of some of the corpus's batches, of short to long ones, and tokens of all batches over theirs."""
    handle = HeadModel.of(model, tokenizer)
    groups = list(handle.batches(handle.encode(corpus, words=False), max_tokens=max_tokens))
    chosen = [groups[(2 * place + 1) * len(groups) // (2 * count)] for place in range(min(count, len(groups)))]
    numbers = sorted(number for batch in chosen for number in batch.numbers)
    return hr.Corpus(corpus.name, tuple(corpus[number] for number in numbers)), tokens(groups) / tokens(chosen)


def tokens(groups: list[Batch]) -> int:
    """Tokens of batches with their padding, of both sides."""
    names = ("input_ids", "decoder_input_ids")
    return sum(batch.inputs[name].numel() for batch in groups for name in names if name in batch.inputs)


def summary(tables: dict[str, pd.DataFrame], times: dict[str, float], size: int, precision: float) -> dict[str, object]:
    """Ratios of times, shares of the work, widths of intervals, and decisions."""
    names = {name: str(table.columns[0]) for name, table in tables.items()}
    p = {name: table[f"{names[name]}.p"] for name, table in tables.items()}
    sampled = ("precision",)
    share = {name: float(tables[name][f"{names[name]}.examples"].mean()) / size for name in sampled}
    column = names["precision"]
    half = tables["precision"][f"{column}.high"] - tables["precision"][column]
    error = abs(tables["whole"][names["whole"]]) / quantile(p["whole"])  # of a t test
    width = half / (1.96 * error)
    decided = {name: (p[name] < LEVEL) == (p["whole"] < LEVEL) for name in sampled}
    return {
        "sentences": size,
        "heads": len(half),
        "precision": precision,
        **{f"time / {way}": {name: round(value / times[way], 2) for name, value in times.items()} for way in sampled},
        "share of heads x examples ablated": {name: round(value, 3) for name, value in share.items()},
        "interval / whole corpus, median": round(float(width.median()), 3),
        "interval / whole corpus, largest": round(float(width.max()), 3),
        "heads with p < 0.01": int((p["whole"] < LEVEL).sum()),
        "heads with the same decision": {name: f"{int(row.sum())} of {len(row)}" for name, row in decided.items()},
    }


def quantile(p: pd.Series) -> pd.Series:
    """|z| of two-sided p-values."""
    from scipy.stats import norm

    return pd.Series(norm.isf(p / 2), p.index)
