"""Scores as two pure functions: `update` sums over each batch, and `compute` divides the sums at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor

from headroles.patterns.observation import LEAST
from headroles.patterns.observation import SELF as SELF
from headroles.patterns.observation import Observation as Observation
from headroles.patterns.observation import Weights as Weights
from headroles.tables.arguments import number, one_of
from headroles.tables.columns import Column, of_variant
from headroles.tables.frame import KINDS, Kind

Sums = Mapping[str, Tensor]
QUERIES = "queries"  # the usual denominator


class Measure(ABC):
    """Base class of all scores: sums per sentence, which `compute` divides at the end.

    Batches, processes and bootstrap resamples are then all the same addition of sums.
    """

    kinds: ClassVar[tuple[Kind, ...]] = KINDS
    needs: ClassVar[frozenset[str]] = frozenset()  # "trees", "links" of words, "counts" of tokens in a reference corpus
    missing: ClassVar[str] = "no sentence of the corpus can be measured"  # why all heads of a kind are NaN
    title: ClassVar[str] = ""  # in figures and on the page; by default the column's name
    about: ClassVar[str] = ""  # a sentence on the page, with unit and direction
    by_batch: ClassVar[Any] = False  # whether numbers depend on which texts share a batch, so on `max_tokens`
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

    def has_interval(self, column: str) -> bool:
        """Return whether a column is an estimate with a bootstrap interval; counts (`.words`) are not."""
        return Column.parse(column).suffix != "words"

    def reason_no_interval(self, _counts: Tensor, /) -> str | None:
        """Return why there is no interval, from the counts of tokens in the corpus itself, [vocabulary], or None."""
        return None

    def counted(self, sums: Sums) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the number of queries of each column that is a share of queries: {column: [..., heads or 1]}.

        These columns get Wilson intervals, which hold near 0 and 1 too; others get percentiles of the resamples.
        """
        return {}

    @abstractmethod
    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute the columns from summed statistics.

        Args:
            sums: sums over sentences of what `update` and `denominators` return: {name: [..., heads or 1(, detail)]},
                with any leading dimensions.

        Returns:
            The columns of the score: {column: [..., heads]}.
        """


@dataclass(frozen=True)
class Score(Measure):
    """Base class of attention scores. A subclass is a frozen dataclass; its fields are options.

    Every score exists three times: by attention, by the norms of the moved vectors (`Observation.by_norm`), and by
    attention without the sink (`Observation.without_sink`), with columns such as `confidence-norm` and
    `position-nosink[-1]`. Without the sink each head has its own queries that count: use `observation.count`.

    Set `in_parts` to True if the sums of `update` and `denominators` also add over blocks of queries. Long texts are
    then read in blocks, and `Observation.places` are the positions of the queries of a block.

    Args:
        weights: "attention", "norm" or "nosink".
        least: the least weight off the sink of a query that counts without it.
    """

    weights: Weights = field(default="attention", kw_only=True, repr=False)
    least: float = field(default=LEAST, kw_only=True, repr=False)
    in_parts: ClassVar[bool] = False
    by_head: ClassVar[bool] = False  # whether denominators differ between layers or heads
    of_sink: ClassVar[bool] = False  # whether it measures the sink and cannot be measured without it
    is_share: ClassVar[bool] = False  # whether all its columns are shares of the queries

    def __post_init__(self) -> None:
        one_of("weights", self.weights, ("attention", "norm") if self.of_sink else get_args(Weights))
        number("least", self.least, above=0, below=1)

    def __str__(self) -> str:
        """Return the call that makes the score, for provenance and cache keys."""
        if self.weights == "attention":
            return repr(self)
        least = f", least={self.least!r}" if self.weights == "nosink" else ""
        return f"{repr(self)[:-1]}, weights={self.weights!r}{least})".replace("(, ", "(")

    @property
    def label(self) -> str:
        """Prefix of the score's columns."""
        return self.column(self.name())

    def column(self, name: str) -> str:
        """Return the name of a column in the table: `confidence-norm` for `confidence`."""
        return name if self.weights == "attention" else of_variant(name, self.weights)

    @abstractmethod
    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Compute the sums of every head in every sentence.

        Args:
            observation: attention of one site on one batch.

        Returns:
            Per-sentence sums: {name: [batch, heads] or [batch, heads, detail]}.
        """

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Compute per-sentence denominators, by default the number of content queries.

        They are computed at the first layer of each kind, for all layers: set `by_head` if layers or heads differ. The
        default `compute` divides by `queries`; names must differ from those of `update`.

        Returns:
            {name: [batch, 1] or [batch, 1, detail]}, without the sink or `by_head` {name: [batch, heads(, detail)]}.
        """
        return {QUERIES: observation.count()}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Divide the sums by the number of queries: by default each is a column."""
        return {name: values / sums[QUERIES] for name, values in sums.items() if name != QUERIES}

    def counted(self, sums: Sums) -> dict[str, Tensor]:
        """Return the number of queries, if all columns are shares of them."""
        return {name: sums[QUERIES] for name in sums if name != QUERIES} if self.is_share else {}
