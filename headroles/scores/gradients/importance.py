"""Importance: how much the loss would change if a head were closed, to first order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headroles.models.batching import Batch
from headroles.scores.base import Sums
from headroles.scores.gradients.base import GradientScore, HeadGradients, slopes
from headroles.scores.objectives import Explain, Explained, Name


@dataclass(frozen=True)
class Importance(GradientScore):
    """Mean of |d L / d gate|, L the loss (Michel et al. 2019, section 4.1).

    `per`: the absolute value of each "example"'s gradient (its loss is the mean over its tokens), of each "token"'s, or
    of each "batch"'s mean, as in the released code; that one depends on the batches and has no interval. `norm="layer"`
    divides by the l2 norm over the heads of the layer.
    """

    per: Literal["example", "token", "batch"] = "example"
    norm: Literal["layer"] | None = None
    ordinary: ClassVar[Name] = "loss"

    def __post_init__(self) -> None:
        if self.per not in ("example", "token", "batch") or self.norm not in ("layer", None):
            raise ValueError(
                f"importance is per 'example', 'token' or 'batch', its norm 'layer' or None; "
                f"got per={self.per!r}, norm={self.norm!r}"
            )

    def sampled(self, column: str) -> bool:
        """The sentences of a batch have one value together: to resample them says nothing."""
        return self.per != "batch" and super().sampled(column)

    def slopes(self, model: PreTrainedModel, explain: Explain, batch: Batch) -> HeadGradients:
        """The gradient of each example's mean loss, or of each token's loss."""
        if self.per == "token":
            return slopes(model, explain, batch, by_token=self.chosen(model).by_token)
        return slopes(model, _averaged(explain), batch, steps="sum")

    def update(self, slopes: HeadGradients) -> dict[str, Tensor]:
        """The sums of absolute gradients."""
        found = slopes.gradients.double()
        if self.per == "batch":
            found = found.mean(0, keepdim=True).expand_as(found)
        return {"size": found.abs().sum(1)}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """`importance`."""
        mean = sums["size"] / sums["steps"]
        if self.norm is None:
            return {"importance": mean}
        length = mean.norm(dim=-1, keepdim=True)
        return {"importance": torch.where(length == 0, 0.0, mean / torch.where(length == 0, 1.0, length))}


def _averaged(explain: Explain) -> Explain:
    """The same values, each divided by how many steps of its example count."""

    def averaged(output: Any, batch: Batch) -> Explained:
        found = explain(output, batch)
        return found._replace(values=found.values / found.counted.sum(-1, keepdim=True).clamp(min=1))

    return averaged
