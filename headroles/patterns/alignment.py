"""Alignment: each target token is about the source token at the same share of the sentence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headroles.patterns.base import Pattern
from headroles.patterns.observation import Observation


@dataclass(frozen=True)
class Diagonal(Pattern):
    """The source token on the diagonal: as far in the source as the query is in the target, rounded down at halves."""

    kinds = ("cross",)
    about = "onward through the source"

    def targets(self, observation: Observation) -> Tensor:
        """Return weight 1 on the token on the diagonal."""
        step, ends, start, length = diagonal(observation)
        place = start + (2 * step * length + ends - 1) // (2 * ends)  # [batch, query]
        keys = torch.arange(observation.keys.ids.shape[1], device=place.device)
        return ((place[..., None] == keys) & observation.keys.content[:, None]).float()


def diagonal(observation: Observation) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the step of each query, [batch, query], the last step, the first key and the number of keys after it."""
    step = observation.queries.content.cumsum(-1) - 1  # the number of content tokens before: [batch, query]
    ends = (observation.queries.content.sum(-1, keepdim=True) - 1).clamp(min=1)  # [batch, 1]
    length = observation.keys.content.sum(-1, keepdim=True) - 1
    return step, ends, observation.keys.content.int().argmax(-1, keepdim=True), length
