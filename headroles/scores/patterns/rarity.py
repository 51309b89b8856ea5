"""Rarity: how often a head attends to the rarest token of the sentence."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headroles.scores.base import Observation, Score, Sums
from headroles.tables.frame import Kind


@dataclass(frozen=True)
class Rarity(Score):
    """Share of content queries with the largest weight on the sentence's rarest token (Voita et al. 2019, section 5.3).

    A sentence counts if its rarest token is not among the most frequent tokens of the reference corpus. In a decoder,
    only queries at or after that token count. Of equally rare tokens the first is taken. NaN where no query counts.

    Args:
        frequent: number of most frequent tokens that are not rare.
    """

    frequent: int = 500
    needs_counts = True
    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Count the queries with the largest weight on the rarest token: [batch, heads]."""
        place, counted = self._rarest(observation)
        return {"hits": observation.over_queries(observation.top[1] == place[:, None, None], counted)}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count the content queries that can attend to the rarest token: [batch, 1]."""
        return {"queries": (self._rarest(observation)[1] & observation.queries.content).sum(-1, keepdim=True)}

    def nothing(self, _column: str, _kind: Kind, /) -> str:
        """Return the reason: a small corpus has few tokens beyond the frequent ones."""
        return (
            f"in no sentence is the rarest token outside the {self.frequent} most frequent of the corpus they are "
            f"counted in; try a larger one: reference=, or Rarity(frequent=...) with a smaller number"
        )

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `rarity`."""
        return {"rarity": sums["hits"] / sums["queries"]}

    def counted(self, sums: Sums) -> dict[str, Tensor]:
        """Return the number of queries that can attend to the rarest token."""
        return {"rarity": sums["queries"]}

    def _rarest(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Position of the rarest token, [batch], and the queries that count, bool [batch, query]."""
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
