"""Shapley values: a metric divided among the heads by what each adds to random coalitions of the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Unpack, get_args

import numpy as np
import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.coalitions.game import Array, Game
from headroles.ablation.metrics import Metric
from headroles.ablation.metrics import metric as the_metric
from headroles.ablation.sweep import Options, Sweep
from headroles.ablation.units import Replacement
from headroles.data.corpus import Corpus
from headroles.models.masking import Head
from headroles.models.provenance import fixed_weights
from headroles.tables import frame

Method = Literal["permutation", "kernel"]
BLOCK = 8  # heads that are removed between two checks for truncation


@fixed_weights()
def shapley_values(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    *,
    metric: str | Metric = "loss",
    heads: Iterable[Head] | None = None,
    method: Method = "permutation",
    n_permutations: int = 100,
    truncation: float = 0.0,
    replacement: Replacement = "zero",
    n_resamples: int = 1000,
    seed: int = 0,
    **options: Unpack[Options],
) -> pd.DataFrame:
    """Divide a metric among the heads by their Shapley values (Held and Yang 2023).

    The value of a head is the mean change of the metric when the head joins the heads that follow it in a random order,
    all others being masked. The values sum to the metric of the whole model minus that of the model without any of the
    heads. A head that lowers the loss has a negative value of the loss, where its ablation has a positive effect.

    As in the authors' code, heads are removed one by one from the whole model, in random orders. That code looks for
    harmful heads alone and saves more: it counts nothing once half of the heads are removed, and stops sampling a head
    once an empirical Bernstein bound says that it does no harm. Both bias the values, and are left out here.

    Args:
        model: A Hugging Face model.
        tokenizer: Its tokenizer.
        corpus: The corpus on which the metric is measured.
        metric: Name of a metric (`list_metrics`) or of an objective, or a metric, differentiable or not.
        heads: The heads among which the metric is divided, (kind, layer, head) each; the others are never masked. By
            default all.
        method: "permutation" removes the heads one by one in random orders (Castro et al. 2009); "kernel" is Kernel
            SHAP (Lundberg and Lee 2017), a weighted regression on as many random coalitions and their complements.
        n_permutations: Number of random orders. Each takes as many variants of the model as there are heads.
        truncation: Permutations only: once the metric is nearer to that without any head than this share of the whole
            difference, heads that are removed later in the order count 0 (Ghorbani and Zou 2019), which saves variants
            and leaves at most that share out of the sum. 0, the default, truncates nothing and has no bias.
        replacement: What replaces the output of a masked head, as in `ablate`.
        n_resamples: Bootstrap resamples of the examples; 0 for no intervals.
        seed: Seed of the orders and of the resamples.
        **options: Further options of `Sweep` (`max_tokens`, `heads_per_batch`, `folder`).

    Returns:
        A table with a row per head: the value, `shapley[metric]`, and its 95 % interval over orders and examples. Other
        replacements and "kernel" follow the metric in the name.

    Raises:
        ValueError: If an argument is out of range, a head is unknown or repeated, there are fewer than two heads, or
            the metric of a coalition is not finite.
    """
    if method not in get_args(Method):
        raise ValueError(f"unknown method {method!r}; known: {', '.join(get_args(Method))}")
    if n_permutations < 1 or not 0 <= truncation < 1:
        raise ValueError(
            f"Shapley values out of range: got n_permutations={n_permutations}, truncation={truncation}; expected at "
            f"least one permutation, and a share from 0 to below 1"
        )
    if truncation and method == "kernel":
        raise ValueError(
            f"only permutations are truncated: got truncation={truncation} and method='kernel'; expected 0"
        )
    sweep = Sweep(model, tokenizer, corpus, the_metric(metric), replacement=replacement, seed=seed, **options)
    game = Game(sweep, heads, n_resamples, seed)
    if method == "kernel":
        parts, draws = _kernel(game, n_permutations)
    else:
        parts, draws = _permutations(game, n_permutations, truncation)
    columns = game.columns("shapley", parts, draws, *(["kernel"] if method == "kernel" else []))
    fields: dict[str, object] = {"method": method, "permutations": n_permutations}
    fields |= {"truncation": f"{truncation:g}"} if truncation else {}
    return frame.table(columns, game.index(), game.provenance(**fields))


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


def _kernel(game: Game, count: int) -> tuple[Array, Array]:
    """Estimate values by Kernel SHAP with pairs of complements (Covert and Lee 2021).

    The regression of the worth on the heads of coalitions is constrained to sum to the whole difference. The estimate
    from a single pair is the whole one plus the influence of the pair on it, which sums to 0 (the sandwich variance).

    Args:
        game: The game.
        count: Coalitions for each head.

    Returns:
        Estimates from the pairs, [pair, head], and from resamples of the examples, [head, resample].

    Raises:
        ValueError: If there are too few different coalitions for a regression.
    """
    size, generator = len(game.heads), np.random.default_rng(game.seed)
    chances = 1 / (np.arange(1, size) * np.arange(size - 1, 0, -1))
    counts = generator.choice(np.arange(1, size), p=chances / chances.sum(), size=-(-count * size // 2))
    half = np.stack([generator.permutation(size) < chosen for chosen in counts])
    joined = np.concatenate([half, ~half]).astype(float)  # [coalition, head]
    whole, none = game.values([range(size), ()])
    worth = game.values([np.flatnonzero(row) for row in joined]) - none  # [coalition, 1 + resample]
    products = joined.T @ joined
    if np.linalg.matrix_rank(products) < size:
        raise ValueError(
            f"too few coalitions for Kernel SHAP: got {len(joined)} of {size} heads; expected as many different ones "
            f"as heads; try n_permutations={2 * count}"
        )
    inverse = np.linalg.inv(products)
    sums = inverse.sum(1, keepdims=True)
    free = inverse @ joined.T @ worth
    values = free + sums / sums.sum() * (whole - none - free.sum(0))  # [head, 1 + resample]
    residuals = worth[:, 0] - joined @ values[:, 0]
    influence = (inverse - sums @ sums.T / sums.sum()) @ (joined * residuals[:, None]).T  # [head, coalition]
    pairs = influence.reshape(size, 2, -1).sum(1).T  # [pair, head]
    return values[:, 0] + len(pairs) * pairs, values[:, 1:]
