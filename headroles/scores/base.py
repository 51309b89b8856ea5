"""Scores: two pure functions over sums that add, `update` for each batch and `compute` once at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from headroles.models.batching import TokenView
from headroles.tables.columns import Column, by_norm
from headroles.tables.frame import KINDS, Kind

SELF: tuple[Kind, ...] = ("enc-self", "dec-self")
Sums = Mapping[str, Tensor]
Weights = Literal["attention", "norm"]
NOWHERE = -2  # the key of a query to which a head moves nothing: no key, and next to none


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
        first: position of the first query; 0 unless the observation is a later block of queries.
        value_norms: computes ||f(x)|| of each key, [batch, heads, key] (`headroles.scores.value_norms`).
        of: what `weights` are.
    """

    kind: Kind
    weights: Tensor
    queries: TokenView
    keys: TokenView
    counts: Tensor
    ranks: Tensor
    first: int = 0
    value_norms: Callable[[], Tensor] | None = None
    of: Weights = "attention"

    @property
    def places(self) -> Tensor:
        """Position of each query: [query]."""
        return torch.arange(self.first, self.first + self.weights.shape[-2], device=self.weights.device)

    @property
    def causal(self) -> bool:
        """Whether queries attend only to keys at or before their own position."""
        return self.kind == "dec-self"

    @cached_property
    def on_real(self) -> Tensor:
        """Weights with non-content keys set to 0, not renormalised: [batch, heads, query, key]."""
        return self.weights * self.keys.content[:, None, None]

    @cached_property
    def top(self) -> tuple[Tensor, Tensor]:
        """Largest weight on a content key and the first key that has it: each [batch, heads, query]."""
        values, places = self.on_real.max(-1)
        return values, places if self.of == "attention" else places.masked_fill(values == 0, NOWHERE)

    @cached_property
    def received(self) -> Tensor:
        """Total weight that each key receives from all content queries: [batch, heads, key]."""
        rows = self.queries.content[:, None, None].to(self.weights.dtype)  # [batch, 1, 1, query]
        return (rows @ self.weights).squeeze(-2)

    @cached_property
    def norms(self) -> Tensor:
        """Norms ||alpha_ij f(x_j)|| of the vectors that a head moves from key j to query i: [batch, heads, query, key].

        f(x) = (x W_V + b_V) W_O; the bias of the output projection is no head's (Kobayashi et al. 2020, section 3, and
        the authors' code). The residual connection and the norm after it (Kobayashi et al. 2021) are those of a layer,
        not of a head: they are no part of it.

        Raises:
            ValueError: if the values of the model cannot be read.
        """
        if self.value_norms is None:
            raise ValueError("no values: got an observation of attention weights alone; expected value_norms")
        return self.weights.abs() * self.value_norms().to(self.weights)[:, :, None]

    @cached_property
    def by_norm(self) -> Observation:
        """The same observation with `norms` as weights, each query's divided by their sum over all keys.

        The source compares norms as they are; the division is ours, so that scores keep their range. It does not change
        which key is the largest. Special tokens are in the sum. A query to which the head moves nothing has zeros, and
        its largest is on no key.
        """
        whole = self.norms.sum(-1, keepdim=True)
        return replace(self, weights=self.norms / whole.masked_fill(whole == 0, 1), of="norm", value_norms=None)

    def on_keys(self, chosen: Tensor) -> Tensor:
        """Sum the weights from all content queries to some keys.

        Args:
            chosen: bool mask of keys, [batch, key].

        Returns:
            float64 [batch, heads].
        """
        return (self.received.double() @ chosen[:, :, None].double()).squeeze(-1)

    def over_queries(self, values: Tensor, where: Tensor | None = None) -> Tensor:
        """Sum values over the content queries.

        Args:
            values: one value per query, [batch, heads, query].
            where: bool mask that restricts the queries further, [batch, query]; default: no restriction.

        Returns:
            float64 [batch, heads].
        """
        chosen = self.queries.content if where is None else self.queries.content & where
        return (values.double() @ chosen[:, :, None].double()).squeeze(-1)


