"""Duplicate: how much of a head's attention goes to the same token before."""

from dataclasses import dataclass

from torch import Tensor

from headroles.scores.base import Score, Seen, Sums
from headroles.scores.induction import earlier, repeats


@dataclass(frozen=True)
class Duplicate(Score):
    """Mean weight on earlier occurrences of the query's own token, over the real queries that have any.

    A "duplicate token head" (Wang et al. 2022, "Interpretability in the wild").
    """

    kinds = ("dec-self",)
    in_parts = True

    def tally(self, seen: Seen) -> dict[str, Tensor]:
        """The sum of that weight."""
        same = (seen.on_real * earlier(seen)[:, None]).sum(-1)  # [batch, heads, query]
        return {"weight": seen.over_queries(same, repeats(seen))}

    def ground(self, seen: Seen) -> dict[str, Tensor]:
        """How many real queries occurred before."""
        return {"queries": (repeats(seen) & seen.queries.real).sum(-1, keepdim=True)}

    def finish(self, sums: Sums) -> dict[str, Tensor]:
        """`duplicate`; NaN where no token occurs twice."""
        return {"duplicate": sums["weight"] / sums["queries"]}
