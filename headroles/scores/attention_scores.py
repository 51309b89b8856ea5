"""Scores of a query's weights: how sharp they are, how far, at which offset, on the sink, on a pattern's targets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from headroles.patterns import simple
from headroles.patterns.base import OfPattern, Pattern
from headroles.patterns.observation import LEAST
from headroles.scores.base import QUERIES, SELF, Observation, Score, Sums


@dataclass(frozen=True)
class Confidence(Score):
    """Mean over content queries of the largest weight on a content key (Voita et al. 2019, section 4)."""

    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Sum the largest weights: [batch, heads]."""
        return {"confidence": observation.over_queries(observation.top[0])}


@dataclass(frozen=True)
class Entropy(Score):
    """Mean over content queries of the entropy of the attention distribution, in nats (Clark et al. 2019, section 3.3).

    All keys but padding count, special tokens included: entropy needs the whole distribution.
    """

    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Sum the entropies: [batch, heads]."""
        tiny = torch.finfo(observation.weights.dtype).tiny  # 0 log 0 is 0
        surprise = observation.weights.clamp(min=tiny).log_()  # in place: twice as fast as torch.special.entr
        return {"entropy": -observation.over_queries(surprise.mul_(observation.weights).sum(-1))}


@dataclass(frozen=True)
class Distance(Score):
    """Mean distance in tokens from query to key, weighted by attention on content keys (Vig & Belinkov 2019)."""

    kinds = SELF
    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Sum weight times distance, and the weights: each [batch, heads]."""
        keys = torch.arange(observation.weights.shape[-1], device=observation.weights.device)
        apart = (observation.places[:, None] - keys).abs().to(observation.weights.dtype)  # [query, key]
        far = observation.over_queries((observation.on_real * apart).sum(-1))
        return {"far": far, "mass": observation.on_keys(observation.keys.content)}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `distance`, in tokens."""
        return {"distance": sums["far"] / sums["mass"]}


@dataclass(frozen=True)
class Position(Score):
    """Share of content queries i with the largest weight on content token i + d, among those for which i + d exists.

    In a decoder the tokens after a query do not exist (Voita et al. 2019, section 5.1).

    Args:
        offsets: the values of d, in tokens.
    """

    offsets: tuple[int, ...] = (-2, -1, 0, 1, 2)
    kinds = SELF
    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Count the queries with the largest weight at each offset: [batch, heads, offset]."""
        offset = observation.top[1] - observation.places
        hits = [observation.over_queries(offset == d, simple.Offset(d).exists(observation)) for d in self.offsets]
        return {"hits": torch.stack(hits, -1)}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count the content queries for which each offset exists: [batch, heads or 1, offset]."""
        exists = [simple.Offset(d).exists(observation) for d in self.offsets]
        return {"exists": torch.stack([observation.count(where) for where in exists], -1)}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `position[d]`, the largest of them `position[best]`, and its d `position[offset]`."""
        shares = sums["hits"] / sums["exists"]  # [..., heads, offset]; NaN where an offset never exists
        best, which = shares.nan_to_num(-1.0).max(-1)
        offsets = torch.tensor(self.offsets, dtype=shares.dtype, device=shares.device)[which]
        never = best < 0  # no offset ever exists
        return self._by_offset(shares) | {
            "position[best]": best.masked_fill(never, torch.nan),
            "position[offset]": offsets.masked_fill(never, torch.nan),
        }

    def counted(self, sums: Sums) -> dict[str, Tensor]:
        """Return the number of queries for which each offset exists; for the best offset, the largest number."""
        return self._by_offset(sums["exists"]) | {"position[best]": sums["exists"].amax(-1)}

    def _by_offset(self, values: Tensor) -> dict[str, Tensor]:
        return {f"position[{d:+d}]" if d else "position[0]": values[..., i] for i, d in enumerate(self.offsets)}


