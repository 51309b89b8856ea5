"""Distance: how far away a head looks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headroles.scores.base import SELF, Observation, Score, Sums


@dataclass(frozen=True)
class Distance(Score):
    """Mean distance in tokens from query to key, weighted by attention on real keys (Vig & Belinkov 2019)."""

    kinds = SELF
    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """The sum of weight times distance, and the sum of the weights."""
        keys = torch.arange(observation.weights.shape[-1], device=observation.weights.device)
        apart = (observation.places[:, None] - keys).abs().to(observation.weights.dtype)  # [query, key]
        far = observation.over_queries((observation.on_real * apart).sum(-1))
        return {"far": far, "mass": observation.on_keys(observation.keys.content)}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """`distance`, in tokens."""
        return {"distance": sums["far"] / sums["mass"]}
