"""Metrics of a classifier: accuracy, F1, Matthews' correlation."""

from __future__ import annotations

from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import objectives, outputs
from headroles.batches import Batch
from headroles.metrics.base import Array, Mean, Metric, Read
from headroles.text import Corpus


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
        _needs_classes(model, self.name)
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


class Accuracy(Mean):
    """Share of examples whose label is chosen."""

    name = "accuracy"

    def reader(
        self,
        model: PreTrainedModel,
        _tokenizer: PreTrainedTokenizerBase,
        _corpus: Corpus,
        _groups: objectives.Groups,
        /,
    ) -> Read:
        """Whether the choice is right, and 1."""
        _needs_classes(model, self.name)

        def read(output: Any, batch: Batch) -> Array:
            right = (output.logits.argmax(-1) == outputs.classes(model, batch)).double().cpu().numpy()
            return np.stack([right, np.ones_like(right)], axis=1)

        return read


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


def _needs_classes(model: PreTrainedModel, name: str) -> None:
    if not outputs.has_classes(model):
        raise ValueError(f"metric {name!r} is for classifiers; {type(model).__name__} has no classes")
