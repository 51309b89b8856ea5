"""Evaluation: measure metrics of an intact model on a corpus, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerBase

from headroles.ablation.example_stats import ExampleStats
from headroles.ablation.metrics import Metric, as_metric
from headroles.ablation.sweep import Sweep
from headroles.analysis.intervals import Array, bounds, exact_share
from headroles.data.corpus import CorpusLike
from headroles.data.readers import as_corpus
from headroles.models.head_model import HeadModel, Model
from headroles.models.identity import fingerprint
from headroles.tables import frame
from headroles.tables.arguments import several
from headroles.tables.study import Study, as_study


def evaluate(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    metrics: Sequence[str | Metric] = ("loss",),
    *,
    max_tokens: int = 4096,
    n_resamples: int = 1000,
    seed: int = 0,
    study: Study | str | Path | None = None,
) -> pd.DataFrame:
    """Measure metrics of a model on a corpus.

    Args:
        model: A Hugging Face model.
        tokenizer: Its tokenizer.
        corpus: The corpus on which the metrics are measured.
        metrics: Name of a metric or objective, or several. Or metrics (`list_metrics`).
        max_tokens: Tokens in one forward pass.
        n_resamples: Bootstrap resamples of the examples.
        seed: Seed of the resamples.
        study: Study or folder that keeps the table as `evaluation`; if it has it, nothing is computed.

    Returns:
        A table with a row per metric: `value`, and `low` and `high`, its 95 % interval over the resamples.

    Raises:
        ValueError: If a metric is repeated or unknown, or the model or the corpus does not have it.
    """
    chosen = [as_metric(given) for given in several(metrics)]
    names = [metric.name for metric in chosen]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"duplicate metric {repeated[0]!r}: got {', '.join(names)}; expected each once")
    handle, rows = HeadModel.of(model, tokenizer, allow_sharded=True), {}
    corpus = as_corpus(corpus)
    if study is not None:
        code = ",".join(map(fingerprint, chosen))
        key = handle.cache_key(corpus, metrics=",".join(map(str, chosen)), code=code, resamples=n_resamples, seed=seed)
        compute = partial(evaluate, handle, tokenizer, corpus, chosen, max_tokens=max_tokens)
        return as_study(study).keep("evaluation", key, partial(compute, n_resamples=n_resamples, seed=seed))
    for metric in chosen:
        stats = Sweep(handle, corpus, metric, max_tokens=max_tokens, variants_at_once=1).run([])
        rows[metric.name] = worth(stats, n_resamples=n_resamples, seed=seed)
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("metric")
    return frame.signed(table, handle.provenance(corpus, resamples=n_resamples, seed=seed))


def worth(statistics: ExampleStats, *, n_resamples: int = 1000, seed: int = 0) -> dict[str, float]:
    """Compute the metric of the intact model of a sweep: `value`, and `low` and `high`, its 95 % interval."""
    (values,) = statistics.resampled([statistics.intact], n_resamples, seed)
    value, *ends = interval(values)
    # resamples of examples that are all right, or all wrong, do not vary
    if statistics.metric.is_share and value in (0, 1) and np.isfinite(ends).all():
        ends = [*exact_share(value, int(np.isfinite(statistics.intact).all(-1).sum()))]
    return dict(zip(("value", "low", "high"), (value, *ends), strict=True))


def interval(values: Array) -> tuple[float, float, float]:
    """Return a value and its 95 % interval from the value and its resamples."""
    low, high = bounds(values[None, 1:])
    return float(values[0]), float(low[0]), float(high[0])
