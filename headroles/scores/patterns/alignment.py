"""Alignment: does a cross-attention head walk through the source as the target is written?"""

from dataclasses import dataclass

import torch
from torch import Tensor

from headroles.scores.base import Observation, Score, Sums


@dataclass(frozen=True)
class Alignment(Score):
    """Agreement of cross-attention with a monotone path, and with the diagonal.

    `alignment[monotone]` is Kendall's tau-a between the place of a target token and the place of the source token its
    largest weight falls on, mean over sentences of two target tokens or more: 1 for a strictly forward walk, -1 for a
    backward one, 0 for a head that stands still or jumps about. `alignment[diagonal]` is the share of target tokens
    whose largest weight falls within one token of the diagonal; in short sentences chance helps it. A target token is
    the one the decoder has read, not the one it writes next.
    """

    kinds = ("cross",)

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """The sum of the sentences' taus, and the hits of the diagonal: each [batch, heads]."""
        places = observation.top[1]  # [batch, heads, query]
        pairs = _pairs(observation.queries.content)
        short = places.to(torch.int16)
        order = (short[:, :, None, :] - short[:, :, :, None]).sign_()  # [batch, heads, earlier, later]
        agreement = order.mul_(pairs[:, None]).sum((-1, -2)).double()
        near = _on_diagonal(observation, places)
        return {"tau": agreement / pairs.sum((-1, -2)).clamp(min=1)[:, None], "near": observation.over_queries(near)}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Target tokens, and sentences that have two or more: each [batch, 1]."""
        queries = observation.queries.content.sum(-1, keepdim=True)
        return {"queries": queries, "sentences": queries > 1}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """`alignment[monotone]` and `alignment[diagonal]`."""
        monotone, diagonal = sums["tau"] / sums["sentences"], sums["near"] / sums["queries"]
        return {"alignment[monotone]": monotone, "alignment[diagonal]": diagonal}

    def counted(self, sums: Sums) -> dict[str, Tensor]:
        """How many target tokens there are."""
        return {"alignment[diagonal]": sums["queries"]}


def _pairs(content: Tensor) -> Tensor:
    """Which two tokens are both real, the first before the second: bool [batch, earlier, later]."""
    return (content[:, :, None] & content[:, None, :]).triu(1)


def _on_diagonal(observation: Observation, places: Tensor) -> Tensor:
    """Which places lie within one token of the diagonal: bool [batch, heads, query].

    The diagonal is the place in the source that stands as far on as the target token does in the target,
    start + step / ends x length. The border is a fraction, so it is compared in integers: both sides times `ends`.
    """
    step = observation.queries.content.cumsum(-1) - 1  # the number of real tokens before: [batch, query]
    ends = (observation.queries.content.sum(-1, keepdim=True) - 1).clamp(min=1)  # [batch, 1]
    length = observation.keys.content.sum(-1, keepdim=True) - 1
    start = observation.keys.content.int().argmax(-1, keepdim=True)
    apart = (places - start[:, None]) * ends[:, None] - (step * length)[:, None]
    return apart.abs() <= ends[:, None]
