"""Metrics of a classifier: accuracy, F1, Matthews' correlation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from headroles.ablation.metrics.base import Mean, Metric, Observation, probabilities, without_nan
from headroles.analysis.intervals import Array
from headroles.data.corpus import Corpus
from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel
from headroles.scores import objectives, outputs
from headroles.scores.outputs import check_labels


class Choosing(Metric):
    """Base class of metrics that compare the predicted classes with the labels."""

    def check(self, model: HeadModel, corpus: Corpus, _batches: Sequence[Batch], /) -> None:
        """Raise ValueError if the model has no classes or the corpus no labels."""
        if not outputs.has_classes(model):
            raise ValueError(f"metric {self.name!r} is for classifiers; {model.name} has no classes")
        outputs.check_chooses(model, self.name)
        check_labels(corpus)

    def update(self, observation: Observation, /) -> Array:
        """Compare each predicted class with its label; NaN for an example with logits that are not a number."""
        one_hot = np.eye(len(observation.model.config.id2label or ()))
        chosen = observation.output.logits.argmax(-1).cpu().numpy()
        labels = outputs.classes(observation.model, observation.batch).cpu().numpy()
        return without_nan(self.statistics(one_hot[chosen], one_hot[labels]), observation)

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
    is_share = True

    def targets(self, observation: Observation, /) -> objectives.Explained:
        """Compute the probabilities of the labels."""
        return probabilities(observation, outputs.classes(observation.model, observation.batch))

    def statistics(self, chosen: Array, labels: Array, /) -> Array:
        """Compute whether each choice is correct, and 1: [example, 2]."""
        return np.stack([(chosen * labels).sum(1), np.ones(len(chosen))], axis=1)


class F1(Confusion):
    """F1 of the last class (GLUE's, for two classes)."""

    name = "f1"

    def compute(self, sums: Array, /) -> Array:
        """Compute 2 correct / (chosen + labelled)."""
        right, chosen, labelled, _ = (part[..., -1] if part.ndim == sums.ndim else part for part in self.parts(sums))
        return np.asarray(2 * right / np.maximum(chosen + labelled, 1))


class Matthews(Confusion):
    """Matthews' correlation of any number of classes (Gorodkin 2004); 0 if all choices or all labels are one class."""

    name = "matthews"

    def compute(self, sums: Array, /) -> Array:
        """Compute the covariance of choices and labels over the root of their variances."""
        right, chosen, labelled, n = self.parts(sums)
        both = right.sum(-1) * n - (chosen * labelled).sum(-1)
        spread = np.sqrt((n**2 - (chosen**2).sum(-1)) * (n**2 - (labelled**2).sum(-1)))
        return np.asarray(np.where(spread == 0, 0.0, both / np.where(spread == 0, 1.0, spread)))
