"""Importance: how much the loss would change if a head were masked, to first order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor

from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel
from headroles.scores.base import Sums
from headroles.scores.gradients.base import GradientScore, HeadGradients, Unit, head_gradients, over_groups
from headroles.scores.objectives import Name, Targets
from headroles.tables.arguments import one_of
from headroles.tables.columns import Column


@dataclass(frozen=True)
class Importance(GradientScore):
    """Mean of |d L / d mask|, L the loss (Michel et al. 2019, section 4.1).

    The column is `importance`, with the unit and the norm as `importance[group]`, `importance[layer]`.

    Args:
        per: the loss with the absolute gradient: the mean loss of each "example", the loss of each
            "token", or as in the released code the mean loss of each "batch", which has no interval.
        norm: "layer" divides by the l2 norm over the heads of the layer; None does not normalise.
        unit: what has one mask, "head" or "group": the heads that share a key-value head, which have the same value.
        objective: name or instance of the loss; default: "loss".
    """

    per: Literal["example", "token", "batch"] = "example"
    norm: Literal["layer"] | None = None
    unit: Unit = field(default="head", kw_only=True, repr=False)  # `__str__` has another than the default
    ordinary: ClassVar[Name] = "loss"
    by_batch: ClassVar[Any] = property(lambda self: self.per == "batch")

    def __post_init__(self) -> None:
        one_of("unit", self.unit, get_args(Unit))
        one_of("per", self.per, ("example", "token", "batch"))
        one_of("norm", self.norm, ("layer", None))

    def __str__(self) -> str:
        return repr(self) if self.unit == "head" else f"{repr(self)[:-1]}, unit='{self.unit}')"

    @property
    def label(self) -> str:
        """Column name, with the unit and the norm."""
        words = [word for word in (self.unit, self.norm) if word not in ("head", None)]
        return str(Column("importance", " ".join(words) if words else None))

    def has_interval(self, column: str) -> bool:
        """Return False for `per="batch"`: the sentences of a batch share one value, which cannot be resampled."""
        return self.per != "batch" and super().has_interval(column)

    def head_gradients(self, model: HeadModel, target: Targets, batch: Batch) -> HeadGradients:
        """Compute the gradients of each example's mean loss, or of each token's loss."""
        if self.per == "token":
            gradients = head_gradients(model, target, batch, by_token=self.chosen(model).by_token)
        else:
            gradients = head_gradients(model, target, batch, steps="mean")
        if self.unit == "head":
            return gradients
        return replace(gradients, gradients=over_groups(gradients.gradients, model))

    def update(self, head_gradients: HeadGradients) -> dict[str, Tensor]:
        """Sum the absolute gradients: [batch, heads]."""
        gradients = head_gradients.gradients.double()
        if self.per == "batch":
            gradients = gradients.mean(0, keepdim=True).expand_as(gradients)
        return {"size": gradients.abs().sum(1)}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `importance`."""
        mean = sums["size"] / sums["steps"]
        if self.norm is None:
            return {self.label: mean}
        length = mean.norm(dim=-1, keepdim=True)
        return {self.label: mean / length.masked_fill(length == 0, 1.0)}
