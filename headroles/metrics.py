"""Metrics: what a model's work is worth on a corpus, from a few numbers per example that add."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import objectives, outputs
from headroles.batches import Batch
from headroles.text import Corpus

Array = npt.NDArray[np.float64]
Read = Callable[[Any, Batch], Array]  # a model's output and the batch it is of -> [example, statistic]


class Metric(ABC):
    """A number of a corpus, computed from sums over its examples, so that any resample of them has it too."""

    name: ClassVar[str]
    better: ClassVar[int] = 1  # 1 where more is better, -1 where less is
    generates: ClassVar[bool] = False  # whether it reads what the model writes rather than its forward pass

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def reader(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, corpus: Corpus, groups: objectives.Groups
    ) -> Read:
        """What reads the statistics of each example. Raises ValueError where model or corpus do not have them."""

    @abstractmethod
    def value(self, sums: Array) -> Array:
        """The metric from sums of statistics: [...] from [..., statistic]."""


class Mean(Metric):
    """The mean of an objective over steps: two statistics, its sum and the number of steps."""

    objective: ClassVar[objectives.Name]

    def reader(
        self, model: PreTrainedModel, _tokenizer: PreTrainedTokenizerBase, _corpus: Corpus, groups: objectives.Groups, /
    ) -> Read:
        """The objective of a forward pass."""
        explain = objectives.objective(self.objective, model).explain(model, groups)

        def read(output: Any, batch: Batch) -> Array:
            explained = explain(output, batch)
            values = torch.where(explained.counted, explained.values, 0.0).double().sum(-1)
            return torch.stack([values, explained.counted.sum(-1).double()], dim=-1).cpu().numpy()

        return read

    def value(self, sums: Array) -> Array:
        """The sum over the number of steps."""
        return np.asarray(sums[..., 0] / sums[..., 1])


class Loss(Mean):
    """Cross-entropy in nats per token, or per sentence of a classifier."""

    name = "loss"
    better = -1
    objective = "loss"


class Perplexity(Mean):
    """Two statistics as `Loss`; the exponential of the loss."""

    name = "perplexity"
    better = -1
    objective = "loss"

    def value(self, sums: Array) -> Array:
        """The exponential of the mean."""
        return np.exp(super().value(sums))


class Agreement(Mean):
    """Share of the intact model's choices that are still the first; of an encoder, the cosine with its states."""

    name = "agreement"
    objective = "agreement"


class Confusion(Metric):
    """Statistics of a classifier: for each class how often it was right to choose it, chosen, and the label."""

    def reader(
        self,
        model: PreTrainedModel,
        _tokenizer: PreTrainedTokenizerBase,
        _corpus: Corpus,
        _groups: objectives.Groups,
        /,
    ) -> Read:
        """The choices beside the labels."""
        if not outputs.has_classes(model):
            raise ValueError(f"metric {self.name!r} is for classifiers; {type(model).__name__} has no classes")
        classes = len(model.config.id2label or ())

        def read(output: Any, batch: Batch) -> Array:
            chosen, labels = output.logits.argmax(-1).cpu().numpy(), outputs.classes(model, batch).cpu().numpy()
            one = np.eye(classes)
            return np.concatenate([one[chosen] * one[labels], one[chosen], one[labels], np.ones((len(chosen), 1))], 1)

        return read

    def parts(self, sums: Array) -> tuple[Array, Array, Array, Array]:
        """Right, chosen and labelled per class, and the number of examples."""
        right, chosen, labelled = np.split(sums[..., :-1], 3, axis=-1)
        return right, chosen, labelled, sums[..., -1]


class Accuracy(Confusion):
    """Share of sentences whose label is chosen."""

    name = "accuracy"

    def value(self, sums: Array) -> Array:
        """Right choices over all."""
        right, _, _, examples = self.parts(sums)
        return np.asarray(right.sum(-1) / examples)


class F1(Confusion):
    """F1 of the last class, as GLUE has it for two classes."""

    name = "f1"

    def value(self, sums: Array) -> Array:
        """2 right / (chosen + labelled)."""
        right, chosen, labelled, _ = (part[..., -1] if part.ndim == sums.ndim else part for part in self.parts(sums))
        return np.asarray(2 * right / np.maximum(chosen + labelled, 1))


class Matthews(Confusion):
    """Matthews' correlation, of any number of classes (Gorodkin 2004); 0 where all choices or all labels are one."""

    name = "matthews"

    def value(self, sums: Array) -> Array:
        """Covariance of choices and labels over the root of their variances."""
        right, chosen, labelled, n = self.parts(sums)
        both = right.sum(-1) * n - (chosen * labelled).sum(-1)
        spread = np.sqrt((n**2 - (chosen**2).sum(-1)) * (n**2 - (labelled**2).sum(-1)))
        return np.asarray(np.where(spread == 0, 0.0, both / np.where(spread == 0, 1.0, spread)))


@dataclass(frozen=True)
class Written(Metric):
    """A metric of sacrebleu on what a translation model writes, greedily or with `beams`."""

    beams: int = 1
    generates: ClassVar[bool] = True

    def reader(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, corpus: Corpus, _groups: objectives.Groups, /
    ) -> Read:
        """sacrebleu's statistics of each written sentence against the corpus's target."""
        if not model.config.is_encoder_decoder:
            raise ValueError(f"metric {self.name!r} needs a translation model; {type(model).__name__} writes none")
        references = [None if sentence.target is None else sentence.target.text for sentence in corpus]
        if None in references:
            raise ValueError(f"metric {self.name!r} needs references, and corpus {corpus.name!r} lacks some")

        def read(written: Any, batch: Batch) -> Array:
            texts = tokenizer.batch_decode(written, skip_special_tokens=True)
            wanted = [references[number] for number in batch.numbers]
            found: Sequence[Any] = self._scorer._extract_corpus_statistics(texts, [wanted])
            return np.asarray(found, dtype=float)

        return read

    def value(self, sums: Array) -> Array:
        """sacrebleu's score of each sum of statistics."""
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


METRICS: dict[str, Metric] = {
    one.name: one for one in (Loss(), Perplexity(), Agreement(), Accuracy(), F1(), Matthews(), BLEU(), ChrF())
}


def metric(given: str | Metric) -> Metric:
    """The metric of a name. Raises ValueError, with the known ones, for another."""
    if isinstance(given, Metric):
        return given
    if given not in METRICS:
        raise ValueError(f"unknown metric {given!r}; known: {', '.join(METRICS)}")
    return METRICS[given]
