"""Dependency: a query attends to the word that its word depends on, or to the words that depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from headroles.models.batching import TokenView
from headroles.models.replacements import needing
from headroles.patterns.base import Pattern
from headroles.patterns.observation import SELF, Observation
from headroles.patterns.simple import of_tokens, shared
from headroles.tables.arguments import one_of

Way = Literal["dep>head", "head>dep"]
WAYS: tuple[Way, ...] = ("dep>head", "head>dep")


@dataclass(frozen=True)
class Dependency(Pattern):
    """The other word of a dependency in a parsed sentence (Voita et al. 2019, section 5.2), all its pieces alike.

    In a decoder only words before the query count.

    Args:
        relation: A relation of Universal Dependencies, such as "nsubj".
        way: From the dependent to its head, or from the head to its dependents.
        subtypes: Whether subtypes such as `nsubj:pass` count as their relation.
    """

    relation: str
    way: Way = "dep>head"
    subtypes: bool = False
    kinds = SELF
    needs = needing("trees")
    about = "along a dependency"

    def __post_init__(self) -> None:
        one_of("way", self.way, WAYS)

    def targets(self, observation: Observation) -> Tensor:
        """Return equal weights on the pieces of the other words."""
        view = observation.keys  # all tokens of the sentence; the queries may be some of them
        causal = observation.causal

        def pairs() -> Tensor:
            both = related_words(view, (self.relation,), subtypes=self.subtypes, causal=causal)
            return pad(both[:, WAYS.index(self.way)], (0, 1, 0, 1))

        return shared(of_tokens(view.keep((self, causal), pairs), view.words[:, observation.places], view.words))


def related_words(view: TokenView, relations: Sequence[str], *, subtypes: bool, causal: bool) -> Tensor:
    """Return which words stand in which relation: bool [batch, relation and way, query word, key word]."""
    longest = max((len(sentence.spans) for sentence in view.sentences if sentence), default=0) or 1
    pairs = torch.zeros(len(view.sentences), len(WAYS) * len(relations), longest, longest, dtype=torch.bool)
    for row, word, head, relation in view.dependencies():
        label = relation.partition(":")[0] if subtypes else relation
        if label in relations:
            place = len(WAYS) * relations.index(label)
            pairs[row, place, word, head] = pairs[row, place + 1, head, word] = True
    return (pairs.tril(-1) if causal else pairs).to(view.ids.device)
