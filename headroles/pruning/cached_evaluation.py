"""Cached evaluation: example statistics of pruned models on held-out examples, kept in a study."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.example_stats import ExampleStats, HeadSet
from headroles.ablation.metrics import Metric
from headroles.ablation.sweep import Sweep
from headroles.analysis.intervals import Array
from headroles.data.corpus import Corpus
from headroles.models import provenance
from headroles.models.head_model import HeadModel
from headroles.models.masking import Head
from headroles.models.provenance import provenance_of
from headroles.tables import frame
from headroles.tables.frame import Kind
from headroles.tables.study import Study
from headroles.training.hf_trainer import TrainOptions


def recipe(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    kinds: Sequence[Kind] | None,
    tune: TrainOptions,
    **rest: object,
) -> str:
    """Return the cache key of trials of a model that is pruned and trained on a corpus."""
    return provenance_of(
        model,
        configuration=provenance.configuration(model, tokenizer),
        trained_on=corpus.hash,
        **rest,
        kinds=",".join(kinds or ("all",)),
        tune=",".join(f"{name}={value}" for name, value in sorted(tune.items())),
    )


class Trials:
    """Trials of one study: each is run once, and kept by its cache key in the folder `.trials`."""

    def __init__(
        self,
        study: Study,
        tokenizer: PreTrainedTokenizerBase,
        held_out: Corpus,
        metric: Metric,
        recipe: str,
        *,
        max_tokens: int = 4096,
    ) -> None:
        self.folder, self.tokenizer = study.work / ".trials", tokenizer
        self.held_out, self.metric, self.max_tokens = held_out, metric, max_tokens
        self.recipe = f"{frame.sign(held_out=held_out.hash, metric=metric)}|{frame.holding(work=recipe)}"
        self.signature = ""

    def place(self, *what: object) -> Path:
        """Return the folder of a trial, for its training."""
        return self.folder / hashlib.sha256(repr((self.recipe, what)).encode()).hexdigest()[:12]

    def run(self, what: tuple[object, ...], compute: Callable[[], PreTrainedModel]) -> Array:
        """Return the statistics [example, statistic] of the model that `compute` returns, or the kept ones."""

        def measure() -> ExampleStats:
            handle, size = HeadModel(compute(), self.tokenizer), self.max_tokens
            return Sweep(handle, self.held_out, self.metric, max_tokens=size, heads_per_batch=1).run([])

        return self._kept(what, measure).intact

    def masked(self, what: tuple[object, ...], model: PreTrainedModel, sets: Sequence[Sequence[Head]]) -> list[Array]:
        """Return the statistics of every example, [example, statistic], with each of these sets of heads masked."""
        masked: list[HeadSet] = [frozenset(heads) for heads in sets]
        variants = list(dict.fromkeys(filter(None, masked)))

        def measure() -> ExampleStats:
            handle = HeadModel(model, self.tokenizer)
            return Sweep(handle, self.held_out, self.metric, max_tokens=self.max_tokens).run(variants)

        stats = self._kept((*what, provenance.revision(model), [sorted(heads) for heads in variants]), measure)
        return [stats.masked[heads] if heads else stats.intact for heads in masked]

    def _kept(self, what: tuple[object, ...], compute: Callable[[], ExampleStats]) -> ExampleStats:
        kept = Study(self.folder)
        name = self.place(*what).name
        key = f"{frame.holding(recipe=self.recipe)}|{frame.sign(what=what)}"
        stats = ExampleStats.of(kept.keep(name, key, lambda: compute().table()), self.metric)
        self.signature = stats.signature
        return stats.take(np.argsort(stats.numbers))


def values(metric: Metric, trials: Sequence[Array], *, n_resamples: int = 1000, seed: int = 0) -> Array:
    """Compute the metric of each trial on all examples and in the same resamples of them: [trial, 1 + resample]."""
    stats = ExampleStats(trials[0], {}, list(range(len(trials[0]))), 0, metric)
    return stats.resampled(trials, n_resamples, seed)
