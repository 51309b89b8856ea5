"""Confidence: how much a head puts on the token it looks at most."""

from dataclasses import dataclass

from torch import Tensor

from headroles.scores.base import Observation, Score, Sums


@dataclass(frozen=True)
class Confidence(Score):
    """Mean over real queries of the largest weight on a real key (Voita et al. 2019, section 4)."""

    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """The sum of the largest weights."""
        return {"top": observation.over_queries(observation.top[0])}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """`confidence`."""
        return {"confidence": sums["top"] / sums["queries"]}
