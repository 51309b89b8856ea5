"""Ablation sweep: measure the statistics of every example by the intact model and by variants with masked heads."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from itertools import product
from pathlib import Path
from tokenize import TokenError
from typing import TypedDict, Unpack

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import _distributed
from headroles._distributed import track
from headroles.ablation.example_stats import ExampleStats, HeadSet
from headroles.ablation.metrics import Metric, Read
from headroles.ablation.resample import Others
from headroles.ablation.runner import Array, Filling, Replacement, Runner, check_choices, on_disk
from headroles.data.corpus import Corpus
from headroles.models import attention_hooks, batching, masking, tokenization
from headroles.models.batching import LONGEST, Batch
from headroles.models.provenance import provenance_of, revision
from headroles.tables.io import BLANK, MARK, is_sealed, replacing, seal


def sweep(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    variants: Sequence[HeadSet],
    metric: Metric,
    *,
    rows: Sequence[int] | None = None,
    replacement: Replacement = "zero",
    seed: int = 0,
    **options: Unpack[Options],
) -> ExampleStats:
    """Measure every variant on every example, or on `rows`: `Sweep(...).run(variants, rows)`."""
    runs = Sweep(model, tokenizer, corpus, metric, replacement=replacement, seed=seed, **options)
    return runs.run(variants, rows)


class Options(TypedDict, total=False):
    """Options of `Sweep` that its numbers do not depend on."""

    max_tokens: int
    heads_per_batch: int
    folder: str | Path | None


class Sweep:
    """Runs of a model and of its variants with masked heads on the examples of a corpus.

    Results are exact. What masking the heads of a variant cannot change is computed once per batch: the layers below
    the first masked head, and the encoder where its heads are intact. Processes started by `accelerate launch` share
    the batches, and the variants where batches are few; each process returns all statistics.

    Args:
        model: A Hugging Face model.
        tokenizer: Its tokenizer.
        corpus: The corpus that is measured.
        metric: The metric that reads the statistics.
        replacement: What replaces the output of a masked head (see `ablate`). "resample" takes the output of the intact
            model for another example (`partners`).
        max_tokens: Tokens in one forward pass, variants together.
        heads_per_batch: Variants in one forward pass; halved, with a warning, when memory runs out.
        folder: Where the statistics of finished batches are kept; an interrupted sweep continues after them.
        seed: Seed of the partners of "resample".

    Raises:
        ValueError: If `max_tokens` or `heads_per_batch` is below 1, or the replacement is unknown.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        corpus: Corpus,
        metric: Metric,
        *,
        replacement: Replacement = "zero",
        max_tokens: int = 4096,
        heads_per_batch: int = 8,
        folder: str | Path | None = None,
        seed: int = 0,
    ) -> None:
        check_choices(replacement=replacement)
        if heads_per_batch < 1 or max_tokens < 1:
            raise ValueError(
                f"max_tokens and heads_per_batch must be at least 1: got {max_tokens} and {heads_per_batch}"
            )
        self.model, self.tokenizer, self.corpus, self.metric = model, tokenizer, corpus, metric
        self.replacement, self.heads_per_batch, self.seed = replacement, heads_per_batch, seed
        self.folder = None if folder is None else Path(folder)
        self.size = max(1, max_tokens // heads_per_batch)  # tokens of a batch
        self.encoded = batching.encode(corpus, tokenizer, model, words=False)

    @cached_property
    def examples(self) -> list[int]:
        """Numbers of the examples: of the sentences that fit the model, or of the pairs if the metric is of pairs."""
        return self._places(self.encoded.numbers)[0]

    @cached_property
    def batches(self) -> list[Batch]:
        """All batches of the corpus."""
        return list(batching.batches(self.encoded, self.model, max_tokens=self.size))

    @cached_property
    def read(self) -> Read:
        """Function that reads the metric's statistics from the output of a batch."""
        return self.metric.reader(self.model, self.tokenizer, self.corpus, lambda: self.batches)

    @cached_property
    def filling(self) -> Filling:
        """Replacement of the outputs of masked heads; means and partners come from the whole corpus."""
        if self.replacement == "resample":
            return Others(self.model, self.encoded, self.seed)
        if self.replacement == "mean":
            return masking.mean(self.model, self.batches)
        return "zero" if self.replacement == "rescale" else self.replacement

    @cached_property
    def signature(self) -> str:
        """Provenance of the statistics."""
        text = provenance_of(
            self.model,
            None,
            self.corpus,
            examples=len(self.examples),
            too_long=self.encoded.too_long,
            metric=self.metric,
            **self.metric.declaration(),
            fill=on_disk(self.replacement),
        )
        return f"{text}|partners:{self.seed}" if self.replacement == "resample" else text

    def run(self, variants: Sequence[HeadSet], rows: Sequence[int] | None = None) -> ExampleStats:
        """Measure the intact model and every variant on the examples `rows`, by default all."""
        masking.head_mask(self.model, {head for masked in variants for head in masked})  # raises for an unknown head
        with attention_hooks.evaluating(self.model):
            groups = self.batches
            if rows is not None:
                size = self.metric.sentences
                numbers = [size * row + place for row in rows for place in range(size)]
                groups = list(batching.batches(self.encoded.take(numbers), self.model, max_tokens=self.size))
            runner = self._runner(variants)
            name = self._name(variants, rows)
            shares = -(-_distributed.count() // len(groups))  # where batches are few, processes share their variants

            def part(_: int, item: tuple[int, int]) -> Array:
                key = name if shares == 1 else f"{name}-{item[1]}of{shares}"
                return _kept(self.folder, f"{key}-{item[0]}", lambda: runner.run(groups[item[0]], (item[1], shares)))

            items = list(product(range(len(groups)), range(shares)))
            parts = _distributed.spread(items, part, lambda items: track(items, "masking heads", total=len(items)))
        joined = np.concatenate([_joined(parts[at : at + shares]) for at in range(0, len(parts), shares)], axis=1)
        return self._stats(joined[0], dict(zip(variants, joined[1:], strict=True)), groups)

    def predict(self, variants: Sequence[HeadSet]) -> ExampleStats:
        """Predict every variant by the gradient at a mask of ones: one forward and one backward pass of each batch."""
        masking.head_mask(self.model, {head for masked in variants for head in masked})
        with attention_hooks.evaluating(self.model):
            runner = self._runner(variants)
            stand_in = self.metric.stand_in(self.model, lambda: self.batches)
            name = f"{self._name(variants, None)}-gradient"

            def part(number: int, batch: Batch) -> Array:
                return _kept(self.folder, f"{name}-{number}", lambda: runner.predict(batch, stand_in))

            parts = _distributed.spread(
                self.batches, part, lambda items: track(items, "gradients of masks", total=len(items))
            )
        joined = np.concatenate(parts)  # [example, statistic + variant]
        count = joined.shape[1] - len(variants)
        stats = self._stats(joined[:, :count], {}, self.batches)
        _, places = self._places([number for batch in self.batches for number in batch.numbers])
        changes = joined[places, count:].sum(axis=1)  # [example, variant]
        return replace(stats, predicted=dict(zip(variants, changes.T, strict=True)))

    def _runner(self, variants: Sequence[HeadSet]) -> Runner:
        longest = min(tokenization.positions(self.tokenizer, self.model), LONGEST)
        return Runner(
            self.model, longest, self.read, self.metric, variants, self.filling, self.replacement, self.heads_per_batch
        )

    def _stats(self, intact: Array, masked: dict[HeadSet, Array], groups: Sequence[Batch]) -> ExampleStats:
        numbers, places = self._places([number for batch in groups for number in batch.numbers])
        merged = {variant: self.metric.merged(values[places]) for variant, values in masked.items()}
        whole = self.metric.merged(intact[places])
        return ExampleStats(whole, merged, numbers, self.encoded.too_long, self.metric, self.signature)

    def _places(self, numbers: Sequence[int]) -> tuple[list[int], npt.NDArray[np.int64]]:
        """Numbers of the examples of which all sentences are there, and where these are: [example, sentence]."""
        size, place = self.metric.sentences, {number: row for row, number in enumerate(numbers)}
        sentences = {number // size: [size * (number // size) + part for part in range(size)] for number in numbers}
        whole = {example: parts for example, parts in sentences.items() if all(part in place for part in parts)}
        return list(whole), np.array([[place[part] for part in parts] for parts in whole.values()], np.int64).reshape(
            -1, size
        )

    def _name(self, variants: Sequence[HeadSet], rows: Sequence[int] | None) -> str:
        """Return the cache key of a run: a digest of all that its numbers depend on."""
        resampled = self.replacement == "resample"
        key: list[object] = [
            revision(self.model),
            self.model.config.to_json_string(),
            self.corpus.hash,
            repr(self.metric),
            f"{on_disk(self.replacement)} {self.seed}" if resampled else self.replacement,
            self.size,
        ]
        key += [[words.ids for words in side] for side in (self.encoded.source, self.encoded.target or [])]
        if rows is not None:
            key.append(list(rows))
        if self.metric.generates:
            key.append(self.model.generation_config.to_json_string())
        listed = [sorted(masked) for masked in variants]
        return hashlib.sha256(repr((key, listed, version("headroles"))).encode()).hexdigest()[:12]


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
