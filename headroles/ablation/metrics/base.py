"""Metric base class: a corpus-level value computed from additive per-example statistics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from headroles.analysis.intervals import Array
from headroles.data.corpus import Corpus
from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel
from headroles.scores import objectives, outputs
from headroles.scores.outputs import check_labels
from headroles.tables.declared import METRICS, declaration


@dataclass(frozen=True)
class Reading:
    """The output of a model for one batch, from which a metric computes its statistics."""

    model: HeadModel
    corpus: Corpus
    objective: objectives.Objective | None  # the metric's, fitted to the corpus, if it has one
    batch: Batch
    output: Any  # of a forward pass; the generated tokens, [example, token], if the metric generates

    @property
    def targets(self) -> objectives.Explained:
        """The targets of the metric's objective."""
        assert self.objective is not None
        return self.objective.targets(self.output, self.batch)


class Metric(ABC):
    """Corpus-level value computed from sums over examples, so that bootstrap resampling is a matrix product.

    Attributes:
        name: Name in columns and on the command line.
        better: 1 if larger values are better, -1 if smaller ones are.
        title: Name in figures and on the page, by default `name`.
        unit: Unit, such as nats.
        generates: Whether the metric is of generated text rather than of a forward pass.
        is_share: Whether the metric is the share of examples that are right.
        starts_at_best: Whether any change of the intact model makes it worse: effects have no p, as none can be 0.
        sentences: Sentences of an example, which follow each other in the corpus: 2 for pairs.
        objective: The objective of the targets of a reading, if any.
    """

    name: ClassVar[str]
    better: ClassVar[int] = 1
    title: ClassVar[str] = ""
    unit: ClassVar[str] = ""
    generates: ClassVar[bool] = False
    is_share: ClassVar[bool] = False
    starts_at_best: ClassVar[bool] = False
    sentences: ClassVar[int] = 1
    objective: objectives.Name | objectives.Objective | None = None

    def __init_subclass__(cls) -> None:
        if known := METRICS.get(vars(cls).get("name", "")):
            cls.better = known.better  # of the package's metrics, the record declares it

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def declaration(self) -> dict[str, object]:
        """Return the provenance fields by which figures and tables interpret a metric of the user's own."""
        return {} if self.name in METRICS else declaration("metric", self.name, self)

    def check(self, _model: HeadModel, _corpus: Corpus, _batches: Sequence[Batch], /) -> None:  # noqa: B027
        """Raise ValueError if the model or the corpus, which is in batches, lacks what the metric needs."""

    @abstractmethod
    def update(self, reading: Reading, /) -> Array:
        """Compute the statistics of each example of a batch: [example, statistic]; NaN where there is no number."""

    @abstractmethod
    def compute(self, sums: Array, /) -> Array:
        """Compute the metric from sums of statistics: [...] from [..., statistic]."""

    def merged(self, statistics: Array) -> Array:
        """Sum the statistics of the sentences of each example, [example, sentence, statistic]."""
        return np.asarray(statistics.sum(axis=1))

    def has_gradient(self, _model: HeadModel, /) -> bool:
        """Return whether a gradient predicts the effects of masks on the metric of a model."""
        return False

    def targets(self, _reading: Reading, /) -> objectives.Explained:
        """Compute the differentiable targets: their gradient predicts the changes of the first statistic."""
        raise NotImplementedError(f"no gradient predicts {self.name}")

    def names(self, count: int) -> list[str]:
        """Return the names of the statistics in tables."""
        return [f"statistic {number}" for number in range(count)]


class Mean(Metric):
    """Mean of an objective over steps: two statistics, its sum and the number of steps."""

    def check(self, model: HeadModel, corpus: Corpus, _batches: Sequence[Batch], /) -> None:
        """Raise ValueError if the objective needs labels that the corpus lacks."""
        if objectives.reads_labels(objectives.objective(self.objective, model), model):
            check_labels(corpus, of_words=outputs.labels_words(model))

    def update(self, reading: Reading, /) -> Array:
        """Compute the sum of the objective over the steps of each example, and their number."""
        targets = reading.targets
        values = torch.where(targets.counted, targets.values, 0.0).double().sum(-1)
        return torch.stack([values, targets.counted.sum(-1).double()], dim=-1).cpu().numpy()

    def compute(self, sums: Array, /) -> Array:
        """Divide the sum by the number of steps."""
        return np.asarray(sums[..., 0] / sums[..., 1])

    def has_gradient(self, _model: HeadModel, /) -> bool:
        """Return True: the gradient of the objective itself."""
        return True

    def targets(self, reading: Reading, /) -> objectives.Explained:
        """Return the targets of the objective itself."""
        return reading.targets

    def names(self, count: int) -> list[str]:  # noqa: ARG002
        """Return the names of the sum and of the number of steps."""
        return ["sum", "steps"]


class Loss(Mean):
    """Cross-entropy in nats per token, or per sentence or word of a classifier; squared error of a score."""

    name = "loss"
    objective = "loss"


class Perplexity(Mean):
    """Exponential of the loss."""

    name = "perplexity"
    objective = "loss"

    def check(self, model: HeadModel, corpus: Corpus, batches: Sequence[Batch], /) -> None:
        """Raise ValueError if the loss is not a cross-entropy."""
        outputs.check_chooses(model, self.name)
        super().check(model, corpus, batches)

    def compute(self, sums: Array, /) -> Array:
        """Compute the exponential of the mean."""
        return np.exp(super().compute(sums))


class Agreement(Mean):
    """Share of the intact model's choices that stay first; for an encoder, the cosine with its intact states."""

    name = "agreement"
    objective = "agreement"
    starts_at_best = True

    def update(self, reading: Reading, /) -> Array:
        """Count the choices that stay first; NaN for an example with NaN logits."""
        return without_nan(super().update(reading), reading)

    def has_gradient(self, model: HeadModel, /) -> bool:
        """Return whether the model predicts tokens or classes: a cosine with itself has no gradient."""
        return outputs.has_vocabulary(model) or outputs.has_classes(model)

    def targets(self, reading: Reading, /) -> objectives.Explained:
        """Compute the probabilities of the model's own choices."""
        choices = outputs.choices(reading.output, reading.batch, reading.model)
        return probabilities(reading, choices)


@dataclass(frozen=True)
class Of(Mean):
    """Mean of any objective."""

    objective: objectives.Objective

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the objective."""
        return self.objective.name

    def declaration(self) -> dict[str, object]:
        """Return nothing: an objective has no direction."""
        return {}


def probabilities(reading: Reading, chosen: Tensor) -> objectives.Explained:
    """Compute the probabilities of chosen tokens [batch, token] or classes [batch]."""
    values = outputs.picked(outputs.logits(reading.model, reading.output).float().softmax(-1), chosen)
    return objectives.of_steps(reading.model, reading.batch, values)


def without_nan(statistics: Array, reading: Reading) -> Array:
    """Set the statistics of examples with a NaN logit to NaN: their largest logit is not a choice."""
    model = reading.model
    if not (outputs.has_vocabulary(model) or outputs.has_classes(model)):
        return statistics
    logits = outputs.logits(model, reading.output)
    is_nan = logits.detach().amax(-1).isnan()  # [example] or [example, token]
    if outputs.by_token(model):
        is_nan = (is_nan & outputs.steps(model, reading.batch)).any(-1)
    return np.where(is_nan.cpu().numpy()[:, None], np.nan, statistics)
