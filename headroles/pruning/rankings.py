"""Orders: which heads go first, by a score, an effect, a role, a place or chance, one small class for each."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.analysis import role_rules
from headroles.data.corpus import Corpus
from headroles.models import heads as families
from headroles.models.masking import Head

_AT: dict[str, Callable[[float, int], float]] = {  # by what layers are put in line: (middle, layer)
    "bottom": lambda _, layer: layer,
    "middle": lambda middle, layer: abs(layer - middle),
    "top": lambda _, layer: -layer,
    "ends": lambda middle, layer: -abs(layer - middle),
}


@dataclass(frozen=True)
class RankingContext:
    """What an order may be told from: a model, what it reads, the heads that may go, and a seed."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    corpus: Corpus
    among: Sequence[Head]
    seed: int = 0


class Ranking(ABC):
    """A strategy of pruning that puts heads in an order: the first goes first."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What its columns are called by."""

    @abstractmethod
    def order(self, setting: RankingContext, /) -> list[Head]:
        """The heads that may go, those to go first at the beginning."""


@dataclass(frozen=True)
class ByScore(Ranking):
    """By a score of `headroles.score` on the corpus, the smallest first; `column` is by default the score's first."""

    score: Any = "importance"
    column: str | None = None
    limit: int | None = None  # so many sentences are enough

    @property
    def name(self) -> str:
        """The score's."""
        return str(self.score if isinstance(self.score, str) else self.score.name)

    def order(self, setting: RankingContext, /) -> list[Head]:
        """Scores are of the whole model."""
        from headroles.scores import Relevance, score

        chosen = Relevance("cp", by="logit") if self.score == "relevance" else self.score  # the layers are compared
        corpus = setting.corpus[: self.limit]
        table = score(setting.model, setting.tokenizer, corpus, [chosen], n_resamples=0)
        sized = [name for name in map(str, table) if name.endswith(".size")]
        return _rising(table[self.column or (sized[0] if sized else table.columns[0])], setting)


@dataclass(frozen=True)
class ByEffect(Ranking):
    """By what closing the head alone does to the loss, or another metric: the least missed first."""

    metric: Any = "loss"
    limit: int | None = None

    @property
    def name(self) -> str:
        """Of the default."""
        return "effect"

    def order(self, setting: RankingContext, /) -> list[Head]:
        """One sweep over the corpus."""
        from headroles.ablation.effects import ablate
        from headroles.ablation.metrics import metric

        corpus = setting.corpus[: self.limit]
        table = ablate(setting.model, setting.tokenizer, corpus, metric=self.metric, n_resamples=0)
        return _rising(-metric(self.metric).better * table.iloc[:, 0], setting)


@dataclass(frozen=True, eq=False)
class FromColumn(Ranking):
    """By a column of a table there is already, the smallest first."""

    values: pd.Series[Any]

    @property
    def name(self) -> str:
        """The column's."""
        return str(self.values.name)

    def __repr__(self) -> str:
        return f"Told({self.name},{_digest(self.values.to_frame())})"

    def order(self, setting: RankingContext, /) -> list[Head]:
        """The table must have all the heads that may go."""
        return _rising(self.values, setting)


@dataclass(frozen=True, eq=False)
class ByRoles(Ranking):
    """By roles: heads with none first, the farthest from the threshold of any (`role.SPECIAL`) the first.

    `table` are scores there are already, of any corpus; by default they are made on the one that is pruned on.
    """

    table: pd.DataFrame | None = None

    @property
    def name(self) -> str:
        """Roles."""
        return "roles"

    def __repr__(self) -> str:
        return f"Roles({'' if self.table is None else _digest(self.table)})"

    def order(self, setting: RankingContext, /) -> list[Head]:
        """Ties, and heads that no role can be told of, by chance."""
        from headroles.scores import score

        table = (
            score(setting.model, setting.tokenizer, setting.corpus, n_resamples=0) if self.table is None else self.table
        )
        return _rising(role_rules.margins(table), setting)


@dataclass(frozen=True)
class Random(Ranking):
    """By chance; `spread` takes in turn a head of each kind, or of each layer (Budhraja et al. 2020)."""

    spread: Literal["kind", "layer"] | None = None

    @property
    def name(self) -> str:
        """Says what it is spread over."""
        return "random" if self.spread is None else f"random per {self.spread}"

    def order(self, setting: RankingContext, /) -> list[Head]:
        """The seed decides."""
        drawn = _shuffled(setting)
        return drawn if self.spread is None else _in_turn(drawn, lambda head: head[: 1 + (self.spread == "layer")])