class Measure(ABC):
    """Base class of all scores: sums per sentence, which `compute` divides once at the end.

    Sums over sentences, batches, processes and bootstrap resamples are then all the same addition.
    """

    kinds: ClassVar[tuple[Kind, ...]] = KINDS
    needs_trees: ClassVar[bool] = False
    needs_counts: ClassVar[bool] = False  # of tokens in a reference corpus
    title: ClassVar[str] = ""  # in figures and on the page; by default the column's name
    about: ClassVar[str] = ""  # a sentence on the page, with unit and direction
    matters: ClassVar[Literal["", "higher", "lower"]] = ""  # values of heads that matter more: an outcome of `relate`

    @classmethod
    def name(cls) -> str:
        """Return the name of the score: its class name in lower case."""
        return cls.__name__.lower()

    @property
    def label(self) -> str:
        """Prefix of the score's columns; subclasses add options that distinguish several instances."""
        return self.name()

    def column(self, name: str) -> str:
        """Return the name of a column in the table."""
        return name

    def sampled(self, column: str) -> bool:
        """Return whether a column is an estimate with a bootstrap interval; counts (`.words`) are not."""
        return Column.parse(column).suffix != "words"

    def nothing(self, _column: str, _kind: Kind, /) -> str | None:
        """Return why a column is NaN for all heads of a kind.

        Args:
            _column: name of the column.
            _kind: kind of the heads.

        Returns:
            The reason for the log; None if the column is NaN by definition or another column explains it.
        """
        return "no sentence of the corpus has anything to measure it on"

    def counted(self, sums: Sums) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the sample size of every column that is a share of queries.

        These columns get Wilson intervals, which hold near 0 and 1 too. All others get percentiles of the resamples.

        Args:
            sums: as for `compute`.

        Returns:
            Number of queries of each such column: {column: [..., heads or 1]}.
        """
        return {}

    @abstractmethod
    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute the columns from summed statistics.

        Args:
            sums: sums over sentences of what `update` and `denominators` return, with any leading dimensions:
                {name: [..., heads] or [..., heads, detail]}.

        Returns:
            The columns of the score: {column: [..., heads]}.
        """


@dataclass(frozen=True)
class Score(Measure):
    """Base class of attention scores. A subclass is a frozen dataclass in a file of its own; its fields are options.

    Every score exists twice, by attention and by what is really moved (`Observation.by_norm`). The columns of the
    second have `-norm` after the name of the score: `confidence-norm`, `position-norm[-1]`.

    `update` and `denominators` return sums per sentence. Set `in_parts` to True if these also add over blocks of
    queries. Long texts are then read in blocks: each `Observation` has some of the queries and all keys, and its
    `places` are the positions of these queries.

    Args:
        weights: "attention" weights, or "norm", the norms of the weighted vectors that the head moves.
    """

    weights: Weights = field(default="attention", kw_only=True, repr=False)
    in_parts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.weights not in ("attention", "norm"):
            raise ValueError(f"unknown weights: got {self.weights!r}; expected 'attention' or 'norm'")

    def __str__(self) -> str:
        """Return the call that makes the score; provenance and cache keys have it."""
        text = repr(self)
        if self.weights == "attention":
            return text
        return f"{text[:-1]}{'' if text.endswith('()') else ', '}weights={self.weights!r})"

    @property
    def label(self) -> str:
        """Prefix of the score's columns."""
        return self.column(self.name())

    def column(self, name: str) -> str:
        """Return the name of a column in the table, with `-norm` after the score's name if it is by norms."""
        return name if self.weights == "attention" else by_norm(name)

    @abstractmethod
    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Compute the sums of every head in every sentence.

        Args:
            observation: attention of one site on one batch.

        Returns:
            Per-sentence sums: {name: [batch, heads] or [batch, heads, detail]}.
        """

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Compute per-sentence denominators that do not depend on the head.

        Args:
            observation: attention of one site on one batch.

        Returns:
            {name: [batch, 1] or [batch, 1, detail]}; by default the number of content queries, "queries".
        """
        return {"queries": observation.queries.content.sum(-1, keepdim=True)}
