"""Metrics of a classifier: accuracy, F1, Matthews' correlation."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.metrics.base import Array, Mean, Metric, Read
from headroles.data.corpus import Corpus
from headroles.models.batching import Batch
from headroles.scores import objectives, outputs
from headroles.scores.labels import check_labels


class Choosing(Metric):
    """Statistics of what a classifier chooses beside the labels."""

    def reader(
        self,
        model: PreTrainedModel,
        _tokenizer: PreTrainedTokenizerBase,
        corpus: Corpus,
        _groups: objectives.Groups,
        /,
    ) -> Read:
        """The statistics of each choice and its label."""
        if not outputs.has_classes(model):
            raise ValueError(f"metric {self.name!r} is for classifiers; {type(model).__name__} has no classes")
        check_labels(corpus)
        one = np.eye(len(model.config.id2label or ()))

        def read(output: Any, batch: Batch) -> Array:
            chosen, labels = output.logits.argmax(-1).cpu().numpy(), outputs.classes(model, batch).cpu().numpy()
            return self.told(one[chosen], one[labels])

        return read

    @abstractmethod
    def told(self, chosen: Array, labels: Array, /) -> Array:
        """The statistics [example, statistic] of choices and labels, ones at the classes [example, class]."""


class Confusion(Choosing):
    """For each class how often it was right to choose it, chosen, and the label; and the number of examples."""

    def told(self, chosen: Array, labels: Array, /) -> Array:
        """3 statistics per class, and 1."""
        return np.concatenate([chosen * labels, chosen, labels, np.ones((len(chosen), 1))], axis=1)

    def parts(self, sums: Array) -> tuple[Array, Array, Array, Array]:
        """Right, chosen and labelled per class, and the number of examples."""
        right, chosen, labelled = np.split(sums[..., :-1], 3, axis=-1)
        return right, chosen, labelled, sums[..., -1]


class Accuracy(Choosing, Mean):
    """Share of examples whose label is chosen."""

    name = "accuracy"

    def told(self, chosen: Array, labels: Array, /) -> Array:
        """Whether the choice is right, and 1."""
        return np.stack([(chosen * labels).sum(1), np.ones(len(chosen))], axis=1)


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
