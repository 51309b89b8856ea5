"""Previous: how much of a head's attention falls on the token before."""

from dataclasses import dataclass

from torch import Tensor

from headroles.scores.base import SELF, Observation, Score, Sums


@dataclass(frozen=True)
class Previous(Score):
    """Mean weight on the token before, over content queries that follow a content token: a "previous-token head".

    Such a head serves induction (Elhage et al. 2021; Olsson et al. 2022). On random tokens, the control, nothing but
    their position can bring it there (`headroles.repeated_tokens`). `position[-1]` counts the largest weights instead.
    """

    kinds = SELF
    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Sum the weights: [batch, heads]."""
        before = (observation.places - 1).clamp(min=0)[:, None].expand(*observation.weights.shape[:-1], 1)
        weights = observation.on_real.gather(-1, before).squeeze(-1)  # [batch, heads, query]
        return {"weight": observation.over_queries(weights, _follows(observation))}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count the content queries that follow a content token: [batch, heads or 1]."""
        return {"queries": observation.count(_follows(observation))}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `previous`."""
        return {"previous": sums["weight"] / sums["queries"]}


def _follows(observation: Observation) -> Tensor:
    """Which queries follow a content token: bool [batch, query]."""
    return observation.keys.content.roll(1, -1)[:, observation.places] & (observation.places > 0)