@dataclass(frozen=True)
class Previous(Score):
    """Mean weight on the token before, over content queries that follow a content token: a "previous-token head".

    Such a head serves induction (Elhage et al. 2021; Olsson et al. 2022). `headroles.repeated_tokens` makes random
    tokens as a control. `position[-1]` counts the largest weights instead.
    """

    kinds = SELF
    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Sum the weights: [batch, heads]."""
        before = (observation.places - 1).clamp(min=0)[:, None].expand(*observation.weights.shape[:-1], 1)
        weights = observation.on_real.gather(-1, before).squeeze(-1)  # [batch, heads, query]
        return {"previous": observation.over_queries(weights, _follows(observation))}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count the content queries that follow a content token: [batch, heads or 1]."""
        return {QUERIES: observation.count(_follows(observation))}


@dataclass(frozen=True)
class Sink(Score):
    """Mean over content queries of the weight on special tokens (Clark et al. 2019) and on the first token of any sort.

    An attention sink absorbs the weight of idle heads: CLS and SEP in BERT, the first token in decoders
    (Xiao et al. 2023).
    """

    in_parts = True
    of_sink = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Sum the weights on special tokens and on the first token: each [batch, heads]."""
        special = observation.on_keys(observation.keys.attention_mask & ~observation.keys.content)
        return {"sink[special]": special, "sink[first]": observation.received[..., 0].double()}


@dataclass(frozen=True)
class Resting(Score):
    """Share of content queries with less than `least` of their weight off the sink, which do not count without it.

    The sink is the first token of any sort and special tokens. The first token of a decoder, which can only attend to
    itself, is left out as a query.

    Args:
        least: the least weight off the sink of a query that counts.
    """

    least: float = LEAST
    in_parts = True
    of_sink = True
    is_share = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Count the queries: [batch, heads]."""
        return {"resting": observation.over_queries(observation.off_sink < self.least, observation.sees_others)}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count the content queries that see more than the first token: [batch, 1]."""
        return {QUERIES: observation.count(observation.sees_others)}


@dataclass(frozen=True)
class Measured(OfPattern, Score):
    """Share of queries with the largest weight on a target of a pattern, and the mean weight on its targets.

    Both are over the content queries that see a target; keys are content tokens and targets.
    `hr.score(model, tokenizer, corpus, [Offset(-3)])` is short for `[Measured(Offset(-3))]`.

    Args:
        pattern: The pattern.
    """

    pattern: Pattern = field(default=simple.Previous())
    in_parts: ClassVar[Any] = property(lambda self: getattr(self.pattern, "at", "read") == "read")  # of the next query
    by_head = True

    @classmethod
    def name(cls) -> str:
        """Return the name of the columns."""
        return "pattern"

    @property
    def label(self) -> str:
        """Prefix of the score's columns."""
        return f"{self.column(self.name())}[{self.pattern.label}]"

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Count the queries with the largest weight on a target, and sum the weights on targets: [batch, heads]."""
        targets, seen = self.targets(observation), self.pattern.view(observation)
        weights = observation.weights * (targets | observation.keys.content[:, None, None])
        values, places = weights.max(-1)
        hits = targets.expand_as(weights).gather(-1, places[..., None]).squeeze(-1) & (values > 0)
        mass = (weights * targets).sum(-1)
        return {self._part("share"): seen.over_queries(hits), self._part("mass"): seen.over_queries(mass)}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count the content queries to which the pattern applies: [batch, heads]."""
        queries = (self.targets(observation).any(-1) & self.pattern.view(observation).counting()).sum(-1)
        return {QUERIES: queries.expand(-1, observation.weights.shape[1])}

    def counted(self, sums: Sums) -> dict[str, Tensor]:
        """Return the number of queries of the share."""
        return {self._part("share"): sums[QUERIES]}

    def targets(self, observation: Observation) -> Tensor:
        """Return which keys each query is about: bool [batch, heads or 1, query, key]."""
        targets = self.pattern.targets(observation) > 0
        targets = targets if targets.ndim == 4 else targets[:, None]
        targets = targets if observation.allowed is None else targets & observation.allowed
        return targets & observation.keys.content[:, None, None] if observation.of == "nosink" else targets

    def _part(self, name: str) -> str:
        return f"pattern[{self.pattern.label} {name}]"


def _follows(observation: Observation) -> Tensor:
    """Return which queries follow a content token: bool [batch, query]."""
    return observation.keys.content.roll(1, -1)[:, observation.places] & (observation.places > 0)
