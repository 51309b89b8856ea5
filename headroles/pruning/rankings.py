"""Rankings: the order in which heads are pruned, by a score, an effect, roles, the layer or at random."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.effects import ablate
from headroles.ablation.metrics import Metric, as_metric
from headroles.analysis import role_rules
from headroles.data.corpus import Corpus
from headroles.models.head_model import HeadModel
from headroles.models.masking import Head
from headroles.scores import Importance, Relevance, Score, score
from headroles.scores.base import Measure
from headroles.tables.arguments import one_of
from headroles.tables.columns import Column, ranked_by

_AT: dict[str, Callable[[float, int], float]] = {  # sort key of a layer, by (middle, layer)
    "bottom": lambda _, layer: layer,
    "middle": lambda middle, layer: abs(layer - middle),
    "top": lambda _, layer: -layer,
    "ends": lambda middle, layer: -abs(layer - middle),
}


@dataclass(frozen=True)
class RankingContext:
    """Input of a ranking: a model, its tokenizer, a corpus for scores and effects, the heads to rank, and a seed.

    With the unit "group", importance and effects are those of all heads that share a key-value head.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    corpus: Corpus
    among: Sequence[Head]
    seed: int = 0
    unit: Literal["head", "group"] = "head"

    @property
    def groups(self) -> dict[Head, frozenset[Head]]:
        """The heads that are pruned together with each head, including the head itself."""
        if self.unit == "head":
            return {head: frozenset([head]) for head in self.among}
        return HeadModel(self.model, allow_sharded=True).groups

    @property
    def units(self) -> list[frozenset[Head]]:
        """The heads, or groups, that are ranked."""
        return [*dict.fromkeys(map(self.groups.__getitem__, self.among))]


