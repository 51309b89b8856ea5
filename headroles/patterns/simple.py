"""Simple patterns: a fixed offset, sinks, all tokens, the rarest token, and repeated tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from headroles.models.replacements import needing
from headroles.models.sites import Site
from headroles.models.tokens.alignment import NO_WORD
from headroles.patterns.base import Pattern
from headroles.patterns.observation import SELF, Observation
from headroles.tables.arguments import number


@dataclass(frozen=True)
class Offset(Pattern):
    """The content token `offset` positions later (Voita et al. 2019, section 5.1): -1 is the previous token.

    Args:
        offset: The distance in tokens; negative before the query.
    """

    offset: int
    kinds = SELF
    about = "at a fixed offset"

    def __post_init__(self) -> None:
        number("offset", self.offset, least=-math.inf, whole=True)

    def targets(self, observation: Observation) -> Tensor:
        """Return weight 1 on the token at the offset."""
        places = observation.places + self.offset  # [query]
        keys = torch.arange(observation.keys.ids.shape[1], device=places.device)
        return ((places[:, None] == keys) & self.exists(observation)[..., None]).float()

    def exists(self, observation: Observation) -> Tensor:
        """Return for which queries the offset exists: bool [batch, query]."""
        if observation.causal and self.offset > 0:
            return torch.zeros_like(observation.queries.content)
        return shifted(observation.keys.content, -self.offset)[:, observation.places]

    def check(self, site: Site) -> None:
        """Raise ValueError for cross-attention, and for tokens after the query in a decoder."""
        super().check(site)
        if site.kind == "dec-self" and self.offset > 0:
            raise ValueError(f"offset must be 0 or below for decoder heads, got {self} for {site.name}")


@dataclass(frozen=True)
class Previous(Offset):
    """The token before: the pattern of a previous-token head."""

    offset: int = field(default=-1, init=False, repr=False)
    about = "at the token before"


@dataclass(frozen=True)
class First(Pattern):
    """The first token of any sort: the attention sink of decoders (Xiao et al. 2023)."""

    about = "at the first token"

    def targets(self, observation: Observation) -> Tensor:
        """Return weight 1 on the first token that is not padding."""
        mask = observation.keys.attention_mask
        first = torch.zeros_like(mask, dtype=torch.float32).scatter_(1, mask.int().argmax(-1, keepdim=True), 1.0)
        return first[:, None].expand(-1, observation.queries.ids.shape[1], -1)


@dataclass(frozen=True)
class Special(Pattern):
    """All special tokens alike, such as CLS and SEP (Clark et al. 2019); in a decoder only before the query."""

    about = "at special tokens"
    needs = needing("special")

    def targets(self, observation: Observation) -> Tensor:
        """Return equal weights on special tokens."""
        keys = observation.keys
        special = (keys.attention_mask & ~keys.content)[:, None].expand(-1, observation.queries.ids.shape[1], -1)
        return shared(special.tril(observation.first) if observation.causal else special)


@dataclass(frozen=True)
class Uniform(Pattern):
    """All tokens except padding equally; in a decoder, those up to the query."""

    about = "everywhere"

    def targets(self, observation: Observation) -> Tensor:
        """Return equal weights."""
        keys = observation.keys.attention_mask[:, None].expand(-1, observation.queries.ids.shape[1], -1)
        return shared(keys.tril(observation.first) if observation.causal else keys)


@dataclass(frozen=True)
class Streaming(Pattern):
    """The head's own weights on the first and the latest tokens, renormalised (Xiao et al. 2023).

    Args:
        sink: Number of tokens at the start that every query keeps.
        recent: Number of tokens up to the query that it keeps, including itself.
    """

    sink: int = 4
    recent: int = 256
    kinds = SELF
    needs = needing("weights")
    about = "at the first and the latest tokens"

    def __post_init__(self) -> None:
        number("sink", self.sink)
        number("recent", self.recent, least=1)

    def targets(self, observation: Observation) -> Tensor:
        """Return the head's weights on these tokens, renormalised: [batch, heads, query, key]."""
        weights = self._kept(observation)
        return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)

    def share(self, observation: Observation, share: Tensor) -> Tensor:
        """Return the share of weights that a learned sink leaves, if other tokens are left out of the softmax."""
        kept = self._kept(observation).sum(-1, keepdim=True)
        return kept / (kept + 1 - share)

    def _kept(self, observation: Observation) -> Tensor:
        mask = observation.keys.attention_mask
        start = mask.int().argmax(-1)[:, None, None]  # the first token that is not padding
        keys = torch.arange(mask.shape[1], device=mask.device)
        apart = (observation.places[:, None] - keys).abs()  # [query, key]
        kept = (keys - start < self.sink) | (apart < self.recent)  # [batch, query, key]
        return observation.weights.float() * (kept & mask[:, None])[:, None]


