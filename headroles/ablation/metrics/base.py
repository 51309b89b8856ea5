"""What a metric is: a number of a corpus from sums over its examples; the mean of any objective is one."""

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
from headroles.scores.labels import check_labels

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

    def names(self, count: int) -> list[str]:
        """What the statistics are called in tables."""
        return [f"statistic {number}" for number in range(count)]


class Mean(Metric):
    """The mean of an objective over steps: two statistics, its sum and the number of steps."""

    objective: objectives.Name | objectives.Objective

    def reader(
        self, model: PreTrainedModel, _tokenizer: PreTrainedTokenizerBase, corpus: Corpus, groups: objectives.Groups, /
    ) -> Read:
        """The objective of a forward pass."""
        chosen = objectives.objective(self.objective, model)
        explain = chosen.explain(model, groups)
        if objectives.reads_labels(chosen, model):
            check_labels(corpus)

        def read(output: Any, batch: Batch) -> Array:
            explained = explain(output, batch)
            values = torch.where(explained.counted, explained.values, 0.0).double().sum(-1)
            return torch.stack([values, explained.counted.sum(-1).double()], dim=-1).cpu().numpy()

        return read

    def value(self, sums: Array) -> Array:
        """The sum over the number of steps."""
        return np.asarray(sums[..., 0] / sums[..., 1])

    def names(self, count: int) -> list[str]:  # noqa: ARG002
        """The sum and the number of steps."""
        return ["sum", "steps"]


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


@dataclass(frozen=True)
class Of(Mean):
    """The mean of any objective."""

    objective: objectives.Objective

    @property
    def name(self) -> str:  # type: ignore[override]
        """The objective's."""
        return self.objective.name
