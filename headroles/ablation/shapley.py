"""Shapley values of heads: mean effects over coalitions; their worth is the metric with the other heads masked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, Unpack, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
from transformers import PreTrainedTokenizerBase

from headroles.ablation.example_stats import HeadSet, written
from headroles.ablation.metrics import Metric
from headroles.ablation.metrics import metric as the_metric
from headroles.ablation.sweep import Options, Sweep
from headroles.ablation.units import Replacement, replacement_name
from headroles.analysis.intervals import Array, over_seeds
from headroles.data.corpus import CorpusLike
from headroles.data.readers import corpus_of
from headroles.models.head_model import HeadModel, Model
from headroles.models.masking import Head
from headroles.tables import frame
from headroles.tables.study import Study, study_at

MOST, KEPT = 1024, 16384  # variants of one sweep, and known values, which bound memory
Method = Literal["permutation", "kernel"]
BLOCK = 8  # heads that are removed between two checks for truncation


def shapley_values(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    *,
    metric: str | Metric = "loss",
    heads: Iterable[Head] | None = None,
    method: Method = "permutation",
    n_permutations: int = 100,
    truncation: float = 0.0,
    replacement: Replacement = "zero",
    n_resamples: int = 1000,
    seed: int = 0,
    study: Study | str | Path | None = None,
    **options: Unpack[Options],
) -> pd.DataFrame:
    """Divide a metric among the heads by their Shapley values (Held and Yang 2023).

    The value of a head is the mean change of the metric when the head joins the heads that follow it in a random order,
    all others being masked. The values sum to the metric of the whole model minus that of the model without any of the
    heads. A head that lowers the loss has a negative value of the loss, where its ablation has a positive effect.

    As in the authors' code, heads are removed one by one from the whole model, in random orders. That code looks for
    harmful heads alone and saves more: it counts nothing once half of the heads are removed, and stops sampling a head
    once an empirical Bernstein bound excludes that it does harm. Both bias the values; neither is done here.

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
        study: Study or folder that keeps the table as `shapley-METRIC[-REPLACEMENT][-kernel]`; if it has it, nothing is
            computed.
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
    handle = HeadModel.of(model, tokenizer)
    sweep = Sweep(handle, corpus_of(corpus), the_metric(metric), replacement=replacement, seed=seed, **options)
    game = Game(sweep, heads, n_resamples, seed)
    fields: dict[str, object] = {"method": method, "permutations": n_permutations}
    fields |= {"truncation": f"{truncation:g}"} if truncation else {}
    words = ["kernel"] if method == "kernel" else []

    def compute() -> pd.DataFrame:
        if method == "kernel":
            parts, draws = _kernel(game, n_permutations)
        else:
            parts, draws = _permutations(game, n_permutations, truncation)
        columns = game.columns("shapley", parts, draws, *words)
        return frame.table(columns, game.index(), game.provenance(**fields))

    return game.keep(study, "shapley", compute, *words, **fields)


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
    """Estimate by Kernel SHAP with complements (Covert and Lee 2021): [pair, head]; of resamples [head, resample]."""
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
    # the regression of worth on heads, constrained to sum to the whole difference
    values = free + sums / sums.sum() * (whole - none - free.sum(0))  # [head, 1 + resample]
    residuals = worth[:, 0] - joined @ values[:, 0]
    influence = (inverse - sums @ sums.T / sums.sum()) @ (joined * residuals[:, None]).T  # [head, coalition]
    pairs = influence.reshape(size, 2, -1).sum(1).T  # [pair, head]
    # from a single pair: the whole estimate and the influence of the pair, which sums to 0 (the sandwich variance)
    return values[:, 0] + len(pairs) * pairs, values[:, 1:]


class Game:
    """Cooperative game of some heads of a model (None: all); heads that do not play are never masked."""

    def __init__(self, sweep: Sweep, heads: Iterable[Head] | None, n_resamples: int, seed: int) -> None:
        index = sweep.model.heads
        chosen = index if heads is None else [(kind, layer, head) for kind, layer, head in heads]
        sweep.model.head_mask(chosen)  # raises for an unknown head
        if len(set(chosen)) < len(chosen) or len(chosen) < 2:
            raise ValueError(
                f"wrong heads of a game: got {len(chosen)}, of which {len(set(chosen))} differ; expected two or more "
                f"different ones"
            )
        self.sweep, self.n_resamples, self.seed = sweep, n_resamples, seed
        self.heads = [head for head in index if head in set(chosen)]
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
            for variant in stats.masked:
                if not np.isfinite(self.known[variant][0]):
                    raise ValueError(f"{stats.metric.name} has no finite value without heads {written(variant)}")
        return np.stack([self.known[variant] for variant in masked])

    def keep(
        self,
        study: Study | str | Path | None,
        stem: str,
        compute: Callable[[], pd.DataFrame],
        *words: str,
        **fields: object,
    ) -> pd.DataFrame:
        """Compute a table, or return that of a study, which keeps it under its stem and words."""
        if study is None:
            return compute()
        chosen = hashlib.sha256(repr(self.heads).encode()).hexdigest()[:12]
        key = self.sweep.cache_key(heads=chosen, **fields, resamples=self.n_resamples, seed=self.seed)
        return study_at(study).keep("-".join([stem, *self._words(*words)]), key, compute)

    def _words(self, *words: str) -> list[str]:
        """Return the words of columns and tables: metric, an unusual replacement, and others."""
        replacement = self.sweep.replacement
        return [self.sweep.metric.name, *([] if replacement == "zero" else [replacement_name(replacement)]), *words]

    def columns(self, name: str, parts: Array, draws: Array, *words: str) -> dict[str, npt.NDArray[np.float64]]:
        """Compute means of `parts` [sample, row], and 95 % intervals with `draws` of the examples [row, resample]."""
        column = f"{name}[{' '.join(self._words(*words))}]"
        ends = [
            over_seeds(np.column_stack([part, np.broadcast_to(draw, (len(part), len(draw)))]))
            for part, draw in zip(parts.T, draws, strict=True)
        ]
        low, high = np.array(ends).T
        return {column: parts.mean(0), f"{column}.low": low, f"{column}.high": high}

    def provenance(self, **fields: object) -> str:
        """Return the provenance of columns: that of the sweep, the metric of all and of no heads, and fields."""
        whole, none = self.values([range(len(self.heads)), ()])[:, 0]
        worth: dict[str, object] = {"whole": f"{whole:.6g}", "none": f"{none:.6g}", "heads": len(self.heads)}
        return f"{self.sweep.signature}|{frame.sign(**worth, **fields, resamples=self.n_resamples, seed=self.seed)}"

    def index(self) -> pd.MultiIndex:
        """Return the index of the players."""
        index = self.sweep.model.index
        return index[index.isin(self.heads)]
