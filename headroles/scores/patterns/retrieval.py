"""Retrieval: how often a head attends to the token of a needle that comes next."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headroles.data.probes import Needle
from headroles.scores.base import Observation, Score, Sums
from headroles.tables.frame import Kind

NO_NEEDLE = "no text that these heads read has a needle in it; try hr.needles(tokenizer) and a language model"


@dataclass(frozen=True)
class Retrieval(Score):
    """Share of the needle's tokens that a head copies: its largest weight is on the token that comes next.

    The queries are the tokens of the repeated needle but the last; of the first the head cannot know that a needle
    comes. As in the source, all keys compete, the attention sink too, and a head with a score above 0.1 is a retrieval
    head (Wu et al. 2024, section 2). In the authors' code the model writes the answer itself: a token counts that is
    written while the largest weight is on it in the needle, out of all tokens of the needle, and only answers with more
    than half of its words (ROUGE-1) are kept. Here the needle is read, so that a model that fails has a score too.
    """

    kinds = ("dec-self",)
    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Count the queries with the largest weight on the needle's next token: [batch, heads]."""
        wanted = _next(observation)
        values, places = observation.weights.max(-1)
        hits = (places == wanted[:, None]) & (values > 0)
        return {"hits": observation.over_queries(hits, wanted >= 0)}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count the queries: [batch, heads or 1]."""
        return {"queries": observation.count(_next(observation) >= 0)}

    def nothing(self, _column: str, _kind: Kind, /) -> str:
        """Return the reason: no needle."""
        return NO_NEEDLE

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `retrieval`; NaN without needles."""
        return {"retrieval": sums["hits"] / sums["queries"]}

    def counted(self, sums: Sums) -> dict[str, Tensor]:
        """Return the number of queries."""
        return {"retrieval": sums["queries"]}


def _next(observation: Observation) -> Tensor:
    """The place in the needle of the token after each query, -1 for queries outside the answer: [batch, query]."""
    keys = observation.keys

    def places() -> Tensor:
        wanted = torch.full_like(keys.ids, -1)
        for row, sentence in enumerate(keys.sentences):
            if isinstance(sentence, Needle):
                copied = torch.arange(sentence.needle + 1, sentence.needle + sentence.size)
                wanted[row, sentence.answer : sentence.answer + sentence.size - 1] = copied.to(wanted)
        return wanted

    return keys.keep("needle", places)[:, observation.places]
