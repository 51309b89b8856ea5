"""What a score sees, and what a score is: two pure functions over sums that add."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from headroles.models.batching import TokenView
from headroles.tables.frame import KINDS, Kind

SELF: tuple[Kind, ...] = ("enc-self", "dec-self")
Sums = Mapping[str, Tensor]


@dataclass(frozen=True)
class Observation:
    """The attention of one site on one batch, or the part of it that starts from some queries of long texts."""

    kind: Kind
    weights: Tensor  # [batch, heads, query, key]
    queries: TokenView
    keys: TokenView
    counts: Tensor  # [vocabulary]: how often each token occurs in the reference for the key side
    ranks: Tensor  # [vocabulary]: 0 for its most frequent token
    first: int = 0  # the place of the first of the queries

    @property
    def places(self) -> Tensor:
        """Where each query stands: [query]."""
        return torch.arange(self.first, self.first + self.weights.shape[-2], device=self.weights.device)

    @property
    def causal(self) -> bool:
        """Whether queries see only keys that are not after them."""
        return self.kind == "dec-self"

    @cached_property
    def on_real(self) -> Tensor:
        """The weights, 0 on keys that are not real: [batch, heads, query, key]. Not renormalised."""
        return self.weights * self.keys.content[:, None, None]

    @cached_property
    def top(self) -> tuple[Tensor, Tensor]:
        """The largest weight on a real key, and the (first) key it falls on: each [batch, heads, query]."""
        values, places = self.on_real.max(-1)
        return values, places

    @cached_property
    def received(self) -> Tensor:
        """The weight that each key gets from all real queries together: [batch, heads, key]."""
        rows = self.queries.content[:, None, None].to(self.weights.dtype)  # [batch, 1, 1, query]
        return (rows @ self.weights).squeeze(-2)

    def on_keys(self, chosen: Tensor) -> Tensor:
        """The weight from all real queries on the keys chosen in [batch, key]: float64 [batch, heads]."""
        return (self.received.double() @ chosen[:, :, None].double()).squeeze(-1)

    def over_queries(self, values: Tensor, where: Tensor | None = None) -> Tensor:
        """Sum [batch, heads, query] over the real queries (those of `where`, [batch, query], if given): float64."""
        chosen = self.queries.content if where is None else self.queries.content & where
        return (values.double() @ chosen[:, :, None].double()).squeeze(-1)


class Measure(ABC):
    """One thing to know of every head: sums per sentence, which `compute` divides once at the end.

    Sums over sentences, batches, processes and bootstrap resamples are then all the same addition.
    """

    kinds: ClassVar[tuple[Kind, ...]] = KINDS
    needs_trees: ClassVar[bool] = False
    needs_counts: ClassVar[bool] = False  # of tokens in a reference corpus

    @classmethod
    def name(cls) -> str:
        """What the score is called: its class in lower case."""
        return cls.__name__.lower()

    @property
    def label(self) -> str:
        """What its columns begin with: its name, and what sets it apart where several of its kind may be asked for."""
        return self.name()

    def sampled(self, column: str) -> bool:
        """Whether a column is an estimate from a sample of sentences, with an interval: a count is none."""
        return not column.endswith(".words")

    def nothing(self, _column: str, _kind: Kind, /) -> str | None:
        """Why a column is NaN for all heads of a kind, where it is; None: by definition, or another column says it."""
        return "no sentence of the corpus has anything to measure it on"

    def counted(self, sums: Sums) -> dict[str, Tensor]:  # noqa: ARG002
        """Of each column that is a share of so many queries, how many: {column: [..., heads or 1]}.

        Such a column gets an interval that holds also near 0 and 1; all others get percentiles of the resamples.
        """
        return {}

    @abstractmethod
    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Columns from the sums of `update` and `denominators`, which bear leading dimensions: {column: [..., heads]}."""


class Score(Measure):
    """What every head attends to. A subclass is a frozen dataclass in a file of its own; its fields are options.

    `update` and `denominators` give sums per sentence. Where these add up over parts of the queries too, `in_parts` is to be
    True: then long texts are read in parts, each a `Seen` of some queries and all keys, `seen.places` telling which.
    """

    in_parts: ClassVar[bool] = False

    @abstractmethod
    def update(self, observation: Observation) -> dict[str, Tensor]:
        """What each head did in each sentence: {name: [batch, heads] or [batch, heads, detail]}."""

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """What there was to do in each sentence, whatever a head did: {name: [batch, 1] or [batch, 1, detail]}."""
        return {"queries": observation.queries.content.sum(-1, keepdim=True)}


def list_scores() -> dict[str, type[Measure]]:
    """Every score by name: those in the files beside this one, and your own classes where no name of ours is taken."""
    import headroles.scores as room

    for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
        importlib.import_module(module.name)
    every = [cls for base in Measure.__subclasses__() for cls in base.__subclasses__()]
    ours_last = sorted(every, key=lambda cls: cls.__module__.startswith(f"{room.__name__}."))
    found = {cls.name(): cls for cls in ours_last}
    return {name: found[name] for name in sorted(found)}


def named(scores: str | Measure | Iterable[str | Measure]) -> list[Measure]:
    """Scores from names and instances, or from a single one. Raises ValueError for an unknown or repeated name."""
    found: list[Measure] = []
    for one in [scores] if isinstance(scores, str | Measure) else scores:
        if isinstance(one, str) and one not in list_scores():
            raise ValueError(f"unknown score {one!r}; known: {', '.join(list_scores())}")
        if not isinstance(one, str | Measure):
            raise ValueError(f"expected the name of a score or an instance such as Position(), got {one!r}")
        new = list_scores()[one]() if isinstance(one, str) else one
        if any(new.label == other.label for other in found):
            raise ValueError(f"score {new.label!r} is asked for twice")
        found.append(new)
    if not found:
        raise ValueError(f"no score given; known: {', '.join(list_scores())}")
    return found


def shifted(content: Tensor, offset: int) -> Tensor:
    """Whether the token `offset` places on is real: bool [batch, token] from [batch, token]."""
    moved = torch.zeros_like(content)
    if abs(offset) < content.shape[-1]:
        moved[:, max(-offset, 0) : content.shape[-1] - max(offset, 0)] = content[
            :, max(offset, 0) : content.shape[-1] + min(offset, 0)
        ]
    return moved