@dataclass(frozen=True)
class Rarest(Pattern):
    """The rarest token of the sentence, if it is not among the most frequent ones (Voita et al. 2019, section 5.3).

    In a decoder, the pattern applies to queries at or after that token. Of equally rare tokens the first is taken.

    Args:
        frequent: Number of most frequent tokens that are not rare.
    """

    frequent: int = 500
    needs = needing("counts")
    about = "at the rarest token"

    def targets(self, observation: Observation) -> Tensor:
        """Return weight 1 on the rarest token."""
        place, counted = self.rarest(observation)
        keys = torch.arange(observation.keys.ids.shape[1], device=place.device)
        return ((place[:, None, None] == keys) & counted[..., None]).float()

    def rarest(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Return the position of the rarest token, [batch], and the queries that count, bool [batch, query]."""
        keys = observation.keys
        never = torch.iinfo(observation.counts.dtype).max
        place = observation.counts[keys.ids].masked_fill(~keys.content, never).argmin(-1)  # [batch]
        rarest = keys.ids.gather(-1, place[:, None])  # [batch, 1]
        counted = (observation.ranks[rarest] >= self.frequent) & keys.content.any(-1, keepdim=True)  # [batch, 1]
        counted = counted & observation.counts.any()  # without counts every token would be the rarest
        counted = counted.expand_as(observation.queries.content)
        if observation.causal:
            counted = counted & (observation.places >= place[:, None])
        return place, counted


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
    """Earlier occurrences of the query's token (Wang et al. 2022)."""

    kinds = ("dec-self",)
    about = "at the same token before"

    def targets(self, observation: Observation) -> Tensor:
        """Return equal weights on these tokens."""
        return shared(earlier(observation))


def shared(chosen: Tensor) -> Tensor:
    """Return equal weights, float32, on the chosen keys of each query: bool [..., query, key]."""
    weights = chosen.float()
    return weights / weights.sum(-1, keepdim=True).clamp(min=1)


def of_tokens(pairs: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """Return pairs of words, bool [batch, word, word] with a last one for none, as pairs of tokens [batch, token]."""
    rows = queries.masked_fill(queries == NO_WORD, pairs.shape[1] - 1)
    columns = keys.masked_fill(keys == NO_WORD, pairs.shape[2] - 1)
    of_queries = pairs.gather(1, rows[..., None].expand(-1, -1, pairs.shape[2]))
    return of_queries.gather(2, columns[:, None].expand(-1, rows.shape[1], -1))


def earlier(observation: Observation) -> Tensor:
    """Return which earlier content tokens equal each query's token: bool [batch, query, key]."""

    def same() -> Tensor:
        alike = observation.queries.ids[:, :, None] == observation.keys.ids[:, None]
        return (alike & observation.keys.content[:, None]).tril(observation.first - 1)

    return observation.queries.keep(earlier, same)


def followed(observation: Observation) -> Tensor:
    """Return which tokens followed an earlier occurrence of each query's token: bool [batch, query, key]."""
    return earlier(observation).roll(1, -1).tril(observation.first - 1)  # never the query itself


def shifted(values: Tensor, by: int) -> Tensor:
    """Return values moved along the last dimension, filled up with 0 or False."""
    size = values.shape[-1]
    by = max(-size, min(by, size))
    return pad(values, (by, -by))  # a negative one cuts off
