"""Resting: how often a head does nothing but attend to the sink."""

from dataclasses import dataclass

from torch import Tensor

from headroles.patterns.observation import LEAST
from headroles.scores.base import Observation, Score, Sums


@dataclass(frozen=True)
class Resting(Score):
    """Share of content queries with less than `least` of their weight off the sink: those not counted without it.

    The sink is the first token of any sort and special tokens. The first token of a decoder is left out as a query: it
    has nothing else to attend to.

    Args:
        least: the least weight off the sink of a query that does something else.
    """

    least: float = LEAST
    in_parts = True
    of_sink = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Count the queries: [batch, heads]."""
        return {"resting": observation.over_queries(observation.off_sink < self.least, observation.others)}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count the content queries with something else to attend to: [batch, 1]."""
        return {"queries": observation.count(observation.others)}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `resting`."""
        return {"resting": sums["resting"] / sums["queries"]}

    def counted(self, sums: Sums) -> dict[str, Tensor]:
        """Return the number of queries."""
        return {"resting": sums["queries"]}
