"""Metric base class: a corpus-level value computed from additive per-example statistics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.data.corpus import Corpus
from headroles.models.batching import Batch
from headroles.scores import objectives
from headroles.scores.outputs import check_labels

Array = npt.NDArray[np.float64]
Read = Callable[[Any, Batch], Array]  # a model's output, its batch -> [example, statistic]


class Metric(ABC):
    """Corpus-level value of sums over examples, which makes bootstrap resampling a matrix product.

    Attributes:
        name: Name in columns and on the command line.
        better: 1 if larger values are better, -1 if smaller ones are.
        generates: Whether the metric reads generated text rather than a forward pass.
    """

    name: ClassVar[str]
    better: ClassVar[int] = 1
    generates: ClassVar[bool] = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

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

        def read(output: Any, batch: Batch) -> Array:
            target = explain(output, batch)
            values = torch.where(target.counted, target.values, 0.0).double().sum(-1)
            return torch.stack([values, target.counted.sum(-1).double()], dim=-1).cpu().numpy()

        return read

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


@dataclass(frozen=True)
class Of(Mean):
    """Mean of any objective."""

    objective: objectives.Objective

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the objective."""
        return self.objective.name
