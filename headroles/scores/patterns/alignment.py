"""Alignment: does a cross-attention head advance through the source, or to the words that a target word translates?"""

from dataclasses import dataclass

import torch
from torch import Tensor

from headroles.patterns import alignment
from headroles.patterns.alignment import Diagonal, diagonal
from headroles.scores.base import Observation, Score, Sums
from headroles.scores.measured import Measured


@dataclass(frozen=True)
class Alignment(Score):
    """Agreement of cross-attention with a monotone path, and with the diagonal.

    `alignment[monotone]` is Kendall's tau-a between the position of a target token and the position of the source token
    with its largest weight, averaged over sentences with two or more target tokens. It is 1 for a strictly forward
    path, -1 for a backward one, and 0 for a constant or random one. `alignment[diagonal]` is the share of target tokens
    with the largest weight within one token of the diagonal; in short sentences chance contributes. A target token is
    the one the decoder reads, not the one it predicts.
    """

    kinds = ("cross",)

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Sum the sentences' taus and the hits on the diagonal: each [batch, heads]."""
        places = observation.top[1]  # [batch, heads, query]
        counting = observation.counting()
        pairs = (counting[..., :, None] & counting[..., None, :]).triu(1)  # [batch, heads or 1, earlier, later]
        short = places.to(torch.int16)
        order = (short[:, :, None, :] - short[:, :, :, None]).sign_()  # [batch, heads, earlier, later]
        agreement = order.mul_(pairs).sum((-1, -2)).double()
        near = _on_diagonal(observation, places)
        return {"tau": agreement / pairs.sum((-1, -2)).clamp(min=1), "near": observation.over_queries(near)}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count target tokens, and sentences with two or more: each [batch, heads or 1]."""
        queries = observation.count()
        return {"queries": queries, "sentences": queries > 1}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `alignment[monotone]` and `alignment[diagonal]`."""
        monotone, diagonal = sums["tau"] / sums["sentences"], sums["near"] / sums["queries"]
        return {"alignment[monotone]": monotone, "alignment[diagonal]": diagonal}

    def counted(self, sums: Sums) -> dict[str, Tensor]:
        """Return the number of target tokens."""
        return {"alignment[diagonal]": sums["queries"]}


@dataclass(frozen=True)
class Links(Score):
    """Share of linked target tokens with the largest weight on a source word that is linked with theirs.

    Links are those of `hr.read(..., links=)`. The baseline is the share of the same tokens for which the source token
    on the diagonal is one of a linked word. A target token is the one the decoder reads, not the one it predicts.
    """

    kinds = ("cross",)
    needs_links = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Count the target tokens that are right: [batch, heads]."""
        return {"hits": Measured(alignment.Alignment()).update(observation)["hits"]}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count the linked target tokens, and those for which the diagonal is right: each [batch, heads or 1]."""
        targets = Measured(alignment.Alignment()).targets(observation)[:, 0]  # bool [batch, query, key]
        near = (targets & (Diagonal().targets(observation) > 0)).any(-1)  # [batch, query]
        return {"queries": observation.count(targets.any(-1)), "near": observation.count(near)}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `links`, and the diagonal's share as `.baseline`."""
        share = sums["hits"] / sums["queries"]
        return {"links": share, "links.baseline": (sums["near"] / sums["queries"]).expand_as(share)}

    def counted(self, sums: Sums) -> dict[str, Tensor]:
        """Return the number of linked target tokens, for the share and its baseline."""
        return dict.fromkeys(("links", "links.baseline"), sums["queries"])


def _on_diagonal(observation: Observation, places: Tensor) -> Tensor:
    """Positions within one token of the diagonal, start + step / ends x length: bool [batch, heads, query]."""
    step, ends, start, length = diagonal(observation)
    # the border is a fraction, so both sides are compared as integers, times `ends`
    apart = (places - start[:, None]) * ends[:, None] - (step * length)[:, None]
    return apart.abs() <= ends[:, None]
