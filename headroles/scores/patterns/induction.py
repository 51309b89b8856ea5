"""Induction: how much of a head's attention falls on the tokens that followed the same token before."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from headroles.patterns.induction import earlier, followed
from headroles.scores.base import Observation, Score, Sums
from headroles.tables.frame import Kind

NO_REPEATS = (
    "in no sentence does a token occur twice; try hr.repeated_tokens(tokenizer, 100), random tokens twice in a row"
)


class _OfRepeats:
    """A score of content queries with an earlier occurrence of their token."""

    kinds: ClassVar[tuple[Kind, ...]] = ("dec-self",)
    in_parts: ClassVar[bool] = True

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count these queries: [batch, heads or 1]."""
        return {"queries": observation.count(repeats(observation))}

    def nothing(self, _column: str, _kind: Kind, /) -> str:
        """Return the reason: no token occurs twice."""
        return NO_REPEATS


@dataclass(frozen=True)
class Induction(_OfRepeats, Score):
    """Mean weight on the tokens that followed earlier occurrences of the query's token: "prefix matching".

    The mean is over content queries with such an occurrence. In sequences of random tokens repeated once
    (`headroles.repeated_tokens`) nothing else can be copied (Olsson et al. 2022, "In-context learning and induction
    heads").
    """

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Sum the weights: [batch, heads]."""
        copied = (observation.on_real * followed(observation)[:, None]).sum(-1)  # [batch, heads, query]
        return {"weight": observation.over_queries(copied, repeats(observation))}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `induction`; NaN where no token occurs twice."""
        return {"induction": sums["weight"] / sums["queries"]}


@dataclass(frozen=True)
class Duplicate(_OfRepeats, Score):
    """Mean weight on earlier occurrences of the query's own token, over content queries with such an occurrence.

    A "duplicate-token head" (Wang et al. 2022, "Interpretability in the wild").
    """

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Sum the weights: [batch, heads]."""
        same = (observation.on_real * earlier(observation)[:, None]).sum(-1)  # [batch, heads, query]
        return {"weight": observation.over_queries(same, repeats(observation))}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `duplicate`; NaN where no token occurs twice."""
        return {"duplicate": sums["weight"] / sums["queries"]}


def repeats(observation: Observation) -> Tensor:
    """Return which queries have an earlier occurrence of their token: bool [batch, query]."""
    return earlier(observation).any(-1)
