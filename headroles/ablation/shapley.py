"""Shapley values of heads: the mean change of a metric when a head joins others, all further heads being masked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerBase

from headroles.ablation.example_stats import HeadSet
from headroles.ablation.metrics import Metric, as_metric
from headroles.ablation.sweep import ReplacementLike, Sweep, replacement_name
from headroles.analysis.intervals import Array, over_seeds
from headroles.data.corpus import CorpusLike
from headroles.data.readers import as_corpus
from headroles.models.head_model import HeadModel, Model
from headroles.models.identity import fingerprint
from headroles.models.masking import Head
from headroles.tables import frame
from headroles.tables.arguments import number
from headroles.tables.study import Study, kept

MOST, KEPT = 1024, 16384  # variants of one sweep, and known values, which bound memory
BLOCK = 8  # heads that are removed between two checks for truncation


def shapley_values(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    *,
    metric: str | Metric = "loss",
    heads: Iterable[Head | str] | str | None = None,
    n_permutations: int = 100,
    truncation: float = 0.0,
    replacement: ReplacementLike = "zero",
    max_tokens: int = 4096,
    n_resamples: int = 1000,
    seed: int = 0,
    study: Study | str | Path | None = None,
) -> pd.DataFrame:
    """Divide a metric among the heads by their Shapley values (Held and Yang 2023).

    Heads are removed one by one in random orders. The value of a head is the mean change of the metric when the head
    joins the heads that follow it in an order, all others being masked. The values sum to the metric of the intact
    model minus the metric of the model without any of the heads. A head that lowers the loss has a negative value,
    where its ablation has a positive effect. (The authors' code stops early to find harmful heads, which biases values;
    this is not done here.)

    Args:
        model: A Hugging Face model.
        tokenizer: Its tokenizer.
        corpus: The corpus on which the metric is measured.
        metric: A metric or objective, differentiable or not, or its name (`list_metrics`).
        heads: The heads among which the metric is divided, (kind, layer, head) each, or in writing as in `head_mask`;
            the others are never masked. By default all.
        n_permutations: Number of random orders (Castro et al. 2009). Each needs as many variants of the model as there
            are heads.
        truncation: Share of the sum that may be left out to save variants: once the metric is as near as this to the
            metric without any head, heads that are removed later count 0 (Ghorbani and Zou 2019). By default none is.
        replacement: What replaces the output of a masked head, as in `ablate`.
        max_tokens: Tokens in one forward pass, which up to eight variants of the model share.
        n_resamples: Bootstrap resamples of the examples; 0 for no intervals.
        seed: Seed of the orders and of the resamples.
        study: Study or folder that keeps the table as `shapley-METRIC[-REPLACEMENT]`; if it has it, nothing is
            computed.

    Returns:
        A table with a row per head: the value, `shapley[metric]`, and its 95 % interval over orders and examples.
        Another replacement than "zero" follows the metric in the name.
    """
    number("n_permutations", n_permutations, least=1, whole=True)
    number("truncation", truncation, least=0, below=1)
    handle = HeadModel.of(model, tokenizer)
    what = handle, as_corpus(corpus), as_metric(metric)
    sweep = Sweep(*what, replacement=replacement, max_tokens=max_tokens, seed=seed)
    game = Game(sweep, heads, n_resamples, seed)
    words = [sweep.metric.name, *([] if replacement == "zero" else [replacement_name(sweep.replacement)])]
    fields: dict[str, object] = {"method": "permutation", "permutations": n_permutations}
    fields |= {"truncation": f"{truncation:g}"} if truncation else {}
    return kept(
        study,
        "-".join(["shapley", *words]),
        partial(game.key, **fields),
        lambda: game.table(" ".join(words), _permutations(game, n_permutations, truncation), **fields),
    )


def _permutations(game: Game, count: int, truncation: float) -> tuple[Array, Array]:
    """Estimate values by removing heads in random orders: [order, head] and, of resamples, [head, resample]."""
    size, generator = len(game.heads), np.random.default_rng(game.seed)
    orders = np.stack([generator.permutation(size) for _ in range(count)])
    whole, none = game.values([range(size), ()])
    near = truncation * abs(whole[0] - none[0])
    added = np.zeros((count, size, len(whole)))  # what each head adds: [order, head, 1 + resample]
    last, running = np.tile(whole, (count, 1)), np.arange(count)
    step = BLOCK if truncation else size
    for start in range(0, size, step):
        removed = orders[running, start : start + step]  # [running, head of the block]
        left = [orders[row, place + 1 :] for row in running for place in range(start, start + removed.shape[1])]
        values = game.values(left).reshape(*removed.shape, -1)
        values = np.concatenate([last[running, None], values], axis=1)
        stopped = np.logical_or.accumulate(np.abs(values[..., 0] - none[0]) < near, axis=1)
        added[running[:, None], removed] = np.where(stopped[:, :-1, None], 0.0, values[:, :-1] - values[:, 1:])
        last[running] = values[:, -1]
        running = running[~stopped[:, -1]]
        if not len(running):
            break
    return added[..., 0], added[..., 1:].mean(0)


class Game:
    """Cooperative game of some heads of a model, by default all; other heads are never masked."""

    def __init__(self, sweep: Sweep, heads: Iterable[Head | str] | str | None, n_resamples: int, seed: int) -> None:
        chosen = sweep.model.heads if heads is None else {*sweep.model.sites.named(heads)}
        self.sweep, self.n_resamples, self.seed = sweep, n_resamples, seed
        self.drawn = {"resamples": n_resamples, "seed": seed}
        self.heads = [head for head in sweep.model.heads if head in chosen]
        self.known: dict[HeadSet, Array] = {}  # masked heads -> [1 + resamples]

    def values(self, coalitions: Sequence[Iterable[int]]) -> Array:
        """Measure the metric of coalitions (places of unmasked heads), each once: [coalition, 1 + resample]."""
        rows = [set(coalition) for coalition in coalitions]
        masked = [frozenset(head for place, head in enumerate(self.heads) if place not in row) for row in rows]
        if len(self.known) > KEPT:
            self.known.clear()
        new = [variant for variant in dict.fromkeys(masked) if variant not in self.known]
        for start in range(0, len(new), MOST):
            stats = self.sweep.run(new[start : start + MOST])
            values = stats.resampled(stats.masked.values(), self.n_resamples, self.seed)
            self.known |= zip(stats.masked, values, strict=True)
        return np.stack([self.known[variant] for variant in masked])

    def key(self, **fields: object) -> str:
        """Return the cache key of the table."""
        return self.sweep.cache_key(heads=fingerprint(self.heads), **fields, **self.drawn)

    def table(self, words: str, estimates: tuple[Array, Array], **fields: object) -> pd.DataFrame:
        """Return the mean over orders [order, head], and 95 % intervals over orders and resamples [head, resample]."""
        parts, draws = estimates
        ends = [
            over_seeds(np.column_stack([part, np.broadcast_to(draw, (len(part), len(draw)))]))
            for part, draw in zip(parts.T, draws, strict=True)
        ]
        low, high = np.array(ends).T
        column, index = f"shapley[{words}]", self.sweep.model.index
        columns = {column: parts.mean(0), f"{column}.low": low, f"{column}.high": high}
        all_heads, no_heads = self.values([range(len(self.heads)), ()])[:, 0]
        measured = frame.sign(whole=f"{all_heads:.6g}", none=f"{no_heads:.6g}", heads=len(self.heads))
        text = f"{self.sweep.signature}|{measured}|{frame.sign(**fields, **self.drawn)}"
        return frame.table(columns, index[index.isin(self.heads)], text)
