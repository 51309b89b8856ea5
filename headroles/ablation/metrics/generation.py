"""Metrics of generated translations: BLEU and chrF, by sacrebleu."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.metrics.base import Array, Metric, Read
from headroles.data.corpus import Corpus
from headroles.models.batching import Batch
from headroles.scores import objectives


@dataclass(frozen=True)
class Written(Metric):
    """Metric of sacrebleu on the output of a translation model, greedy (`beams` of 1) or by beam search."""

    beams: int = 1
    generates: ClassVar[bool] = True

    def reader(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, corpus: Corpus, _groups: objectives.Groups, /
    ) -> Read:
        """Return the function that computes sacrebleu's statistics of generated sentences and their references."""
        if not model.config.is_encoder_decoder:
            raise ValueError(f"metric {self.name!r} needs a translation model; {type(model).__name__} writes none")
        references = [None if sentence.target is None else sentence.target.text for sentence in corpus]
        if None in references:
            raise ValueError(f"metric {self.name!r} needs references, and corpus {corpus.name!r} lacks some")

        def read(written: Tensor, batch: Batch) -> Array:
            texts = tokenizer.batch_decode(written, skip_special_tokens=True)
            wanted = [references[number] for number in batch.numbers]
            statistics = self._scorer._extract_corpus_statistics(texts, [wanted])
            return np.asarray(statistics, dtype=float)

        return read

    def value(self, sums: Array) -> Array:
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
