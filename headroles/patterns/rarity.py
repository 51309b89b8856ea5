"""Rarity: each query is about the rarest token of the sentence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headroles.patterns.base import Pattern
from headroles.patterns.observation import Observation


@dataclass(frozen=True)
class Rarest(Pattern):
    """The rarest token of the sentence, if it is not among the most frequent ones (Voita et al. 2019, section 5.3).

    In a decoder, it is the pattern of queries at or after that token. Of equally rare tokens the first is taken.

    Args:
        frequent: Number of most frequent tokens that are not rare.
    """

    frequent: int = 500
    needs_counts = True
    about = "at the rarest token"

    def targets(self, observation: Observation) -> Tensor:
        """Return weight 1 on the rarest token."""
        place, counted = self.rarest(observation)
        keys = torch.arange(observation.keys.ids.shape[1], device=place.device)
        return ((place[:, None, None] == keys) & counted[..., None]).float()

    def rarest(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Return the position of the rarest token, [batch], and the queries that count, bool [batch, query]."""
        keys = observation.keys
        never = torch.iinfo(observation.counts.dtype).max
        place = observation.counts[keys.ids].masked_fill(~keys.content, never).argmin(-1)  # [batch]
        rarest = keys.ids.gather(-1, place[:, None])  # [batch, 1]
        counted = (observation.ranks[rarest] >= self.frequent) & keys.content.any(-1, keepdim=True)  # [batch, 1]
        counted = counted & observation.counts.any()  # without counts every token would be the rarest
        counted = counted.expand_as(observation.queries.content)
        if observation.causal:
            counted = counted & (observation.places >= place[:, None])
        return place, counted
