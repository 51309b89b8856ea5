"""Interactions of heads: how far two heads together are worth more or less than each of them alone."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product
from math import comb
from typing import Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.coalitions.game import Array, Game
from headroles.ablation.example_stats import written
from headroles.ablation.metrics import Metric
from headroles.ablation.metrics import metric as the_metric
from headroles.ablation.sweep import Options, Sweep
from headroles.ablation.units import Replacement
from headroles.data.corpus import Corpus
from headroles.models.masking import Head
from headroles.models.provenance import fixed_weights
from headroles.tables.frame import signed


@fixed_weights()
def shapley_interactions(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    *,
    metric: str | Metric = "loss",
    heads: Iterable[Head] | None = None,
    n_rounds: int = 20,
    replacement: Replacement = "zero",
    n_resamples: int = 1000,
    seed: int = 0,
    **options: Unpack[Options],
) -> pd.DataFrame:
    """Estimate the Shapley interaction index of all pairs of heads (Grabisch and Roubens 1999).

    The index of heads i and j is the mean of v(S, i, j) - v(S, i) - v(S, j) + v(S), with v the metric and S the heads
    before the two in a random order in which they are neighbours. It is 0 where two heads act independently. Of a
    metric of which larger values are better, it is positive where they need each other and negative where one stands
    in for the other; of the loss the reverse.

    Args:
        model: A Hugging Face model.
        tokenizer: Its tokenizer.
        corpus: The corpus on which the metric is measured.
        metric: Name of a metric (`list_metrics`) or of an objective, or a metric.
        heads: The heads that are paired, (kind, layer, head) each; the others are never masked. By default all.
        n_rounds: Estimates of each pair. A round has orders in which each pair are neighbours once; with n heads it
            takes about n^2 variants of the model.
        replacement: What replaces the output of a masked head, as in `ablate`.
        n_resamples: Bootstrap resamples of the examples; 0 for no intervals.
        seed: Seed of the orders and of the resamples.
        **options: Further options of `Sweep` (`max_tokens`, `heads_per_batch`, `folder`).

    Returns:
        A table with a row per pair, index `(first, second)`, heads written as "enc-self:0:2": the index,
        `interaction[metric]`, and its 95 % interval over rounds and examples.

    Raises:
        ValueError: If `n_rounds` is below 1, a head is unknown or repeated, there are fewer than two heads, or the
            metric of a coalition is not finite.
    """
    if n_rounds < 1:
        raise ValueError(f"too few rounds: got n_rounds={n_rounds}; expected 1 or more, and 2 for intervals")
    sweep = Sweep(model, tokenizer, corpus, the_metric(metric), replacement=replacement, seed=seed, **options)
    game, generator = Game(sweep, heads, n_resamples, seed), np.random.default_rng(seed)
    parts, draws = [], np.zeros((comb(len(game.heads), 2), n_resamples))
    for _ in range(n_rounds):
        estimates = _round(game, generator)  # [pair, 1 + resample]
        parts.append(estimates[:, 0])
        draws += estimates[:, 1:] / n_rounds
    columns = game.columns("interaction", np.stack(parts), draws)
    names = [written(frozenset([head])) for head in game.heads]
    index = pd.MultiIndex.from_tuples(list(combinations(names, 2)), names=["first", "second"])
    return signed(pd.DataFrame(columns, index=index), game.provenance(rounds=n_rounds))


def _round(game: Game, generator: np.random.Generator) -> Array:
    """Estimate each pair once, in orders in which each are neighbours once: [pair, 1 + resample]."""
    size = len(game.heads)
    labels = generator.permutation(size + size % 2)  # an odd number of heads gets one that does nothing
    orders = labels[_paths(len(labels))].tolist()
    coalitions, rows = [], []
    for order, place in product(orders, range(len(labels) - 1)):
        first, second = order[place : place + 2]
        if max(first, second) < size:
            before = [head for head in order[:place] if head < size]
            coalitions += [[*before, first, second], [*before, first], [*before, second], before]
            rows.append((min(first, second), max(first, second)))
    values = game.values(coalitions).reshape(len(rows), 4, -1)
    estimates = values[:, 0] - values[:, 1] - values[:, 2] + values[:, 3]
    return estimates[sorted(range(len(rows)), key=rows.__getitem__)]


def _paths(size: int) -> npt.NDArray[np.int64]:
    """Return paths through an even number of nodes with each pair as neighbours once (Walecki): [path, node]."""
    zigzag = np.array([(-1) ** (place + 1) * ((place + 1) // 2) for place in range(size)])  # 0, 1, -1, 2, -2 ...
    return (zigzag + np.arange(size // 2)[:, None]) % size
