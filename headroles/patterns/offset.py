"""Offset: each query is about the token at a fixed offset."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from headroles.models.sites import Site
from headroles.patterns.base import Pattern
from headroles.patterns.observation import SELF, Observation


@dataclass(frozen=True)
class Offset(Pattern):
    """The content token `offset` positions later (Voita et al. 2019, section 5.1): -1 is the previous token.

    Args:
        offset: The distance in tokens; negative before the query. In a decoder there is nothing after it.
    """

    offset: int
    kinds = SELF
    about = "at a fixed offset"

    def __post_init__(self) -> None:
        if self.offset != int(self.offset):
            raise ValueError(f"no whole number of tokens: got offset={self.offset!r}; expected one such as -1")

    def targets(self, observation: Observation) -> Tensor:
        """Return weight 1 on the token at the offset."""
        places = observation.places + self.offset  # [query]
        keys = torch.arange(observation.keys.ids.shape[1], device=places.device)
        return ((places[:, None] == keys) & self.exists(observation)[..., None]).float()

    def exists(self, observation: Observation) -> Tensor:
        """Return for which queries the offset exists: bool [batch, query]."""
        if observation.causal and self.offset > 0:
            return torch.zeros_like(observation.queries.content)
        return _shifted(observation.keys.content, self.offset)[:, observation.places]

    def check(self, site: Site) -> None:
        """Raise ValueError for cross-attention, and for tokens after the query in a decoder."""
        super().check(site)
        if site.kind == "dec-self" and self.offset > 0:
            raise ValueError(
                f"a decoder cannot look ahead: got {self} for {site.name}; expected an offset of 0 or below"
            )


@dataclass(frozen=True)
class Previous(Offset):
    """The token before: the pattern of a previous-token head."""

    offset: int = field(default=-1, init=False, repr=False)
    about = "at the token before"


def _shifted(content: Tensor, offset: int) -> Tensor:
    """Return whether the token `offset` positions later is a content token: bool [batch, token]."""
    moved = torch.zeros_like(content)
    if abs(offset) < content.shape[-1]:
        moved[:, max(-offset, 0) : content.shape[-1] - max(offset, 0)] = content[
            :, max(offset, 0) : content.shape[-1] + min(offset, 0)
        ]
    return moved
