"""Distance: how far away a head looks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headroles.scores.base import SELF, Score, Seen, Sums


@dataclass(frozen=True)
class Distance(Score):
    """Mean distance in tokens from query to key, weighted by attention on real keys (Vig & Belinkov 2019)."""

    kinds = SELF
    in_parts = True

    def tally(self, seen: Seen) -> dict[str, Tensor]:
        """The sum of weight times distance, and the sum of the weights."""
        keys = torch.arange(seen.weights.shape[-1], device=seen.weights.device)
        apart = (seen.places[:, None] - keys).abs().to(seen.weights.dtype)  # [query, key]
        far = seen.over_queries((seen.on_real * apart).sum(-1))
        return {"far": far, "mass": seen.on_keys(seen.keys.real)}

    def finish(self, sums: Sums) -> dict[str, Tensor]:
        """`distance`, in tokens."""
        return {"distance": sums["far"] / sums["mass"]}
