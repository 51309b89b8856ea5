"""Induction: how much of a head's attention goes to what came after the same token before."""

from dataclasses import dataclass

from torch import Tensor

from headroles.scores.base import Observation, Score, Sums
from headroles.tables.frame import Kind

NO_REPEATS = (
    "in no sentence does a token occur twice; try hr.repeated_tokens(tokenizer, 100), random tokens twice in a row"
)


@dataclass(frozen=True)
class Induction(Score):
    """Mean weight on the tokens that followed earlier occurrences of the query's token: "prefix matching".

    Over the real queries whose token occurred before them. On sequences of random tokens, each twice in a row
    (`hr.repeated_tokens`), nothing else can be copied from (Olsson et al. 2022, "In-context learning and induction heads").
    """

    kinds = ("dec-self",)
    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """The sum of that weight."""
        followed = (
            earlier(observation).roll(1, -1).tril(observation.first - 1)
        )  # the key after the same token; never the query itself
        copied = (observation.on_real * followed[:, None]).sum(-1)  # [batch, heads, query]
        return {"weight": observation.over_queries(copied, repeats(observation))}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """How many real queries occurred before."""
        return {"queries": (repeats(observation) & observation.queries.content).sum(-1, keepdim=True)}

    def nothing(self, _column: str, _kind: Kind, /) -> str:
        """Text in which no token comes twice."""
        return NO_REPEATS

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """`induction`; NaN where no token occurs twice."""
        return {"induction": sums["weight"] / sums["queries"]}


def earlier(observation: Observation) -> Tensor:
    """Which real tokens before it are the same as each token: bool [batch, query, key]."""

    def same() -> Tensor:
        alike = observation.queries.ids[:, :, None] == observation.keys.ids[:, None]
        return (alike & observation.keys.content[:, None]).tril(observation.first - 1)

    return observation.queries.keep(earlier, same)


def repeats(observation: Observation) -> Tensor:
    """Which tokens occurred before, as real ones: bool [batch, query]."""
    return earlier(observation).any(-1)


@dataclass(frozen=True)
class Duplicate(Score):
    """Mean weight on earlier occurrences of the query's own token, over the real queries that have any.

    A "duplicate token head" (Wang et al. 2022, "Interpretability in the wild").
    """

    kinds = ("dec-self",)
    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """The sum of that weight."""
        same = (observation.on_real * earlier(observation)[:, None]).sum(-1)  # [batch, heads, query]
        return {"weight": observation.over_queries(same, repeats(observation))}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """How many real queries occurred before."""
        return {"queries": (repeats(observation) & observation.queries.content).sum(-1, keepdim=True)}

    def nothing(self, _column: str, _kind: Kind, /) -> str:
        """Text in which no token comes twice."""
        return NO_REPEATS

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """`duplicate`; NaN where no token occurs twice."""
        return {"duplicate": sums["weight"] / sums["queries"]}
