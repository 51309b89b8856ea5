"""Metric base class: a corpus-level value computed from additive per-example statistics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.data.corpus import Corpus
from headroles.models.batching import Batch
from headroles.scores import objectives, outputs
from headroles.scores.outputs import Output, check_labels
from headroles.tables.declared import METRICS, declaration

Array = npt.NDArray[np.float64]
Read = Callable[[Any, Batch], Array]  # a model's output or generated tokens, its batch -> [example, statistic]


class Metric(ABC):
    """Corpus-level value of sums over examples, which makes bootstrap resampling a matrix product.

    Attributes:
        name: Name in columns and on the command line.
        better: 1 if larger values are better, -1 if smaller ones are.
        title: Name in figures and on the page, by default `name`.
        unit: Unit, such as nats.
        generates: Whether the metric reads generated text rather than a forward pass.
        sentences: Sentences of an example, which follow each other in the corpus: 2 for pairs.
    """

    name: ClassVar[str]
    better: ClassVar[int] = 1
    title: ClassVar[str] = ""
    unit: ClassVar[str] = ""
    generates: ClassVar[bool] = False
    sentences: ClassVar[int] = 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def declaration(self) -> dict[str, object]:
        """Return what provenance carries for figures and tables, of a metric that they do not know."""
        return {} if self.name in METRICS else declaration("metric", self.name, self)

    @abstractmethod
    def reader(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, corpus: Corpus, groups: objectives.Groups
    ) -> Read:
        """Return the function that reads the statistics of each example.

        Args:
            model: The model that is measured.
            tokenizer: Its tokenizer.
            corpus: The corpus on which it is measured.
            groups: Return all batches of the corpus.

        Returns:
            A function of a model's output and its batch: [example, statistic].

        Raises:
            ValueError: If model or corpus lack what the metric needs.
        """

    def merged(self, statistics: Array) -> Array:
        """Sum the statistics of sentences, [example, sentence, statistic], to those of examples."""
        return np.asarray(statistics.sum(axis=1))

    def has_stand_in(self, _model: PreTrainedModel, /) -> bool:
        """Return whether a gradient predicts the effects of masks on the metric of a model."""
        return False

    def stand_in(self, _model: PreTrainedModel, _groups: objectives.Groups, /) -> objectives.Explain:
        """Return the differentiable target that stands in for the first statistic: its gradient predicts effects."""
        raise NotImplementedError(f"no gradient predicts {self.name}")

    @abstractmethod
    def value(self, sums: Array) -> Array:
        """Compute the metric from sums of statistics: [...] from [..., statistic]."""

    def names(self, count: int) -> list[str]:
        """Return the names of the statistics in tables."""
        return [f"statistic {number}" for number in range(count)]


class Mean(Metric):
    """Mean of an objective over steps: two statistics, its sum and the number of steps."""

    objective: objectives.Name | objectives.Objective

    def reader(
        self, model: PreTrainedModel, _tokenizer: PreTrainedTokenizerBase, corpus: Corpus, groups: objectives.Groups, /
    ) -> Read:
        """Return the function that reads the objective of a forward pass."""
        chosen = objectives.objective(self.objective, model)
        explain = chosen.explain(model, groups)
        if objectives.reads_labels(chosen, model):
            check_labels(corpus)

        def read(output: Output, batch: Batch) -> Array:
            target = explain(output, batch)
            values = torch.where(target.counted, target.values, 0.0).double().sum(-1)
            return torch.stack([values, target.counted.sum(-1).double()], dim=-1).cpu().numpy()

        return read

    def has_stand_in(self, _model: PreTrainedModel, /) -> bool:
        """Return True: the objective itself."""
        return True

    def stand_in(self, model: PreTrainedModel, groups: objectives.Groups, /) -> objectives.Explain:
        """Return the objective itself."""
        return objectives.objective(self.objective, model).explain(model, groups)

    def value(self, sums: Array) -> Array:
        """Divide the sum by the number of steps."""
        return np.asarray(sums[..., 0] / sums[..., 1])

    def names(self, count: int) -> list[str]:  # noqa: ARG002
        """Return the names of the sum and of the number of steps."""
        return ["sum", "steps"]


class Loss(Mean):
    """Cross-entropy in nats per token, or per sentence of a classifier."""

    name = "loss"
    better = -1
    objective = "loss"


class Perplexity(Mean):
    """Exponential of the loss."""

    name = "perplexity"
    better = -1
    objective = "loss"

    def value(self, sums: Array) -> Array:
        """Compute the exponential of the mean."""
        return np.exp(super().value(sums))


class Agreement(Mean):
    """Share of the intact model's choices that stay the first; of an encoder, the cosine with its intact states."""

    name = "agreement"
    objective = "agreement"

    def has_stand_in(self, model: PreTrainedModel, /) -> bool:
        """Return whether the model predicts tokens or classes: a cosine with itself has no gradient."""
        return outputs.has_vocabulary(model) or outputs.has_classes(model)

    def stand_in(self, model: PreTrainedModel, _groups: objectives.Groups, /) -> objectives.Explain:
        """Return the probabilities of the model's own choices."""
        return probability(model, lambda output, batch: outputs.choices(output, batch, model))


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


def probability(model: PreTrainedModel, choose: Callable[[Output, Batch], Tensor]) -> objectives.Explain:
    """Return the function that computes the probabilities of the tokens or classes that `choose` returns."""

    def explain(output: Output, batch: Batch) -> objectives.Explained:
        values = outputs.picked(output.logits.float().softmax(-1), choose(output, batch))
        if outputs.has_vocabulary(model):
            return objectives.Explained(values, outputs.steps(model, batch))
        return objectives.Explained(values[:, None], torch.ones_like(values[:, None], dtype=torch.bool))

    return explain
