"""Ablation sweep: measure the statistics of every example by the intact model and by variants with masked heads."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from itertools import product
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import _distributed
from headroles._progress import track
from headroles.ablation.example_stats import ExampleStats, HeadSet
from headroles.ablation.metrics import Metric
from headroles.ablation.resample import Others
from headroles.ablation.runner import Array, Runner
from headroles.ablation.units import Replacement, check_choices, on_disk
from headroles.data.corpus import Corpus
from headroles.models import attention_hooks, batching, loading, masking
from headroles.models.batching import LONGEST, Batch, Encoded
from headroles.tables import frame
from headroles.tables.files import BLANK, MARK, is_sealed, replacing, seal


def sweep(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    variants: list[HeadSet],
    metric: Metric,
    *,
    replacement: Replacement = "zero",
    max_tokens: int = 4096,
    heads_per_batch: int = 8,
    rows: Sequence[int] | None = None,
    folder: Path | None = None,
    seed: int = 0,
) -> ExampleStats:
    """Measure every variant on every example.

    Results are exact. What masking the heads of a variant cannot change is computed once per batch: the layers below
    the first masked head, and the encoder where its heads are intact. Processes started by `accelerate launch` share
    the batches, and the variants where batches are few; each process returns all statistics.

    Args:
        model: A Hugging Face model.
        tokenizer: Its tokenizer.
        corpus: The corpus that is measured.
        variants: Sets of heads, (kind, layer, head) each; a variant masks all heads of its set.
        metric: The metric that reads the statistics.
        replacement: What replaces the output of a masked head (see `ablate`). "resample" takes the output of the intact
            model for another example (`partners`).
        max_tokens: Tokens in one forward pass, variants together.
        heads_per_batch: Variants in one forward pass; halved, with a warning, when memory runs out.
        rows: Numbers of the examples to run, by default all. Means and partners come from the whole corpus.
        folder: Where the statistics of finished batches are kept; an interrupted sweep continues after them.
        seed: Seed of the partners of "resample".

    Returns:
        The statistics of every example by the intact model and by each variant.

    Raises:
        ValueError: If `max_tokens` or `heads_per_batch` is below 1, a head or replacement is unknown, or model or
            corpus do not have the metric or give numbers that are not finite.
    """
    check_choices(replacement=replacement)
    if heads_per_batch < 1 or max_tokens < 1:
        raise ValueError(f"max_tokens and heads_per_batch must be at least 1: got {max_tokens} and {heads_per_batch}")
    masking.head_mask(model, {head for masked in variants for head in masked})  # raises for an unknown head
    encoded = batching.encode(corpus, tokenizer, model, words=False)
    size = max(1, max_tokens // heads_per_batch)  # tokens of a batch
    with attention_hooks.evaluating(model):
        chosen = encoded if rows is None else encoded.take(rows)
        groups = list(batching.batches(chosen, model, max_tokens=size))

        @cache
        def all_batches() -> list[Batch]:
            return groups if rows is None else list(batching.batches(encoded, model, max_tokens=size))

        read = metric.reader(model, tokenizer, corpus, all_batches)
        longest = min(loading.positions(tokenizer, model), LONGEST)
        resampled = replacement == "resample"
        filling = _filling(model, encoded, all_batches, replacement, seed)
        runner = Runner(model, longest, read, metric, variants, filling, replacement, heads_per_batch)
        how = f"{on_disk(replacement)} {seed}" if resampled else replacement
        name = _name(model, encoded, corpus, variants, metric, how, size, rows)
        shares = -(-_distributed.count() // len(groups))  # where batches are few, processes share their variants too

        def part(_: int, item: tuple[int, int]) -> Array:
            key = name if shares == 1 else f"{name}-{item[1]}of{shares}"
            return _kept(folder, f"{key}-{item[0]}", lambda: runner.run(groups[item[0]], (item[1], shares)))

        items = list(product(range(len(groups)), range(shares)))
        parts = _distributed.spread(items, part, lambda items: track(items, "masking heads", total=len(items)))
    joined = np.concatenate([_joined(parts[at : at + shares]) for at in range(0, len(parts), shares)], axis=1)
    numbers = [number for batch in groups for number in batch.numbers]
    text = _provenance(model, corpus, encoded, metric, replacement) + (f"|partners:{seed}" if resampled else "")
    by_variant = dict(zip(variants, joined[1:], strict=True))
    return ExampleStats(joined[0], by_variant, numbers, encoded.too_long, metric, text)


def _provenance(
    model: PreTrainedModel, corpus: Corpus, encoded: Encoded, metric: Metric, replacement: Replacement
) -> str:
    return frame.sign(
        model=loading.name(model),
        weights=loading.revision(model),
        corpus=corpus.name,
        text=corpus.hash,
        examples=len(encoded.numbers),
        too_long=encoded.too_long,
        metric=metric,
        fill=on_disk(replacement),
        headroles=version("headroles"),
    )


def _joined(parts: Sequence[Array]) -> Array:
    """Merge the parts of one batch, [1 + variant, example, statistic], each NaN where another one has numbers."""
    joined = parts[0]
    for other in parts[1:]:
        joined = np.where(np.isnan(joined), other, joined)
    return joined


def _kept(folder: Path | None, name: str, run: Callable[[], Array]) -> Array:
    """Read the statistics of a batch from the folder, or measure them and write them there."""
    if folder is None:
        return run()
    path = folder / f"{name}.npy"
    if path.is_file():
        return _read(path)
    statistics = run()
    content = io.BytesIO()
    np.save(content, statistics, allow_pickle=False)
    with replacing(path) as draft:
        draft.write_bytes(seal(content.getvalue() + MARK + BLANK))
    return statistics


def _read(path: Path) -> Array:
    """Read kept statistics and check their digest, which files of earlier versions lack."""
    content = path.read_bytes()
    try:
        end = len(content) - is_sealed(content) * len(MARK + BLANK)
        source = io.BytesIO(content[:end])
        kept: Array = np.load(source, allow_pickle=False)
        if source.tell() < end:
            raise ValueError("there is more in it than an array")
    except (ValueError, EOFError, SyntaxError, TokenError) as error:
        raise ValueError(f"{path} is damaged: {error}; remove the file to have it measured again") from error
    return kept


def _filling(
    model: PreTrainedModel,
    encoded: Encoded,
    all_batches: Callable[[], list[Batch]],
    replacement: Replacement,
    seed: int,
) -> masking.Fill | Mapping[Any, Tensor] | Others:
    if replacement == "resample":
        return Others(model, encoded, seed)
    if replacement == "mean":
        return masking.mean(model, all_batches())
    return "zero" if replacement == "rescale" else replacement


def _name(
    model: PreTrainedModel,
    encoded: Encoded,
    corpus: Corpus,
    variants: list[HeadSet],
    metric: Metric,
    replacement: str,
    max_tokens: int,
    rows: Sequence[int] | None,
) -> str:
    """Return the cache key of a sweep: a digest of all that its numbers depend on."""
    config: Any = model.config
    key: list[Any] = [
        loading.revision(model),
        config.to_json_string(),
        corpus.hash,
        repr(metric),
        replacement,
        max_tokens,
    ]
    key += [[words.ids for words in side] for side in (encoded.source, encoded.target or [])]
    if rows is not None:
        key.append(list(rows))
    if metric.generates:
        key.append(model.generation_config.to_json_string())
    listed = [sorted(masked) for masked in variants]
    return hashlib.sha256(repr((key, listed, version("headroles"))).encode()).hexdigest()[:12]
