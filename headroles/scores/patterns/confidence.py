"""Confidence: how much a head puts on the token it looks at most."""

from dataclasses import dataclass

from torch import Tensor

from headroles.scores.base import Score, Seen, Sums


@dataclass(frozen=True)
class Confidence(Score):
    """Mean over real queries of the largest weight on a real key (Voita et al. 2019, section 4)."""

    in_parts = True

    def tally(self, seen: Seen) -> dict[str, Tensor]:
        """The sum of the largest weights."""
        return {"top": seen.over_queries(seen.top[0])}

    def finish(self, sums: Sums) -> dict[str, Tensor]:
        """`confidence`."""
        return {"confidence": sums["top"] / sums["queries"]}
