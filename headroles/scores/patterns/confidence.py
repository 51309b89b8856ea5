"""Confidence: the largest weight a query puts on one token."""

from dataclasses import dataclass

from torch import Tensor

from headroles.scores.base import Observation, Score, Sums


@dataclass(frozen=True)
class Confidence(Score):
    """Mean over content queries of the largest weight on a content key (Voita et al. 2019, section 4)."""

    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Sum the largest weights: [batch, heads]."""
        return {"top": observation.over_queries(observation.top[0])}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `confidence`."""
        return {"confidence": sums["top"] / sums["queries"]}
