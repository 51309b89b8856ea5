"""Alignment: a target token attends to the source words that it translates, or to the same relative position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor

from headroles.data.corpus import Linked
from headroles.models.replacements import needing
from headroles.patterns.base import Pattern
from headroles.patterns.observation import At, Observation
from headroles.patterns.simple import of_tokens, shared
from headroles.tables.arguments import one_of


@dataclass(frozen=True, repr=False)
class OfStep(Pattern):
    """Base class of patterns of target tokens, at the step that has read the token or at the one that predicts it."""

    at: At = "read"
    kinds: ClassVar[Any] = ("cross",)

    def __post_init__(self) -> None:
        one_of("at", self.at, get_args(At))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.at == 'read' else f'at={self.at!r}'})"

    def view(self, observation: Observation) -> Observation:
        """Return the observation with the tokens that its queries read, or predict."""
        return observation.of_step(self.at)


@dataclass(frozen=True, repr=False)
class Alignment(OfStep):
    """The source words that are linked with the target word (`hr.read(..., links=)`), all their tokens alike.

    In a language model both are words of one text (`Corpus.joined`). The target word is the one that the decoder
    reads: there attention finds the translation better (Chen et al. 2020, arXiv 2004.14837). With `at="next"` it is the
    one that it predicts.

    Args:
        at: "read" or "next".
    """

    kinds = ("cross", "dec-self")
    needs = needing("links")
    about = "at the words that it translates"

    def targets(self, observation: Observation) -> Tensor:
        """Return equal weights on the tokens of the linked words."""
        words = self.view(observation).queries.words
        return shared(of_tokens(links(observation), words, observation.keys.words))


def links(observation: Observation) -> Tensor:
    """Return which words are linked: bool [batch, target word, source word], the last for none.

    In a decoder's own attention both are words of one text, the source word before the target word.
    """
    views = observation.queries, observation.keys

    def linked() -> Tensor:
        sizes = [max((len(sentence.spans) for sentence in view.sentences if sentence), default=0) for view in views]
        pairs = torch.zeros(len(views[0].sentences), *(size + 1 for size in sizes), dtype=torch.bool)
        for row, (target, pair) in enumerate(zip(*(view.sentences for view in views), strict=True)):
            read = pair if isinstance(pair, Linked) and pair.target is None else getattr(pair, "target", None)
            for source, place in pair.links if isinstance(pair, Linked) and read == target else ():
                pairs[row, place, source] = True
        return pairs.to(views[0].ids.device)

    return views[1].keep("links", linked)


@dataclass(frozen=True, repr=False)
class Diagonal(OfStep):
    """The source token on the diagonal: as far in the source as the query is in the target, rounded down at halves.

    Args:
        at: Whether the query is the token that the decoder reads ("read") or predicts ("next").
    """

    about = "onward through the source"

    def targets(self, observation: Observation) -> Tensor:
        """Return weight 1 on the token on the diagonal."""
        step, ends, start, length = diagonal(self.view(observation))
        place = start + (2 * step * length + ends - 1) // (2 * ends)  # [batch, query]
        keys = torch.arange(observation.keys.ids.shape[1], device=place.device)
        return ((place[..., None] == keys) & observation.keys.content[:, None]).float()


def diagonal(observation: Observation) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the step of each query, [batch, query], the last step, the first key and the number of keys after it."""
    step = observation.queries.content.cumsum(-1) - 1  # the number of content tokens before: [batch, query]
    ends = (observation.queries.content.sum(-1, keepdim=True) - 1).clamp(min=1)  # [batch, 1]
    length = observation.keys.content.sum(-1, keepdim=True) - 1
    return step, ends, observation.keys.content.int().argmax(-1, keepdim=True), length
