"""A sweep: the statistics of a metric for every example, by the intact model and by many variants with heads closed."""

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
from headroles.ablation.runner import Array, Fill, Runner
from headroles.data.corpus import Corpus
from headroles.models import attention_hooks, batching, loading, masking
from headroles.models.batching import LONGEST, Batch, Encoded
from headroles.tables import frame
from headroles.tables.files import BLANK, MARK, is_sealed, replacing, seal

FILLS: tuple[Fill, ...] = ("zero", "mean", "other", "uniform", "rescale")


def sweep(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    variants: list[HeadSet],
    metric: Metric,
    *,
    replacement: Fill = "zero",
    max_tokens: int = 4096,
    heads_per_batch: int = 8,
    rows: Sequence[int] | None = None,
    folder: Path | None = None,
    seed: int = 0,
) -> ExampleStats:
    """Measure every variant on every example: exactly, and without computing what closing its heads cannot change.

    Layers below the first closed head are handed back, so is the encoder where its heads are open, and `together`
    variants go through the model as one batch of at most `budget` tokens (halved, said once, if memory runs out).
    The fill "other" is what the intact model's head puts out for another example of the corpus, of like length and
    drawn by `seed` (`others.partners`), at the tokens that both have.
    `rows` are the numbers of the examples to run, by default all; what is of the corpus stays of all of it. With
    a `folder`, the statistics of each finished batch are kept there, and a sweep that was stopped goes on after them.
    Processes that `accelerate launch` started share the batches, and where these are few the variants; each gets all
    statistics.
    Raises ValueError for an unknown head or fill, and where the metric is not to be had or not finite.
    """
    if replacement not in FILLS:
        raise ValueError(f"unknown fill {replacement!r}; known: {', '.join(FILLS)}")
    if heads_per_batch < 1 or max_tokens < 1:
        raise ValueError(
            f"expected a budget and a number of variants together of at least 1; got {max_tokens}, {heads_per_batch}"
        )
    masking.head_mask(model, {head for closed in variants for head in closed})
    encoded = batching.encode(corpus, tokenizer, model, words=False)
    one = max(1, max_tokens // heads_per_batch)
    with attention_hooks.evaluating(model):
        chosen = encoded if rows is None else encoded.take(rows)
        groups = list(batching.batches(chosen, model, max_tokens=one))

        @cache
        def every() -> list[Batch]:
            return groups if rows is None else list(batching.batches(encoded, model, max_tokens=one))

        read = metric.reader(model, tokenizer, corpus, every)
        longest = min(loading.positions(tokenizer, model), LONGEST)
        filling = Others(model, encoded, seed) if replacement == "other" else _filling(model, every, replacement)
        runner = Runner(model, longest, read, metric, variants, filling, replacement, heads_per_batch)
        how = f"{replacement} {seed}" if replacement == "other" else replacement
        name = _name(model, encoded, corpus, variants, metric, how, one, rows)
        shares = -(-_distributed.count() // len(groups))  # where batches are few, processes share their variants too

        def part(_: int, item: tuple[int, int]) -> Array:
            own = name if shares == 1 else f"{name}-{item[1]}of{shares}"
            return _kept(folder, f"{own}-{item[0]}", lambda: runner.run(groups[item[0]], (item[1], shares)))

        items = list(product(range(len(groups)), range(shares)))
        parts = _distributed.spread(items, part, lambda own: track(own, "closing heads", total=len(own)))
    found = np.concatenate([_joined(parts[at : at + shares]) for at in range(0, len(parts), shares)], axis=1)
    numbers = [number for batch in groups for number in batch.numbers]
    text = _signed(model, corpus, encoded, metric, replacement) + (
        f"|partners:{seed}" if replacement == "other" else ""
    )
    return ExampleStats(found[0], dict(zip(variants, found[1:], strict=True)), numbers, encoded.too_long, metric, text)


def _signed(model: PreTrainedModel, corpus: Corpus, encoded: Encoded, metric: Metric, replacement: Fill) -> str:
    """What the statistics of a sweep are of."""
    return frame.sign(
        model=loading.name(model),
        weights=loading.revision(model),
        corpus=corpus.name,
        text=corpus.hash,
        examples=len(encoded.numbers),
        too_long=encoded.too_long,
        metric=metric,
        fill=replacement,
        headroles=version("headroles"),
    )


def _joined(parts: Sequence[Array]) -> Array:
    """The statistics of one batch, [1 + variant, example, statistic], from parts that lack those of others."""
    found = parts[0]
    for other in parts[1:]:
        found = np.where(np.isnan(found), other, found)
    return found


def _kept(folder: Path | None, name: str, run: Callable[[], Array]) -> Array:
    """The statistics of a batch, read if they are in the folder, otherwise measured and written there."""
    if folder is None:
        return run()
    path = folder / f"{name}.npy"
    if path.is_file():
        return _read(path)
    found = run()
    content = io.BytesIO()
    np.save(content, found, allow_pickle=False)
    with replacing(path) as draft:
        draft.write_bytes(seal(content.getvalue() + MARK + BLANK))
    return found


def _read(path: Path) -> Array:
    """What is kept, if it is whole and as it was written; files of earlier versions have no digest."""
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
    model: PreTrainedModel, groups: Callable[[], list[Batch]], replacement: Fill
) -> masking.Fill | Mapping[Any, Tensor]:
    if replacement == "mean":
        return masking.mean(model, groups())
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
    """What the files of a sweep are called: it follows from all that its numbers do."""
    config: Any = model.config
    recipe: list[Any] = [
        loading.revision(model),
        config.to_json_string(),
        corpus.hash,
        repr(metric),
        replacement,
        max_tokens,
    ]
    recipe += [[one.ids for one in side] for side in (encoded.source, encoded.target or [])]
    if rows is not None:
        recipe.append(list(rows))
    if metric.generates:
        recipe.append(model.generation_config.to_json_string())
    listed = [sorted(closed) for closed in variants]
    return hashlib.sha256(repr((recipe, listed, version("headroles"))).encode()).hexdigest()[:12]
