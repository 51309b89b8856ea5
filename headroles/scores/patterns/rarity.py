"""Rarity: how often a head looks at the rarest token of the sentence."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headroles.scores.base import Observation, Score, Sums
from headroles.tables.frame import Kind


@dataclass(frozen=True)
class Rarity(Score):
    """Share of real queries whose largest weight falls on the sentence's rarest token (Voita et al. 2019, section 5.3).

    Only sentences count whose rarest token is outside the `frequent` most frequent tokens of the reference corpus, and
    in a decoder only queries that can see it. Of equally rare tokens the first is meant. NaN where nothing is counted.
    """

    frequent: int = 500
    needs_counts = True
    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """How often the largest weight falls on the rarest token: [batch, heads]."""
        place, counted = self._rarest(observation)
        return {"hits": observation.over_queries(observation.top[1] == place[:, None, None], counted)}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """How many real queries could look at it: [batch, 1]."""
        return {"queries": (self._rarest(observation)[1] & observation.queries.content).sum(-1, keepdim=True)}

    def nothing(self, _column: str, _kind: Kind, /) -> str:
        """A small corpus has hardly more different tokens than are left out as frequent."""
        return (
            f"in no sentence is the rarest token outside the {self.frequent} most frequent of the corpus they are "
            f"counted in; try a larger one: reference=, or Rarity(frequent=...) with a smaller number"
        )

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """`rarity`."""
        return {"rarity": sums["hits"] / sums["queries"]}

    def counted(self, sums: Sums) -> dict[str, Tensor]:
        """How many real queries could look at the rarest token."""
        return {"rarity": sums["queries"]}

    def _rarest(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Where the rarest token is, [batch], and which queries count, bool [batch, query]."""
        never = torch.iinfo(observation.counts.dtype).max
        place = (
            observation.counts[observation.keys.ids].masked_fill(~observation.keys.content, never).argmin(-1)
        )  # [batch]
        rarest = observation.keys.ids.gather(-1, place[:, None])  # [batch, 1]
        counted = (observation.ranks[rarest] >= self.frequent) & observation.keys.content.any(
            -1, keepdim=True
        )  # [batch, 1]
        counted = counted & observation.counts.any()  # without counts every token would be the rarest
        counted = counted.expand_as(observation.queries.content)
        if observation.causal:
            counted = counted & (observation.places >= place[:, None])
        return place, counted