@dataclass(frozen=True)
class ByPosition(Ranking):
    """By layer: from the bottom, the top, the middle or the ends (Budhraja et al. 2020), the kinds in turn.

    `alternating` takes every other layer of that sequence first. Within a layer by chance.
    """

    where: Literal["bottom", "middle", "top", "ends"] = "bottom"
    alternating: bool = False

    @property
    def name(self) -> str:
        """The place."""
        return f"{self.where} alternating" if self.alternating else self.where

    def order(self, setting: RankingContext, /) -> list[Head]:
        """Layers one after the other."""
        ranks: dict[tuple[str, int], int] = {}
        for kind in {head[0] for head in setting.among}:
            layers = sorted({layer for one, layer, _ in setting.among if one == kind})
            line = sorted(layers, key=partial(_AT[self.where], (layers[0] + layers[-1]) / 2))
            if self.alternating:
                line.sort(key=lambda layer, first=line[0]: (layer - first) % 2)  # type: ignore[misc]
            ranks |= {(kind, layer): place for place, layer in enumerate(line)}
        drawn = _in_turn(_shuffled(setting), lambda head: head[:1])
        return sorted(drawn, key=lambda head: ranks[head[0], head[1]])


@dataclass(frozen=True)
class Reverse(Ranking):
    """Another order from its end: what it would keep longest goes first."""

    of: Ranking

    @property
    def name(self) -> str:
        """A minus before the other's."""
        return f"-{self.of.name}"

    def order(self, setting: RankingContext, /) -> list[Head]:
        """The same heads."""
        return self.of.order(setting)[::-1]


NAMED: dict[str, Ranking] = {
    one.name: one
    for one in (
        *(ByScore(score) for score in ("importance", "relevance", "confidence")),
        *(ByEffect(), ByRoles(), Random(), Random("kind"), Random("layer")),
        *(
            ByPosition(where, alternating)
            for where in ("bottom", "middle", "top", "ends")
            for alternating in (False, True)
        ),
    )
}


def ranking(given: str | Ranking) -> Ranking:
    """The order of a name; a minus before it is its reverse. Raises ValueError for a name there is none of."""
    if isinstance(given, Ranking):
        return given
    if given.startswith("-") and not given.startswith("--"):
        return Reverse(ranking(given[1:]))
    if given not in NAMED:
        known = f"{', '.join(NAMED)}, with a minus before it its reverse; gates: l0, exactly"
        raise ValueError(f"unknown order {given!r}; known: {known}")
    return NAMED[given]


def _rising(values: pd.Series[Any], setting: RankingContext) -> list[Head]:
    """The heads that may go by value, ties and unknown values by chance."""
    drawn = _shuffled(setting)
    if lacking := [head for head in drawn if head not in values.index]:
        raise ValueError(f"{values.name!r} is of other heads: it lacks {lacking[0]} of {len(drawn)}")
    known = values.loc[drawn].sort_values(kind="stable", na_position="first")
    return [(kind, layer, head) for kind, layer, head in known.index]


def _digest(table: pd.DataFrame) -> str:
    return hashlib.sha256(pd.util.hash_pandas_object(table).to_numpy().tobytes()).hexdigest()[:12]


def _shuffled(setting: RankingContext) -> list[Head]:
    return random.Random(setting.seed).sample(list(setting.among), len(setting.among))


def _in_turn(heads: list[Head], group: Any) -> list[Head]:
    """The heads in their order, but one of each group after the other."""
    seen: dict[Any, int] = {}
    turns = []
    for head in heads:
        seen[group(head)] = seen.get(group(head), -1) + 1
        turns.append((seen[group(head)], head))
    return [head for _, head in sorted(turns, key=lambda turn: turn[0])]


def among(model: PreTrainedModel, kinds: Sequence[str] | None) -> list[Head]:
    """The heads of a model that may go: all, or those of some kinds. Raises ValueError for a kind it lacks."""
    heads = [(kind, layer, head) for kind, layer, head in families.head_index(model)]
    present = dict.fromkeys(kind for kind, _, _ in heads)
    if lacking := sorted(set(kinds or ()) - set(present)):
        raise ValueError(f"{type(model).__name__} has no heads of kind {lacking[0]!r}; it has {', '.join(present)}")
    return [head for head in heads if kinds is None or head[0] in kinds]
