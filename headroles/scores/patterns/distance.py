"""Distance: how far a head attends, in tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headroles.scores.base import SELF, Observation, Score, Sums


@dataclass(frozen=True)
class Distance(Score):
    """Mean distance in tokens from query to key, weighted by attention on content keys (Vig & Belinkov 2019)."""

    kinds = SELF
    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Sum weight times distance, and the weights: each [batch, heads]."""
        keys = torch.arange(observation.weights.shape[-1], device=observation.weights.device)
        apart = (observation.places[:, None] - keys).abs().to(observation.weights.dtype)  # [query, key]
        far = observation.over_queries((observation.on_real * apart).sum(-1))
        return {"far": far, "mass": observation.on_keys(observation.keys.content)}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `distance`, in tokens."""
        return {"distance": sums["far"] / sums["mass"]}
