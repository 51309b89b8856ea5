"""Entropy: how widely a head spreads its attention."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headroles.scores.base import Observation, Score, Sums


@dataclass(frozen=True)
class Entropy(Score):
    """Mean over content queries of the entropy of the attention distribution, in nats (Clark et al. 2019, section 3.3).

    All keys but padding count, special tokens included: entropy needs the whole distribution.
    """

    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Sum the entropies: [batch, heads]."""
        tiny = torch.finfo(observation.weights.dtype).tiny  # 0 log 0 is 0
        surprise = observation.weights.clamp(min=tiny).log_()  # in place: twice as fast as torch.special.entr
        return {"entropy": -observation.over_queries(surprise.mul_(observation.weights).sum(-1))}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `entropy`, in nats."""
        return {"entropy": sums["entropy"] / sums["queries"]}
