"""Scores of heads that find what a long text says: what they copy, where the question looks, what they write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from headroles.data.probes import Needle
from headroles.scores.base import QUERIES, Observation, Score
from headroles.tables.arguments import one_of

MISSING = "no text that these heads read has a needle in it; try hr.needles(tokenizer) and a language model"


@dataclass(frozen=True)
class Retrieval(Score):
    """Share of the needle's tokens that a head copies: its largest weight is on the token that comes next.

    The queries are the tokens of the repeated needle but the last. As in the source, all keys compete, the attention
    sink too, and a head with a score above 0.1 is a retrieval head (Wu et al. 2024, section 2). In the authors' code
    the model writes the answer, and only answers with more than half of the needle's words count. Here the needle is
    read, so that a model that fails has a score too.
    """

    kinds = ("dec-self",)
    in_parts = True
    is_share = True
    missing = MISSING

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Count the queries with the largest weight on the needle's next token: [batch, heads]."""
        wanted = _next(observation)
        values, places = observation.weights.max(-1)
        hits = (places == wanted[:, None]) & (values > 0)
        return {"retrieval": observation.over_queries(hits, wanted >= 0)}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count the queries: [batch, heads or 1]."""
        return {QUERIES: observation.count(_next(observation) >= 0)}


@dataclass(frozen=True)
class Passage(Score):
    """Mean weight of the question's tokens on the passage that answers it: a "query-focused retrieval head".

    The weight is summed over the tokens of the passage (QRHead: Zhang et al. 2025, "Query-focused retrieval heads
    improve long-context reasoning and re-ranking", section 3). All keys compete, the attention sink too. The source
    also subtracts the weight from a question without content; here nothing is subtracted.
    """

    kinds = ("dec-self",)
    in_parts = True
    missing = "no text that these heads read asks for a passage; try hr.hidden_facts(tokenizer) and a language model"

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Sum the weights: [batch, heads]."""
        on_passage = (observation.weights * _passage(observation)[:, None, None]).sum(-1)
        return {"passage": observation.over_queries(on_passage, _asking(observation))}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count the question's tokens: [batch, heads or 1]."""
        return {QUERIES: observation.count(_asking(observation))}


@dataclass(frozen=True)
class Contribution(Score):
    """Mean over answer tokens of what a head writes into their logit from the passage, less that from elsewhere.

    A head writes from key j into the logit of y what its attention to j times f(x_j) has along the unembedding of y,
    without the last norm. The sum over the passage is compared with that over all other keys, scaled to as many keys
    (LOCOS: Gema et al. 2026, "Logit-contribution scoring identifies non-literal retrieval heads"). In the source the
    model writes the answer, and only right answers count. Here the answer is read. In logits.
    """

    kinds = ("dec-self",)
    in_parts = True
    missing = MISSING

    def __post_init__(self) -> None:
        one_of("weights", self.weights, ("attention",))

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Sum the differences: [batch, heads]."""
        tokens = _predicted(observation)
        assert observation.towards is not None  # an attention pass gives it
        written = observation.weights * observation.towards(tokens.clamp(min=0))  # [batch, heads, query, key]
        passage = _passage(observation)
        size, keys = passage.sum(-1, keepdim=True), observation.keys.attention_mask.cumsum(-1)[:, observation.places]
        from_passage = (written * passage[:, None, None]).sum(-1)
        elsewhere = (written.sum(-1) - from_passage) * (size / (keys - size).clamp(min=1))[:, None]
        return {"contribution": observation.over_queries(from_passage - elsewhere, tokens >= 0)}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count the answer's tokens: [batch, heads or 1]."""
        return {QUERIES: observation.count(_predicted(observation) >= 0)}


def _next(observation: Observation) -> Tensor:
    """Return the place in the needle of the token after each query, -1 outside the answer: [batch, query]."""
    keys = observation.keys

    def places() -> Tensor:
        wanted = torch.full_like(keys.ids, -1)
        for row, sentence in enumerate(keys.sentences):
            if isinstance(sentence, Needle):
                copied = torch.arange(sentence.needle + 1, sentence.needle + sentence.size)
                wanted[row, sentence.answer : sentence.answer + sentence.size - 1] = copied.to(wanted)
        return wanted

    return keys.keep("needle", places)[:, observation.places]


def _predicted(observation: Observation) -> Tensor:
    """Return the token of the answer that each query predicts, -1 for other queries: [batch, query]."""
    keys = observation.keys

    def tokens() -> Tensor:
        wanted = torch.full_like(keys.ids, -1)
        for row, sentence in enumerate(keys.sentences):
            if isinstance(sentence, Needle) and sentence.passage[1]:  # it is known where the answer stands
                answer = slice(sentence.answer, sentence.answer + sentence.size)
                wanted[row, sentence.answer - 1 : answer.stop - 1] = keys.ids[row, answer]
        return wanted

    return keys.keep("predicted", tokens)[:, observation.places]


def _asking(observation: Observation) -> Tensor:
    """Return which queries are tokens of the question: bool [batch, query]."""
    spans = partial(_spans, observation, lambda needle: (needle.question, needle.answer if needle.question else 0))
    return observation.keys.keep("question", spans)[:, observation.places]


def _passage(observation: Observation) -> Tensor:
    """Return which keys are the passage with the answer: bool [batch, key]."""
    return observation.keys.keep("passage", partial(_spans, observation, lambda needle: needle.passage))


def _spans(observation: Observation, span: Callable[[Needle], tuple[int, int]]) -> Tensor:
    """Return which keys are in a span of their text: bool [batch, key]."""
    within = torch.zeros_like(observation.keys.ids, dtype=torch.bool)
    for row, sentence in enumerate(observation.keys.sentences):
        if isinstance(sentence, Needle):
            within[row, slice(*span(sentence))] = True
    return within
