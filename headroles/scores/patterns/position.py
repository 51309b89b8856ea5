"""Position: how often a head attends to the token at a fixed offset."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headroles.patterns.offset import Offset
from headroles.scores.base import SELF, Observation, Score, Sums
from headroles.tables.frame import Kind


@dataclass(frozen=True)
class Position(Score):
    """Share of content queries i with the largest weight on content token i + d, among those for which i + d exists.

    At d = -1 this is the share of a previous-token head. In a decoder the tokens after a query do not exist
    (Voita et al. 2019, section 5.1).

    Args:
        offsets: the values of d, in tokens.
    """

    offsets: tuple[int, ...] = (-2, -1, 0, 1, 2)
    kinds = SELF
    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Count the queries with the largest weight at each offset: [batch, heads, offset]."""
        offset = observation.top[1] - observation.places
        hits = [observation.over_queries(offset == d, Offset(d).exists(observation)) for d in self.offsets]
        return {"hits": torch.stack(hits, -1)}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count the content queries for which each offset exists: [batch, heads or 1, offset]."""
        return {"exists": torch.stack([observation.count(Offset(d).exists(observation)) for d in self.offsets], -1)}

    def nothing(self, column: str, kind: Kind, /) -> str | None:
        """Return None for positive offsets in a decoder, which do not exist by definition."""
        return None if kind == "dec-self" and "[+" in column else super().nothing(column, kind)

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `position[d]`, the largest of them `position[best]`, and its d `position[offset]`."""
        shares = sums["hits"] / sums["exists"]  # [..., heads, offset]; NaN where an offset never exists
        columns = {f"position[{_signed(d)}]": shares[..., i] for i, d in enumerate(self.offsets)}
        best, which = shares.nan_to_num(-1.0).max(-1)
        offsets = torch.tensor(self.offsets, dtype=shares.dtype, device=shares.device)[which]
        never = best < 0  # no offset ever exists
        return columns | {
            "position[best]": best.masked_fill(never, torch.nan),
            "position[offset]": offsets.masked_fill(never, torch.nan),
        }

    def counted(self, sums: Sums) -> dict[str, Tensor]:
        """Return the number of queries for which each offset exists; for the best offset, any of them."""
        exists = {f"position[{_signed(d)}]": sums["exists"][..., i] for i, d in enumerate(self.offsets)}
        return exists | {"position[best]": sums["exists"].amax(-1)}


def _signed(d: int) -> str:
    return f"{d:+d}" if d else "0"
