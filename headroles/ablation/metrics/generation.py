"""Metrics of generated translations: BLEU and chrF, by sacrebleu."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from headroles.ablation.metrics.base import Array, Metric, Observation
from headroles.data.corpus import Corpus
from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel


@dataclass(frozen=True)
class Written(Metric):
    """Metric of sacrebleu on the output of a translation model, greedy (`beams` of 1) or by beam search."""

    beams: int = 1
    generates: ClassVar[bool] = True

    def check(self, model: HeadModel, corpus: Corpus, _batches: Sequence[Batch], /) -> None:
        """Raise ValueError unless the model translates and the corpus has references."""
        if not model.config.is_encoder_decoder:
            raise ValueError(f"metric {self.name!r} needs a translation model; {model.name} writes none")
        if any(sentence.target is None for sentence in corpus):
            raise ValueError(f"metric {self.name!r} needs references, and corpus {corpus.name!r} lacks some")

    def update(self, observation: Observation, /) -> Array:
        """Compute sacrebleu's statistics of generated sentences and their references."""
        texts = observation.model.tokenizer.batch_decode(observation.output, skip_special_tokens=True)
        targets = [observation.corpus.sentences[number].target for number in observation.batch.numbers]
        references = [target.text for target in targets if target is not None]
        statistics = self._scorer._extract_corpus_statistics(texts, [references])
        return np.asarray(statistics, dtype=float)

    def compute(self, sums: Array, /) -> Array:
        """Compute sacrebleu's score of each sum of statistics."""
        flat = sums.reshape(-1, sums.shape[-1])
        scores = [self._scorer._compute_score_from_stats(row.round().astype(int).tolist()).score for row in flat]
        return np.asarray(scores, dtype=float).reshape(sums.shape[:-1])

    @property
    @abstractmethod
    def _scorer(self) -> Any: ...


@dataclass(frozen=True)
class BLEU(Written):
    """Corpus BLEU (sacrebleu, 13a)."""

    name: ClassVar[str] = "bleu"

    @cached_property
    def _scorer(self) -> Any:
        from sacrebleu.metrics.bleu import BLEU as Scorer

        return Scorer(effective_order=False)


@dataclass(frozen=True)
class ChrF(Written):
    """Corpus chrF2 (sacrebleu)."""

    name: ClassVar[str] = "chrf"

    @cached_property
    def _scorer(self) -> Any:
        from sacrebleu.metrics.chrf import CHRF

        return CHRF()
