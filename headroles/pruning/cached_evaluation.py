"""Cached evaluation: example statistics of pruned models on held-out examples, kept in a study."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.example_stats import ExampleStats, HeadSet
from headroles.ablation.metrics import Metric
from headroles.ablation.sweep import Sweep
from headroles.analysis.intervals import Array
from headroles.data.corpus import Corpus
from headroles.models.head_model import HeadModel
from headroles.models.identity import fingerprint
from headroles.models.masking import Head
from headroles.tables import frame
from headroles.tables.frame import Kind
from headroles.tables.study import Study
from headroles.training.hf_trainer import TrainOptions
from headroles.training.trainer import fixed_parameters


class Trials:
    """Trials of one study: models that are pruned and trained on `corpus`, each run once and kept in `.trials`.

    `key` has everything that selection and training depend on, `signature` the provenance of the last evaluation.
    """

    def __init__(
        self,
        handle: HeadModel,
        corpus: Corpus,
        held_out: Corpus,
        metric: Metric,
        study: Study,
        *,
        kinds: Sequence[Kind] | None,
        tune: TrainOptions,
        **rest: Any,
    ) -> None:
        handle.check_named()
        self.handle, self.corpus, self.kinds = handle, corpus, kinds
        self.held_out, self.metric = held_out, metric
        self.study, self.folder, self.signature = study, study.work / ".trials", ""
        self.key = handle.provenance(
            trained_on=corpus.hash,
            **rest,
            **fixed_parameters(handle.model),
            kinds=",".join(kinds or ("all",)),
            tune=",".join(f"{name}={value}" for name, value in sorted(tune.items())),
        )
        measured = frame.sign(held_out=held_out.hash, metric=metric, code=fingerprint(metric))
        self._recipe = f"{measured}|{frame.holding(work=self.key)}"

    def claim(self, name: str) -> dict[str, str]:
        """Check that the study may have the table `name`, and return outdated tables to remove (`Study.claim`)."""
        return self.study.claim(name, f"{self.key}|{frame.sign(text=self.held_out.hash)}")

    def copy(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, Corpus]:
        """Return a copy of the model, its tokenizer and the corpus, for training."""
        return deepcopy(self.handle.model), self.handle.tokenizer, self.corpus

    def place(self, *what: object) -> Path:
        """Return the folder of a trial, for its training."""
        return self.folder / hashlib.sha256(repr((self._recipe, what)).encode()).hexdigest()[:12]

    def run(self, what: tuple[object, ...], compute: Callable[[], PreTrainedModel]) -> Array:
        """Return the statistics [example, statistic] of the model that `compute` returns, or the kept ones."""
        tokenizer = self.handle.tokenizer
        return self._kept(what, lambda: self._measured(HeadModel(compute(), tokenizer), self.held_out)).intact

    def check(self, handle: HeadModel) -> None:
        """Measure two examples, so that an unsuitable metric fails now rather than after training."""
        self._measured(handle, self.held_out[:2])

    def _measured(self, handle: HeadModel, held_out: Corpus) -> ExampleStats:
        return Sweep(handle, held_out, self.metric, variants_at_once=1).run([])

    def masked(self, what: tuple[object, ...], sets: Sequence[Sequence[Head]]) -> list[Array]:
        """Return the statistics of every example, [example, statistic], with each of these sets of heads masked."""
        masked: list[HeadSet] = [frozenset(heads) for heads in sets]
        variants = list(dict.fromkeys(filter(None, masked)))
        sweep = partial(Sweep, self.handle, self.held_out, self.metric)
        stats = self._kept((*what, [sorted(heads) for heads in variants]), lambda: sweep().run(variants))
        return [stats.masked[heads] if heads else stats.intact for heads in masked]

    def keep(self, what: tuple[object, ...], compute: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """Return the table of a trial, computed once and kept."""
        key = f"{frame.holding(recipe=self._recipe)}|{frame.sign(what=what)}"
        return Study(self.folder).keep(self.place(*what).name, key, compute)

    def _kept(self, what: tuple[object, ...], compute: Callable[[], ExampleStats]) -> ExampleStats:
        stats = ExampleStats.of(self.keep(what, lambda: compute().table()), self.metric)
        self.signature = stats.signature
        return stats.take(np.argsort(stats.numbers))


def values(metric: Metric, trials: Sequence[Array], *, n_resamples: int = 1000) -> Array:
    """Compute the metric of each trial on all examples and on common resamples of them: [trial, 1 + resample]."""
    stats = ExampleStats(trials[0], {}, list(range(len(trials[0]))), 0, metric)
    return stats.resampled(trials, n_resamples, 0)
