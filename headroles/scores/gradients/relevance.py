"""Relevance: how much of what the model decides flows through a head, by layer-wise relevance propagation."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor
from transformers import PreTrainedModel

from headroles.models.batching import Batch
from headroles.scores.base import Sums
from headroles.scores.gradients.base import GradientScore, HeadGradients, Steps, check_steps, shares, slopes
from headroles.scores.lrp import Rules
from headroles.scores.lrp.composites import start, table
from headroles.scores.lrp.conservation_report import report, totals
from headroles.scores.objectives import Explain

CONSERVING = ("cp", "cp-gate", "voita", "voita-exact")
LEAK = 0.02  # residue above which a conserving rule set does not know some operation of the model

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Relevance(GradientScore):
    """Share of the relevance that flows through the heads of a layer (Voita et al. 2019, section 4; see LRP's rules).

    `rules`: a set of `headroles.scores.lrp.composites.table`; "gradient" has none and is gradient x input. `by`: shares of the
    sum of |R| over the heads of the layer, step by step ("layer"), or of all that is explained ("logit"), comparable
    between layers. `steps`: "all" generation steps, their "sum" in one backward pass, or so many of each sentence. The
    objective is by default the largest logit of each step, of a classifier its class, of an encoder a similarity.
    Columns are `relevance[rules]`, signed, and `relevance[rules].size`, of |R|; with `by="logit"`,
    `relevance[rules logit]`. Rules other than voita's give relevance of both signs, whose plain sum over a layer may be
    near 0: `by="sum"` is for voita's alone.
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
            raise ValueError(f"relevance is normalised by 'layer', 'logit' or 'sum'; got {self.by!r}")
        if self.by == "sum" and not self.rules.startswith("voita"):
            raise ValueError(
                f"rules {self.rules!r} give relevance of both signs, whose plain sum may be near 0; use by='layer', "
                f"which divides by the sum of |R|"
            )

    @property
    def label(self) -> str:
        """Several rule sets may be asked for at once."""
        return f"relevance[{self.rules}{' logit' * (self.by == 'logit')}]"

    def notes(self, model: PreTrainedModel, explain: Explain, batch: Batch, /) -> dict[str, object]:
        """The objective, and the conservation report in short, of the first batch."""
        found = totals(report(model, explain, batch, self.rules, epsilon=self.epsilon))
        leaking = self.rules in CONSERVING and not self.epsilon and abs(found["residue"]) > LEAK
        parts = ", ".join(f"{name} {100 * share:.1f} %" for name, share in found.items())
        log.log(logging.WARNING if leaking else logging.INFO, "%s of what is explained: %s", self.label, parts)
        return super().notes(model, explain, batch) | {name: f"{share:.4f}" for name, share in found.items()}

    def slopes(self, model: PreTrainedModel, explain: Explain, batch: Batch) -> HeadGradients:
        """The relevance of every head at every step."""
        by_token = self.chosen(model).by_token
        options: dict[str, Any] = {"rules": self.rules, "epsilon": self.epsilon, "steps": self.steps}
        return slopes(model, explain, batch, **options, chunk=self.chunk, by_token=by_token)

    def update(self, slopes: HeadGradients) -> dict[str, Tensor]:
        """The sums over steps of the shares, or of R itself."""
        found = slopes.gradients.double() if self.by == "logit" else shares(slopes, signed=self.by == "sum")
        return {"signed": found.sum(1), "size": found.abs().sum(1)}

    def denominators(self, slopes: HeadGradients) -> dict[str, Tensor]:
        """The number of steps, or what was explained."""
        if self.by != "logit":
            return {"whole": slopes.steps}
        relevance = slopes.values * start(slopes.values, self.rules)
        return {"whole": relevance.double().sum(-1, keepdim=True)}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """`relevance[rules]` and `relevance[rules].size`."""
        return {self.label: sums["signed"] / sums["whole"], f"{self.label}.size": sums["size"] / sums["whole"].abs()}
