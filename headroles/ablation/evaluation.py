"""Evaluation: what metrics an intact model reaches on a corpus, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

import numpy as np
import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.example_stats import ExampleStats
from headroles.ablation.metrics import Metric
from headroles.ablation.metrics import metric as the_metric
from headroles.ablation.sweep import sweep
from headroles.data.corpus import Corpus
from headroles.models import loading
from headroles.scores.accumulator import bounds, counting
from headroles.tables import frame


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    metrics: Sequence[str | Metric],
    *,
    max_tokens: int = 4096,
    n_resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """A row per metric: its `value`, with `low` and `high`, the 95 % interval over bootstrap resamples of examples.

    The metrics are those of `ablate`. Raises ValueError where the model or the corpus does not have one.
    """
    rows = {}
    for given in metrics:
        chosen = the_metric(given)
        found = sweep(model, tokenizer, corpus, [], chosen, max_tokens=max_tokens, heads_per_batch=1)
        if chosen.name in rows:
            raise ValueError(f"metric {chosen.name!r} is asked for twice; the rows are called by the name")
        rows[chosen.name] = worth(found, n_resamples=n_resamples, seed=seed)
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("metric")
    text = frame.sign(
        model=loading.name(model),
        weights=loading.revision(model),
        corpus=corpus.name,
        text=corpus.hash,
        resamples=n_resamples,
        seed=seed,
        headroles=version("headroles"),
    )
    table.attrs["signatures"] = dict.fromkeys(table.columns, text)
    return table


def worth(found: ExampleStats, *, n_resamples: int = 1000, seed: int = 0) -> dict[str, float]:
    """What the intact model of a sweep reaches: `value`, with `low` and `high`."""
    weights = counting(found.numbers, n_resamples, seed).numpy()  # [1 + resamples, example]
    with np.errstate(invalid="ignore"):  # a resample without any example has no value
        values = found.metric.value(weights @ found.intact)[None]
    low, high = bounds(values[:, 1:]) if n_resamples else np.full((2, 1), np.nan)
    return {"value": float(values[0, 0]), "low": float(low[0]), "high": float(high[0])}
