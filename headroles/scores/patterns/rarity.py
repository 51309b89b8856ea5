"""Rarity: how often a head attends to the rarest token of the sentence."""

from dataclasses import dataclass

from torch import Tensor

from headroles.patterns.rarity import Rarest
from headroles.scores.base import Observation, Score, Sums
from headroles.tables.frame import Kind


@dataclass(frozen=True)
class Rarity(Score):
    """Share of content queries with the largest weight on the sentence's rarest token (Voita et al. 2019, section 5.3).

    A sentence counts if its rarest token is not among the most frequent tokens of the reference corpus. In a decoder,
    only queries at or after that token count. Of equally rare tokens the first is taken. NaN where no query counts.

    Counted in a small corpus itself, most of its tokens are equally rare: the value is that of these counts, not of the
    language's. There is no interval if fewer than `frequent` tokens occur more than once.

    Args:
        frequent: number of most frequent tokens that are not rare.
    """

    frequent: int = 500
    needs_counts = True
    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Count the queries with the largest weight on the rarest token: [batch, heads]."""
        place, counted = Rarest(self.frequent).rarest(observation)
        return {"hits": observation.over_queries(observation.top[1] == place[:, None, None], counted)}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count the content queries that can attend to the rarest token: [batch, heads or 1]."""
        return {"queries": observation.count(Rarest(self.frequent).rarest(observation)[1])}

    def nothing(self, _column: str, _kind: Kind, /) -> str:
        """Return the reason: a small corpus has few tokens beyond the frequent ones."""
        return (
            f"in no sentence is the rarest token outside the {self.frequent} most frequent of the corpus they are "
            f"counted in; try a larger one: reference=, or Rarity(frequent=...) with a smaller number"
        )

    def unsettled(self, counts: Tensor, /) -> str | None:
        """Return the reason if chance decides which tokens are the most frequent: most of them occur once."""
        known = int((counts > 1).sum())
        if not counts.any() or known >= self.frequent:
            return None
        return (
            f"the {self.frequent} most frequent tokens are not known, since {known} occur more than once in the corpus "
            f"itself; count them in a larger one: reference="
        )

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `rarity`."""
        return {"rarity": sums["hits"] / sums["queries"]}

    def counted(self, sums: Sums) -> dict[str, Tensor]:
        """Return the number of queries that can attend to the rarest token."""
        return {"rarity": sums["queries"]}
