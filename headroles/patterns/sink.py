"""Sinks: each query is about the first token, or about special tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headroles.patterns.base import Pattern
from headroles.patterns.observation import Observation


@dataclass(frozen=True)
class First(Pattern):
    """The first token of any sort: the attention sink of decoders (Xiao et al. 2023)."""

    about = "at the first token"

    def targets(self, observation: Observation) -> Tensor:
        """Return weight 1 on the first token that is not padding."""
        mask = observation.keys.attention_mask
        first = torch.zeros_like(mask, dtype=torch.float32).scatter_(1, mask.int().argmax(-1, keepdim=True), 1.0)
        return first[:, None].expand(-1, observation.queries.ids.shape[1], -1)


@dataclass(frozen=True)
class Special(Pattern):
    """All special tokens alike, such as CLS and SEP (Clark et al. 2019); in a decoder those before the query."""

    about = "at special tokens"
    needs_special = True

    def targets(self, observation: Observation) -> Tensor:
        """Return equal weights on special tokens."""
        keys = observation.keys
        special = (keys.attention_mask & ~keys.content)[:, None].expand(-1, observation.queries.ids.shape[1], -1)
        return shared(special.tril(observation.first) if observation.causal else special)


def shared(chosen: Tensor) -> Tensor:
    """Return equal weights on the chosen keys of each query, none where none is chosen: bool to float32."""
    weights = chosen.float()
    return weights / weights.sum(-1, keepdim=True).clamp(min=1)
