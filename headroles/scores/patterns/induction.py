"""Induction: how much of a head's attention goes to what came after the same token before."""

from dataclasses import dataclass

from torch import Tensor

from headroles.scores.base import Score, Seen, Sums


@dataclass(frozen=True)
class Induction(Score):
    """Mean weight on the tokens that followed earlier occurrences of the query's token: "prefix matching".

    Over the real queries whose token occurred before them. On sequences of random tokens, each twice in a row
    (`hr.repeated`), nothing else can be copied from (Olsson et al. 2022, "In-context learning and induction heads").
    """

    kinds = ("dec-self",)
    in_parts = True

    def tally(self, seen: Seen) -> dict[str, Tensor]:
        """The sum of that weight."""
        followed = (
            earlier(seen).roll(1, -1).tril(seen.first - 1)
        )  # the key after the same token; never the query itself
        copied = (seen.on_real * followed[:, None]).sum(-1)  # [batch, heads, query]
        return {"weight": seen.over_queries(copied, repeats(seen))}

    def ground(self, seen: Seen) -> dict[str, Tensor]:
        """How many real queries occurred before."""
        return {"queries": (repeats(seen) & seen.queries.real).sum(-1, keepdim=True)}

    def finish(self, sums: Sums) -> dict[str, Tensor]:
        """`induction`; NaN where no token occurs twice."""
        return {"induction": sums["weight"] / sums["queries"]}


def earlier(seen: Seen) -> Tensor:
    """Which real tokens before it are the same as each token: bool [batch, query, key]."""

    def same() -> Tensor:
        alike = seen.queries.ids[:, :, None] == seen.keys.ids[:, None]
        return (alike & seen.keys.real[:, None]).tril(seen.first - 1)

    return seen.queries.keep(earlier, same)


def repeats(seen: Seen) -> Tensor:
    """Which tokens occurred before, as real ones: bool [batch, query]."""
    return earlier(seen).any(-1)


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
