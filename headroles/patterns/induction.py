"""Induction: each query is about earlier occurrences of its own token, or about what followed them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headroles.patterns.base import Pattern
from headroles.patterns.observation import Observation
from headroles.patterns.sink import shared


@dataclass(frozen=True)
class Induction(Pattern):
    """The tokens that followed earlier occurrences of the query's token (Olsson et al. 2022)."""

    kinds = ("dec-self",)
    about = "after the same token before"

    def targets(self, observation: Observation) -> Tensor:
        """Return equal weights on these tokens."""
        return shared(followed(observation))


@dataclass(frozen=True)
class Duplicate(Pattern):
    """Earlier occurrences of the query's own token (Wang et al. 2022)."""

    kinds = ("dec-self",)
    about = "at the same token before"

    def targets(self, observation: Observation) -> Tensor:
        """Return equal weights on these tokens."""
        return shared(earlier(observation))


def earlier(observation: Observation) -> Tensor:
    """Return which earlier content tokens equal each query's token: bool [batch, query, key]."""

    def same() -> Tensor:
        alike = observation.queries.ids[:, :, None] == observation.keys.ids[:, None]
        return (alike & observation.keys.content[:, None]).tril(observation.first - 1)

    return observation.queries.keep(earlier, same)


def followed(observation: Observation) -> Tensor:
    """Return which tokens followed an earlier occurrence of each query's token: bool [batch, query, key]."""
    after = earlier(observation).roll(1, -1)  # the key after the same token ...
    return after.tril(observation.first - 1)  # ... but never the query itself
