"""Metrics of a classifier: accuracy, F1, Matthews' correlation."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.metrics.base import Array, Mean, Metric, Read, probability
from headroles.data.corpus import Corpus
from headroles.models.batching import Batch
from headroles.scores import objectives, outputs
from headroles.scores.outputs import Output, check_labels


class Choosing(Metric):
    """Base class of metrics that compare the predicted classes with the labels."""

    def reader(
        self,
        model: PreTrainedModel,
        _tokenizer: PreTrainedTokenizerBase,
        corpus: Corpus,
        _groups: objectives.Groups,
        /,
    ) -> Read:
        """Return the function that compares each predicted class with its label."""
        if not outputs.has_classes(model):
            raise ValueError(f"metric {self.name!r} is for classifiers; {type(model).__name__} has no classes")
        check_labels(corpus)
        one_hot = np.eye(len(model.config.id2label or ()))

        def read(output: Output, batch: Batch) -> Array:
            chosen, labels = output.logits.argmax(-1).cpu().numpy(), outputs.classes(model, batch).cpu().numpy()
            return self.statistics(one_hot[chosen], one_hot[labels])

        return read

    @abstractmethod
    def statistics(self, chosen: Array, labels: Array, /) -> Array:
        """Compute the statistics [example, statistic] of one-hot choices and labels [example, class]."""


class Confusion(Choosing):
    """Per class the number of correct choices, choices, and labels; and the number of examples."""

    def statistics(self, chosen: Array, labels: Array, /) -> Array:
        """Compute 3 statistics per class, and 1: [example, 3 x class + 1]."""
        return np.concatenate([chosen * labels, chosen, labels, np.ones((len(chosen), 1))], axis=1)

    def parts(self, sums: Array) -> tuple[Array, Array, Array, Array]:
        """Split sums into correct, chosen and labelled per class, and the number of examples."""
        right, chosen, labelled = np.split(sums[..., :-1], 3, axis=-1)
        return right, chosen, labelled, sums[..., -1]


class Accuracy(Choosing, Mean):
    """Share of examples of which the label is chosen."""

    name = "accuracy"

    def stand_in(self, model: PreTrainedModel, _groups: objectives.Groups, /) -> objectives.Explain:
        """Return the probabilities of the labels."""
        return probability(model, lambda _, batch: outputs.classes(model, batch))

    def statistics(self, chosen: Array, labels: Array, /) -> Array:
        """Compute whether each choice is correct, and 1: [example, 2]."""
        return np.stack([(chosen * labels).sum(1), np.ones(len(chosen))], axis=1)


class F1(Confusion):
    """F1 of the last class (GLUE's, for two classes)."""

    name = "f1"

    def value(self, sums: Array) -> Array:
        """Compute 2 correct / (chosen + labelled)."""
        right, chosen, labelled, _ = (part[..., -1] if part.ndim == sums.ndim else part for part in self.parts(sums))
        return np.asarray(2 * right / np.maximum(chosen + labelled, 1))


class Matthews(Confusion):
    """Matthews' correlation of any number of classes (Gorodkin 2004); 0 if all choices or all labels are one class."""

    name = "matthews"

    def value(self, sums: Array) -> Array:
        """Compute the covariance of choices and labels over the root of their variances."""
        right, chosen, labelled, n = self.parts(sums)
        both = right.sum(-1) * n - (chosen * labelled).sum(-1)
        spread = np.sqrt((n**2 - (chosen**2).sum(-1)) * (n**2 - (labelled**2).sum(-1)))
        return np.asarray(np.where(spread == 0, 0.0, both / np.where(spread == 0, 1.0, spread)))
