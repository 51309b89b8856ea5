"""Relevance: how much of the target flows through a head, by layer-wise relevance propagation."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd
import torch
from torch import Tensor

from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel
from headroles.scores.base import Sums
from headroles.scores.gradients.base import GradientScore, HeadGradients, Steps, head_gradients
from headroles.scores.lrp import Rules
from headroles.scores.lrp.conservation_report import report, totals, worst
from headroles.scores.lrp.context import start, table
from headroles.scores.objectives import Targets
from headroles.tables.arguments import number, one_of

CONSERVING = ("cp", "cp-gate", "voita")
LEAK = 0.02  # residue above which a conserving rule set lacks a rule for some operation of the model
LEAK_IN_HALF = 0.1  # in float16 and bfloat16: tiny models reach 0.07 by rounding
NEGATIVE, NEGATIVE_IN_HALF = 1e-5, 1e-2  # relevance below 0 that is taken for rounding, by the rules of Voita

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Relevance(GradientScore):
    """Share of the relevance that flows through the heads of a layer (Voita et al. 2019, section 4).

    Columns are `relevance[rules]`, signed, and `relevance[rules].size`, of |R|; with `by="logit"`,
    `relevance[rules logit]`.

    The rules "cp", "cp-gate" and "voita" conserve relevance: inputs and biases receive the target. If
    more than `max_residue` of it is lost or invented in the first batch, in the model or in a layer, the rules do not
    fit an operation of the model, and ValueError is raised; also if a head has relevance below 0 by the rules of Voita,
    which do not conserve relevance of both signs. "attn" and "gradient" are not checked.

    Args:
        rules: LRP rule set (`headroles.scores.lrp.context.table`); "gradient" for gradient x input.
        by: "layer" for shares of the sum of |R| over the heads of the layer, step by step; "logit" for shares of the
            target, which are comparable between layers.
        steps: "all" generation steps, or their "sum" in one backward pass.
        chunk: number of steps in one backward pass, which bounds memory.
        objective: name or instance of the target; default: the largest logit of each step, for a classifier its class,
            for an encoder a similarity.
        max_residue: largest share of the target, by size, that a conserving rule set may lose or invent; default 0.02,
            and 0.1 for models in half precision. If given, relevance below 0 is accepted, too.
    """

    rules: Rules = "cp"
    by: Literal["layer", "logit"] = "layer"
    steps: Steps = "all"
    chunk: int = 4
    max_residue: float | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        table(self.rules)
        if self.max_residue is not None:
            number("max_residue", self.max_residue)
        one_of("steps", self.steps, ("all", "sum"))
        one_of("by", self.by, ("layer", "logit"))

    @property
    def label(self) -> str:
        """Column name, with the rules."""
        return f"relevance[{self.rules}{' logit' * (self.by == 'logit')}]"

    def fit(self, model: HeadModel, batches: Iterable[Batch]) -> Targets:
        """Return an object that computes the targets of a corpus; ValueError for sharded weights."""
        model.check_unsharded(self.label)
        return super().fit(model, batches)

    def notes(self, model: HeadModel, target: Targets, batch: Batch, /) -> dict[str, object]:
        """Return the objective and the totals of the conservation report of the first batch; ValueError for a leak."""
        balance = report(model, target, batch, self.rules)
        fractions = totals(balance)
        log.info("%s of the target: %s", self.label, ", ".join(f"{k} {100 * v:z.1f} %" for k, v in fractions.items()))
        if self.rules in CONSERVING:
            self._check_conserved(model, balance)
        return super().notes(model, target, batch) | {name: f"{share:.4f}" for name, share in fractions.items()}

    def _check_conserved(self, model: HeadModel, balance: pd.DataFrame) -> None:
        most = self.max_residue
        if most is None:
            most = LEAK_IN_HALF if _is_half(model) else LEAK
        place, residue = worst(balance)  # what layers lose and others invent may cancel out in the model
        size = balance.attrs["size"]  # of targets of both signs, which may cancel out, too
        scale = balance.attrs["explained"] / size if size else 0.0
        in_model, in_place = totals(balance)["residue"] * scale, residue * scale
        if (lost := max(abs(in_model), abs(in_place))) > most:
            raise ValueError(
                f"{self.label} must lose or invent at most {100 * most:.3g} % of the target, "
                f"got {100 * in_model:.3g} % in {model.name} and {100 * in_place:.3g} % in {place}; "
                f"try rules='gradient' or the score 'importance', or accept the numbers by max_residue={lost * 1.1:.2g}"
            )

    def _check_positive(self, model: HeadModel, target: Targets, batch: Batch, lowest: float) -> None:
        rounding = NEGATIVE_IN_HALF if _is_half(model) else NEGATIVE
        if self.max_residue is not None or not lowest < -rounding:  # NaN is refused elsewhere
            return
        self._check_conserved(model, report(model, target, batch, self.rules))  # which names the layer
        raise ValueError(
            f"{self.label} must not be below 0 by the rules of Voita, got {100 * lowest:.3g} % of the target at a head "
            f"of {model.name}; try rules='cp' or the score 'importance', or accept the numbers by max_residue={LEAK}"
        )

    def head_gradients(self, model: HeadModel, target: Targets, batch: Batch) -> HeadGradients:
        """Compute the relevance of every head at every step."""
        gradients = head_gradients(
            model,
            target,
            batch,
            rules=self.rules,
            steps=self.steps,
            chunk=self.chunk,
            by_token=self.chosen(model).by_token,
        )
        if self.rules == "voita":
            self._check_positive(model, target, batch, float(gradients.gradients.min()))
        return gradients

    def update(self, head_gradients: HeadGradients) -> dict[str, Tensor]:
        """Sum the shares, or R itself, over steps: each [batch, heads]."""
        relevance = head_gradients.gradients.double()
        if self.by == "layer":
            total = relevance.abs().sum(-1, keepdim=True)
            relevance = torch.where(total == 0, 0.0, relevance / torch.where(total == 0, 1.0, total))
        return {"signed": relevance.sum(1), "size": relevance.abs().sum(1)}

    def denominators(self, head_gradients: HeadGradients) -> dict[str, Tensor]:
        """Return the number of steps, or the sum of the target: [batch, 1]."""
        if self.by != "logit":
            return {"whole": head_gradients.steps}
        relevance = head_gradients.values * start(head_gradients.values, self.rules)
        return {"whole": relevance.double().sum(-1, keepdim=True)}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `relevance[rules]` and `relevance[rules].size`."""
        return {self.label: sums["signed"] / sums["whole"], f"{self.label}.size": sums["size"] / sums["whole"].abs()}


def _is_half(model: HeadModel) -> bool:
    return torch.finfo(model.model.dtype).bits < 32
