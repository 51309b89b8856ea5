"""Measured patterns: how often, and how much, a head attends to the targets of a pattern."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from headroles.patterns.base import OfPattern, Pattern
from headroles.patterns.offset import Previous
from headroles.scores.base import Observation, Score, Sums


@dataclass(frozen=True)
class Measured(OfPattern, Score):
    """Share of queries with the largest weight on a target of a pattern, and the mean weight on its targets.

    Both are over the content queries to which the pattern applies, in layers with a window those that see a target;
    keys are content tokens and targets.
    `hr.score(model, tokenizer, corpus, [Offset(-3)])` is short for `[Measured(Offset(-3))]`.

    Args:
        pattern: The pattern.
    """

    pattern: Pattern = field(default=Previous())
    in_parts = True
    by_head = True

    @classmethod
    def name(cls) -> str:
        """Return the name of the columns."""
        return "pattern"

    @property
    def label(self) -> str:
        """Prefix of the score's columns."""
        return f"{self.column(self.name())}[{self.pattern.label}]"

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Count the queries with the largest weight on a target, and sum the weights on targets: [batch, heads]."""
        targets = self.targets(observation)
        weights = observation.weights * (targets | observation.keys.content[:, None, None])
        values, places = weights.max(-1)
        hits = targets.expand_as(weights).gather(-1, places[..., None]).squeeze(-1) & (values > 0)
        mass = (weights * targets).sum(-1)
        return {"hits": observation.over_queries(hits), "mass": observation.over_queries(mass)}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count the content queries to which the pattern applies: [batch, heads]."""
        queries = (self.targets(observation).any(-1) & observation.counting()).sum(-1)
        return {"queries": queries.expand(-1, observation.weights.shape[1])}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `pattern[... share]` and `pattern[... mass]`; NaN where the pattern never applies."""
        parts = {"share": sums["hits"] / sums["queries"], "mass": sums["mass"] / sums["queries"]}
        return {f"pattern[{self.pattern.label} {part}]": values for part, values in parts.items()}

    def counted(self, sums: Sums) -> dict[str, Tensor]:
        """Return the number of queries."""
        return {f"pattern[{self.pattern.label} share]": sums["queries"]}

    def targets(self, observation: Observation) -> Tensor:
        """Return which keys each query is about, without the sink those left: [batch, heads or 1, query, key]."""
        targets = self.pattern.targets(observation) > 0
        targets = targets if targets.ndim == 4 else targets[:, None]
        targets = targets if observation.allowed is None else targets & observation.allowed
        return targets & observation.keys.content[:, None, None] if observation.of == "nosink" else targets