class Ranking(ABC):
    """Pruning strategy that ranks heads: the first head is pruned first.

    Attributes:
        title: Name in figures and on the page, by default `name`.
    """

    title: ClassVar[str] = ""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name used in result columns."""

    @abstractmethod
    def order(self, setting: RankingContext, /) -> list[Head]:
        """Rank the heads of `setting.among`, starting with the first to be pruned."""


@dataclass(frozen=True)
class ByScore(Ranking):
    """Ranking by a score on the corpus, the smallest first.

    Attributes:
        score: A score or its name.
        column: Column of the score, by default the first; after a minus its largest value comes first.
    """

    score: str | Score = "importance"
    column: str | None = None

    @property
    def name(self) -> str:
        """Name of the score."""
        return str(self.score if isinstance(self.score, str) else self.score.name)

    def order(self, setting: RankingContext, /) -> list[Head]:
        """Rank heads by their scores in the intact model."""
        chosen: str | Measure = self.score
        if self.score == "relevance":
            chosen = Relevance("cp", by="logit")  # comparable between layers
        elif self.score == "importance" and setting.unit == "group":
            chosen = Importance(unit="group")
        table = score(setting.model, setting.tokenizer, setting.corpus, [chosen], n_resamples=0)
        sized = [name for name in map(str, table) if Column.parse(name).suffix == "size"]
        column = self.column or (sized[0] if sized else str(table.columns[0]))
        name, descending = ranked_by(column)
        return _rising(-table[name] if descending else table[name], setting)


@dataclass(frozen=True)
class ByEffect(Ranking):
    """Ranking by the effect of ablating each head alone on a metric, the least harmful first."""

    metric: str | Metric = "loss"
    name = "effect"

    def order(self, setting: RankingContext, /) -> list[Head]:
        """Rank heads by their ablation effects."""
        return _rising(self.effects(setting), setting)

    def effects(self, setting: RankingContext) -> pd.Series[float]:
        """Measure how much worse the metric becomes without each head, or its group."""
        unit = setting.unit
        table = ablate(setting.model, setting.tokenizer, setting.corpus, metric=self.metric, unit=unit, n_resamples=0)
        return -as_metric(self.metric).better * table.iloc[:, 0]


@dataclass(frozen=True)
class ByEffectPerTime(ByEffect):
    """Ranking by the effect of ablating each head alone, divided by the time that generation takes for it.

    Attributes:
        metric: A metric or its name.
        context: Tokens of the text after which one is generated: the more, the longer takes the cache.
    """

    context: int = 2000
    name = "effect per time"

    def order(self, setting: RankingContext, /) -> list[Head]:
        """Rank heads by their ablation effects per time."""
        effects, taken = self.effects(setting), time_taken(setting.model, self.context, setting.unit)
        return _rising(effects / pd.Series(taken).reindex(effects.index), setting)


# Generation reads, for each token, all weights and the cache: its time is that of their numbers. A head has its rows of
# queries and columns of outputs, and shares rows of keys and values, and their cache, with the heads of its group.
def time_taken(model: PreTrainedModel, context: int, unit: Literal["head", "group"]) -> dict[Head, float]:
    """Count the numbers that are read for each head, or its whole group, to generate a token after a context."""
    taken: dict[Head, float] = {}
    for site in HeadModel(model, allow_sharded=True).sites:
        assert site.out is not None  # ablation would have raised an error before
        width = sum(weight.numel() for weight in site.out.parameters() if weight.ndim == 2) // max(site.heads, 1)
        window = getattr(site.module, "sliding_window", None) or context
        cached = site.size * min(context, window)
        for group in site.groups:
            shared = 2 * (width + cached)
            size = 2 * width * len(group) + shared if unit == "group" else 2 * width + shared / len(group)
            taken |= {(*site.key, number): size for number in group}
    return taken


@dataclass(frozen=True, eq=False)
class FromColumn(Ranking):
    """Ranking by a column of a table, the smallest value first."""

    values: pd.Series[float]

    @property
    def name(self) -> str:
        """Name of the column."""
        return str(self.values.name)

    def __repr__(self) -> str:
        return f"FromColumn({self.name})"

    def order(self, setting: RankingContext, /) -> list[Head]:
        """Rank heads by the column, which must have all heads."""
        return _rising(self.values, setting)


@dataclass(frozen=True, eq=False)
class ByRoles(Ranking):
    """Ranking by roles, the head farthest below all thresholds first; `table` has scores, by default computed here."""

    table: pd.DataFrame | None = None
    name = "roles"

    def __repr__(self) -> str:
        return f"ByRoles({'' if self.table is None else 'table'})"

    def order(self, setting: RankingContext, /) -> list[Head]:
        """Rank heads by role margins; ties and heads without role information are in random order."""
        table = self.table
        if table is None:
            table = score(setting.model, setting.tokenizer, setting.corpus, n_resamples=0)
        return _rising(role_rules.margins(table), setting)


@dataclass(frozen=True)
class Random(Ranking):
    """Random ranking; `spread` alternates between kinds, or between layers (Budhraja et al. 2020)."""

    spread: Literal["kind", "layer"] | None = None

    @property
    def name(self) -> str:
        """Name used in result columns."""
        return "random" if self.spread is None else f"random per {self.spread}"

    def order(self, setting: RankingContext, /) -> list[Head]:
        """Draw a ranking by the seed."""
        drawn = _shuffled(setting)
        return drawn if self.spread is None else _alternating(drawn, lambda head: head[: 1 + (self.spread == "layer")])


@dataclass(frozen=True)
class ByPosition(Ranking):
    """Ranking by layer (Budhraja et al. 2020); kinds alternate, and heads of a layer are in random order.

    Attributes:
        where: The layers that come first: the "bottom", "middle", "top" or both "ends".
        alternating: Whether every other layer of that sequence comes first.
    """

    where: Literal["bottom", "middle", "top", "ends"] = "bottom"
    alternating: bool = False

    @property
    def name(self) -> str:
        """Name used in result columns."""
        return f"{self.where} alternating" if self.alternating else self.where

    def order(self, setting: RankingContext, /) -> list[Head]:
        """Rank heads layer by layer."""
        ranks: dict[tuple[str, int], int] = {}
        for kind in {head[0] for head in setting.among}:
            layers = sorted({head[1] for head in setting.among if head[0] == kind})
            ranked = sorted(layers, key=partial(_AT[self.where], (layers[0] + layers[-1]) / 2))
            if self.alternating:
                ranked.sort(key=lambda layer, first=ranked[0]: (layer - first) % 2)  # type: ignore[misc]
            ranks |= {(kind, layer): place for place, layer in enumerate(ranked)}
        drawn = _alternating(_shuffled(setting), lambda head: head[:1])
        return sorted(drawn, key=lambda head: ranks[head[0], head[1]])


@dataclass(frozen=True)
class Reverse(Ranking):
    """Reversed ranking: the head that the other ranking keeps longest is pruned first."""

    ranking: Ranking

    @property
    def name(self) -> str:
        """Name of the other ranking after a minus."""
        return f"-{self.ranking.name}"

    def order(self, setting: RankingContext, /) -> list[Head]:
        """Rank heads in the opposite order."""
        return self.ranking.order(setting)[::-1]


NAMED: dict[str, Ranking] = {
    ranking.name: ranking
    for ranking in (
        *(ByScore(score) for score in ("importance", "relevance", "confidence")),
        ByScore("sink", "-sink[first]"),  # heads that attend to the first token most (after Sok et al. 2026)
        *(ByEffect(), ByEffectPerTime(), ByRoles(), Random(), Random("kind"), Random("layer")),
        *(
            ByPosition(where, alternating)
            for where in ("bottom", "middle", "top", "ends")
            for alternating in (False, True)
        ),
    )
}


def ranking(given: str | Ranking) -> Ranking:
    """Return the ranking of a name (`NAMED`), reversed by a minus before it; or the given ranking."""
    if isinstance(given, Ranking):
        return given
    if given.startswith("-"):
        return Reverse(ranking(given[1:]))
    return NAMED[one_of("strategy", given, NAMED, ", with a minus for the reverse, or l0 for gates")]


def _rising(values: pd.Series[float], setting: RankingContext) -> list[Head]:
    """Rank heads by rising value; ties and heads without a value are in random order."""
    known = values.loc[_shuffled(setting)].sort_values(kind="stable", na_position="first")
    return [(kind, layer, head) for kind, layer, head in known.index]


def _shuffled(setting: RankingContext) -> list[Head]:
    return random.Random(setting.seed).sample(list(setting.among), len(setting.among))


def _alternating(heads: list[Head], group: Callable[[Head], tuple[object, ...]]) -> list[Head]:
    """Alternate between groups of heads, in their order within each."""
    counts: dict[tuple[object, ...], int] = {}
    rounds = []
    for head in heads:
        counts[group(head)] = counts.get(group(head), -1) + 1
        rounds.append((counts[group(head)], head))
    return [head for _, head in sorted(rounds, key=lambda pair: pair[0])]
