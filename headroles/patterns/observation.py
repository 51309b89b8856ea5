"""Observation: the attention and the tokens of one site on one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from headroles.models.batching import TokenView
from headroles.tables.frame import Kind

SELF: tuple[Kind, ...] = ("enc-self", "dec-self")
Weights = Literal["attention", "norm", "nosink"]
At = Literal["read", "next"]  # the step that has read a token, or the one that predicts it
LEAST = 0.01  # of a query's weight off the sink; with less, it is not counted without the sink
UNCOUNTED = torch.zeros(0, dtype=torch.long)
NOWHERE = -2  # the key of a query with no weight on any content key; not next to a key either


@dataclass(frozen=True)
class Observation:
    """Attention of one site on one batch, or on a block of its queries where texts are long.

    Attributes:
        kind: attention kind of the site.
        weights: attention weights, [batch, heads, query, key].
        queries: token view on the query side.
        keys: token view on the key side.
        counts: how often each token occurs in the reference corpus of the key side, [vocabulary].
        ranks: frequency rank of each token, [vocabulary]; 0 is the most frequent token.
        first: position of the first query, above 0 in later blocks of queries.
        value_norms: computes ||f(x)|| of each key, [batch, heads, key] (`headroles.scores.attention`).
        towards: computes f(x) of each key along the unembedding of tokens, [batch, query]: [batch, heads, query, key].
        of: what `weights` are.
        layer: layer of the site; -1 where it is unknown.
        counted: which queries count for which head, bool [batch, heads, query]; None: all for all heads.
        allowed: which keys the model's mask allows, bool [batch, heads or 1, query, key]; None where it is unknown.
    """

    kind: Kind
    weights: Tensor
    queries: TokenView
    keys: TokenView
    counts: Tensor = UNCOUNTED
    ranks: Tensor = UNCOUNTED
    first: int = 0
    value_norms: Callable[[], Tensor] | None = None
    towards: Callable[[Tensor], Tensor] | None = None
    of: Weights = "attention"
    layer: int = -1
    counted: Tensor | None = None
    allowed: Tensor | None = None
    _without_sink: dict[float, Observation] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def places(self) -> Tensor:
        """Position of each query: [query]."""
        return torch.arange(self.first, self.first + self.weights.shape[-2], device=self.weights.device)

    def of_step(self, at: At) -> Observation:
        """Return the observation with queries that stand for the tokens that they read, or ("next") predict."""
        return self if at == "read" else replace(self, queries=self.queries.following)

    @property
    def causal(self) -> bool:
        """Whether queries attend only to keys at or before their own position."""
        return self.kind == "dec-self"

    @cached_property
    def on_real(self) -> Tensor:
        """Weights with non-content keys set to 0, not renormalised: [batch, heads, query, key]."""
        if self.of == "nosink":
            return self.weights
        return self.weights * self.keys.content[:, None, None]

    @cached_property
    def top(self) -> tuple[Tensor, Tensor]:
        """Largest weight on a content key and the first key that has it, or `NOWHERE`: each [batch, heads, query]."""
        values, places = self.on_real.max(-1)
        return values, places.masked_fill(values == 0, NOWHERE)

    @cached_property
    def received(self) -> Tensor:
        """Total weight that each key receives from all content queries: [batch, heads, key]."""
        rows = self.queries.content[:, None, None].to(self.weights.dtype)  # [batch, 1, 1, query]
        return (rows @ self.weights).squeeze(-2)

    @cached_property
    def norms(self) -> Tensor:
        """Norms ||alpha_ij f(x_j)|| of the vectors that a head moves from key j to query i: [batch, heads, query, key].

        f(x) = (x W_V + b_V) W_O, without the bias of the output projection, which belongs to no head (Kobayashi et al.
        2020, section 3, and the authors' code), and without the residual connection and the norm after it.
        """
        assert self.value_norms is not None  # an attention pass gives them
        return self.weights.abs() * self.value_norms().to(self.weights)[:, :, None]

    @cached_property
    def by_norm(self) -> Observation:
        """The same observation with `norms` as weights, each query's divided by their sum over all keys.

        The source does not divide; scores keep their range by it, and the largest key stays the same. Special tokens
        are in the sum. A query to which the head moves nothing has zeros.
        """
        whole = self.norms.sum(-1, keepdim=True)
        return replace(self, weights=self.norms / whole.masked_fill(whole == 0, 1), of="norm", value_norms=None)

    @cached_property
    def off_sink(self) -> Tensor:
        """Weight of each query on content keys except the first token of any sort: [batch, heads, query]."""
        return (self.weights @ self.keys.without_first.content[:, None, :, None].to(self.weights)).squeeze(-1)

    @property
    def sees_others(self) -> Tensor:
        """Which queries see a token other than the first; in a decoder all but the first: bool [batch, query]."""
        if not self.causal:
            return torch.ones_like(self.queries.content)
        return self.keys.attention_mask.cumsum(-1)[:, self.places] > 1

    def without_sink(self, least: float = LEAST) -> Observation:
        """Return the same observation without the sink: special tokens and the first token of any sort are not keys.

        The weights of a query on the other keys are divided by their sum. A query with less than `least` of its weight
        on them has zeros and does not count, nor does the first token of a decoder.
        """
        if least in self._without_sink:
            return self._without_sink[least]
        keys = self.keys.without_first
        queries = self.queries
        if self.causal:
            queries = keys.span(self.first, self.first + self.weights.shape[-2])
            is_same = self.queries is self.keys or torch.equal(self.queries.content, self.keys.content[:, self.places])
            if not is_same:  # some queries do not count
                queries = replace(queries, content=queries.content & self.queries.content, kept={})
        counted = self.off_sink >= least  # [batch, heads, query]
        scale = torch.where(counted, 1 / self.off_sink, 0)
        weights = (self.weights * keys.content[:, None, None]).mul_(scale[..., None])
        self._without_sink[least] = replace(
            self, weights=weights, queries=queries, keys=keys, value_norms=None, of="nosink", counted=counted
        )
        return self._without_sink[least]

    def on_keys(self, chosen: Tensor) -> Tensor:
        """Sum the weights from all content queries to chosen keys, bool [batch, key]: float64 [batch, heads]."""
        return (self.received.double() @ chosen[:, :, None].double()).squeeze(-1)

    def over_queries(self, values: Tensor, where: Tensor | None = None) -> Tensor:
        """Sum values [batch, heads, query] over content queries `where`, bool [batch, query]: double [batch, heads]."""
        chosen = self.queries.content if where is None else self.queries.content & where
        values = values if self.counted is None else values.masked_fill(~self.counted, 0)
        return (values.double() @ chosen[:, :, None].double()).squeeze(-1)

    def counting(self, where: Tensor | None = None) -> Tensor:
        """Return which content queries `where`, bool [batch, query], count: bool [batch, heads or 1, query]."""
        chosen = self.queries.content if where is None else self.queries.content & where
        return chosen[:, None] if self.counted is None else chosen[:, None] & self.counted

    def count(self, where: Tensor | None = None) -> Tensor:
        """Return the number of content queries `where`, bool [batch, query], that count: [batch, heads or 1]."""
        return self.counting(where).sum(-1)
