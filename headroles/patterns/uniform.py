"""Uniform and streaming attention: every key alike, or a head's own attention to the first and the latest tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headroles.patterns.base import Pattern
from headroles.patterns.observation import SELF, Observation
from headroles.patterns.sink import shared


@dataclass(frozen=True)
class Uniform(Pattern):
    """Every token alike that is not padding; in a decoder those up to the query."""

    about = "everywhere"

    def targets(self, observation: Observation) -> Tensor:
        """Return equal weights."""
        keys = observation.keys.attention_mask[:, None].expand(-1, observation.queries.ids.shape[1], -1)
        return shared(keys.tril(observation.first) if observation.causal else keys)


@dataclass(frozen=True)
class Streaming(Pattern):
    """The head's own weights on the first and the latest tokens, renormalised (Xiao et al. 2023).

    Args:
        sink: Number of tokens at the start that every query keeps.
        recent: Number of tokens up to the query that it keeps, itself included.
    """

    sink: int = 4
    recent: int = 256
    kinds = SELF
    needs_weights = True
    about = "at the first and the latest tokens"

    def __post_init__(self) -> None:
        if self.sink < 0 or self.recent < 1:
            raise ValueError(
                f"wrong stream: got sink={self.sink}, recent={self.recent}; expected at least 0 and at least 1"
            )

    def targets(self, observation: Observation) -> Tensor:
        """Return the own weights on these tokens, renormalised: [batch, heads, query, key]."""
        mask = observation.keys.attention_mask
        start = mask.int().argmax(-1)[:, None, None]  # the first token that is not padding
        keys = torch.arange(mask.shape[1], device=mask.device)
        apart = (observation.places[:, None] - keys).abs()  # [query, key]
        kept = (keys - start < self.sink) | (apart < self.recent)  # [batch, query, key]
        weights = observation.weights.float() * (kept & mask[:, None])[:, None]
        return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
