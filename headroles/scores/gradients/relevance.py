"""Relevance: how much of the target flows through a head, by layer-wise relevance propagation."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel
from headroles.scores.base import Sums
from headroles.scores.gradients.base import GradientScore, HeadGradients, Steps, check_steps, head_gradients, shares
from headroles.scores.lrp import Rules
from headroles.scores.lrp.composites import start, table
from headroles.scores.lrp.conservation_report import report, totals
from headroles.scores.objectives import Targets

CONSERVING = ("cp", "cp-gate", "voita", "voita-exact")
LEAK = 0.02  # residue above which a conserving rule set lacks a rule for some operation of the model

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Relevance(GradientScore):
    """Share of the relevance that flows through the heads of a layer (Voita et al. 2019, section 4).

    Columns are `relevance[rules]`, signed, and `relevance[rules].size`, of |R|; with `by="logit"`,
    `relevance[rules logit]`.

    Args:
        rules: LRP rule set (`headroles.scores.lrp.composites.table`); "gradient" for gradient x input.
        epsilon: strength of the epsilon rule on linear maps; 0 for none.
        by: "layer" for shares of the sum of |R| over the heads of the layer, step by step; "logit" for shares of the
            target, which are comparable between layers; "sum" for shares of the plain sum of R, for the voita rules
            only. Other rules give relevance of both signs, and its plain sum may be near 0.
        steps: "all" generation steps, their "sum" in one backward pass, or a number of steps of each sentence.
        chunk: number of steps in one backward pass, which bounds memory.
        objective: name or instance of the target; default: the largest logit of each step, for a classifier its class,
            for an encoder a similarity.
    """

    rules: Rules = "cp"
    epsilon: float = 0.0
    by: Literal["layer", "logit", "sum"] = "layer"
    steps: Steps = "all"
    chunk: int = 4

    def __post_init__(self) -> None:
        table(self.rules, self.epsilon)
        check_steps(self.steps)
        if self.by not in ("layer", "logit", "sum"):
            raise ValueError(f"unknown normalisation: got by={self.by!r}; expected 'layer', 'logit' or 'sum'")
        if self.by == "sum" and not self.rules.startswith("voita"):
            raise ValueError(
                f"rules {self.rules!r} give relevance of both signs, and its plain sum may be near 0: got by='sum'; "
                f"expected 'layer' or 'logit'; try by='layer', which divides by the sum of |R|"
            )

    @property
    def label(self) -> str:
        """Column name, which includes the rules: several rule sets can be measured in one call."""
        return f"relevance[{self.rules}{' logit' * (self.by == 'logit')}]"

    def notes(self, model: HeadModel, target: Targets, batch: Batch, /) -> dict[str, object]:
        """Return the objective and the totals of the conservation report of the first batch."""
        fractions = totals(report(model, target, batch, self.rules, epsilon=self.epsilon))
        leaking = self.rules in CONSERVING and not self.epsilon and abs(fractions["residue"]) > LEAK
        parts = ", ".join(f"{name} {100 * share:.1f} %" for name, share in fractions.items())
        log.log(logging.WARNING if leaking else logging.INFO, "%s of the target: %s", self.label, parts)
        return super().notes(model, target, batch) | {name: f"{share:.4f}" for name, share in fractions.items()}

    def head_gradients(self, model: HeadModel, target: Targets, batch: Batch) -> HeadGradients:
        """Compute the relevance of every head at every step."""
        return head_gradients(
            model,
            target,
            batch,
            rules=self.rules,
            epsilon=self.epsilon,
            steps=self.steps,
            chunk=self.chunk,
            by_token=self.chosen(model).by_token,
        )

    def update(self, head_gradients: HeadGradients) -> dict[str, Tensor]:
        """Sum the shares, or R itself, over steps: each [batch, heads]."""
        relevance = (
            head_gradients.gradients.double() if self.by == "logit" else shares(head_gradients, signed=self.by == "sum")
        )
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
