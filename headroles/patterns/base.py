"""Patterns: which keys each query is about; measured as a score, imposed as a replacement of a head's attention."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor

from headroles.models.batching import Batch, TokenView
from headroles.models.imposing import Counted, Imposed, Values, attended
from headroles.models.sites import Site
from headroles.models.tokens.alignment import NO_WORD
from headroles.patterns.observation import Observation
from headroles.tables.frame import KINDS, Kind


@dataclass(frozen=True)
class Pattern(Imposed):
    """Base class of patterns. A subclass is a frozen dataclass in a file of its own; its fields are options.

    `targets` returns for each query the keys that it is about. `hr.score(model, tokenizer, corpus, [pattern])` measures
    how often a head attends there; `hr.mask_heads(..., replacement=pattern)` and `hr.ablate(..., replacement=pattern)`
    let a head attend exactly there, with the model's own values, and as by itself where the pattern does not apply.
    """

    kinds: ClassVar[tuple[Kind, ...]] = KINDS
    about: ClassVar[str] = ""  # where its heads attend, on the page

    @abstractmethod
    def targets(self, observation: Observation) -> Tensor:
        """Return the weights of the pattern.

        Args:
            observation: The tokens of one batch at one site. Its `weights` are the head's own when it is measured, and
                may be missing when it is imposed.

        Returns:
            Tensor[batch, query, key], or Tensor[batch, heads, query, key] where heads differ. The weights of a query
            sum to 1, or are all 0 where the pattern does not apply.
        """

    @classmethod
    def name(cls) -> str:
        """Return the name of the pattern: its class name in lower case."""
        return cls.__name__.lower()

    @property
    def label(self) -> str:
        """Name and options, in columns and file names: `offset=-1`."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.repr}
        usual = {f.name: f.default for f in fields(self)}
        options = [str(getattr(value, "label", value)) for name, value in given.items() if value != usual[name]]
        text = "=".join([self.name(), *([",".join(options)] if options else [])])
        return re.sub(r"[^\w=+.,-]+", "-", text.replace(">", "-to-"))

    def applies(self, observation: Observation) -> Tensor:
        """Return which content queries the pattern is about: bool [batch, query], or [batch, heads, query]."""
        content = observation.queries.content
        about = self._seen(observation).sum(-1) > 0  # [batch, heads or 1, query]
        about = about & content[:, None]
        return about[:, 0] if about.shape[1] == 1 else about

    def _seen(self, observation: Observation) -> Tensor:
        """Return the weights on keys that the model's mask allows: [batch, heads or 1, query, key]."""
        weights = self.targets(observation)
        weights = weights if weights.ndim == 4 else weights[:, None]
        return weights if observation.allowed is None else weights * observation.allowed

    @property
    def needs(self) -> list[str]:
        """What the pattern needs of a corpus beside token ids, in words."""
        of_words = {"dependency trees": self.needs_trees, "word links": self.needs_links}
        return [what for what, is_needed in (of_words | {"counts of tokens": self.needs_counts}).items() if is_needed]

    def check(self, site: Site) -> None:
        """Raise ValueError if the pattern does not apply to heads of the site's kind."""
        if site.kind not in self.kinds:
            raise ValueError(
                f"pattern {self} does not fit {site.name}: got {site.kind} heads; expected {' or '.join(self.kinds)}"
            )

    # imposed

    def of(self, batch: Batch, counted: Counted | None = None) -> Imposed:
        """Return the pattern for the forwards of one batch."""
        return _Bound(self, batch, counted)

    def outputs(self, site: Site, z: Tensor, values: Values, special: frozenset[int] = frozenset()) -> Tensor:
        """Return the outputs of heads under the pattern, from the token ids of a forward and those that are special."""
        if site.kind not in self.kinds:
            return z
        if needs := self.needs + ["the ids of special tokens"] * (self.needs_special and not special):
            raise ValueError(
                f"pattern {self} needs {needs[0]}, and a forward has none; try hr.ablate(..., replacement=...)"
            )
        queries, keys = (_view(values, side, special) for side in _sides(site.kind, values))
        return self.imposed(
            Observation(site.kind, _weights(values, z), queries, keys, layer=site.layer), site, z, values
        )

    def imposed(self, observation: Observation, site: Site, z: Tensor, values: Values) -> Tensor:
        """Return the outputs of heads under the pattern, and their own where it does not apply."""
        got = [len(z), z.shape[1], values.value.shape[2]]
        expected = [*observation.queries.ids.shape, observation.keys.ids.shape[1]]
        if got != expected:
            raise ValueError(
                f"pattern {self} needs all tokens in one forward: got {got} examples, queries and keys; expected "
                f"{expected}; try use_cache=False"
            )
        weights = self._seen(replace(observation, allowed=values.allowed))
        whole = weights.sum(-1, keepdim=True) * observation.queries.content[:, None, :, None]
        weights = weights / whole.clamp(min=torch.finfo(torch.float32).tiny)
        return torch.where((whole > 0).transpose(1, 2), self.outputs_where(weights, site, values), z)

    def outputs_where(self, weights: Tensor, site: Site, values: Values) -> Tensor:
        """Return the outputs of heads where the pattern applies; weights: [batch, heads or 1, query, key]."""
        return attended(weights.to(values.value), values.value, site)


class OfPattern:
    """Base class of what is made of a pattern, and so applies to the same kinds of heads by the same data."""

    pattern: Pattern
    kinds: ClassVar[Any] = property(attrgetter("pattern.kinds"))
    needs_trees: ClassVar[Any] = property(attrgetter("pattern.needs_trees"))
    needs_counts: ClassVar[Any] = property(attrgetter("pattern.needs_counts"))
    needs_links: ClassVar[Any] = property(attrgetter("pattern.needs_links"))
    needs_special: ClassVar[Any] = property(attrgetter("pattern.needs_special"))


@dataclass(frozen=True)
class InForwards(OfPattern, Imposed):
    """A pattern in forwards of a model of which the special tokens are known, as in batches of its tokenizer.

    Args:
        pattern: The pattern.
        special: The ids of special tokens.
    """

    pattern: Pattern
    special: frozenset[int]

    @property
    def needs_weights(self) -> bool:  # type: ignore[override]
        """Whether it needs the heads' own weights."""
        return self.pattern.needs_weights

    def check(self, site: Site) -> None:
        """Raise ValueError if the pattern does not fit the heads of a site."""
        self.pattern.check(site)

    def outputs(self, site: Site, z: Tensor, values: Values) -> Tensor:
        """Return the outputs of heads under the pattern."""
        return self.pattern.outputs(site, z, values, self.special)


class _Bound(Imposed):
    """A pattern for the forwards of one batch, which may be repeated for several variants."""

    def __init__(self, pattern: Pattern, batch: Batch, counted: Counted | None) -> None:
        self.pattern, self.batch, self.counted = pattern, batch, counted
        self.needs_weights = pattern.needs_weights

    def check(self, site: Site) -> None:
        self.pattern.check(site)

    def outputs(self, site: Site, z: Tensor, values: Values) -> Tensor:
        if site.kind not in self.pattern.kinds:
            return z
        observation = _observed(self.batch, site.kind, _weights(values, z), self.counted)
        return self.pattern.imposed(replace(observation, layer=site.layer), site, z, values)


class Coverage(Imposed):
    """A count of the queries to which patterns apply, in forwards of one batch; heads keep their outputs.

    Args:
        patterns: Kind and layer of heads, and a pattern of theirs that needs no weights.
        batch: The batch.
        counted: Counts of tokens, where a pattern needs them.

    Attributes:
        numbers: Of each of `patterns` the content queries of each text to which it applies, and all: each [batch].
    """

    def __init__(self, patterns: Iterable[tuple[tuple[Kind, int], Pattern]], batch: Batch, counted: Counted | None):
        self.patterns, self.batch, self.counted = [*patterns], batch, counted
        self.numbers: dict[tuple[tuple[Kind, int], Pattern], tuple[Tensor, Tensor]] = {}

    def outputs(self, site: Site, z: Tensor, values: Values) -> Tensor:
        """Return the heads' own outputs."""
        seen = _observed(self.batch, site.kind, _weights(values, z), self.counted)
        seen = replace(seen, layer=site.layer, allowed=values.allowed)
        for key, pattern in self.patterns:
            if key == site.key:
                applies = pattern.applies(seen)
                count = (applies.any(1) if applies.ndim == 3 else applies).sum(-1)
                self.numbers[key, pattern] = count, seen.queries.content.sum(-1)
        return z


def _observed(batch: Batch, kind: Kind, weights: Tensor, counted: Counted | None) -> Observation:
    """Return the tokens of a batch on the two sides of a kind of heads."""
    queries, keys = batch.queries(kind), batch.keys(kind)
    observation = Observation(kind, weights, queries, keys)
    if counted is None:
        return observation
    counts, ranks = counted["source" if keys is batch.source else "target"]
    return replace(observation, counts=counts, ranks=ranks)


def _weights(values: Values, z: Tensor) -> Tensor:
    """Return the heads' own weights, or none of the same shape: [batch, heads, query, key]."""
    if values.weights is not None:
        return values.weights
    return z.new_empty(1).expand(len(z), z.shape[2], z.shape[1], values.value.shape[2])


def _sides(kind: Kind, values: Values) -> tuple[str, str]:
    """Return the sides of queries and keys."""
    target = "target" if "target" in values.inputs else "source"
    return {"enc-self": ("source", "source"), "dec-self": (target, target), "cross": (target, "source")}[kind]


def _view(values: Values, side: str, special: frozenset[int]) -> TokenView:
    """Return the tokens of a forward; those that are neither padding nor special are content."""
    given = values.inputs.get(side, {})
    ids = given.get("input_ids")
    if ids is None:
        raise ValueError(
            f"a pattern needs token ids: got a forward without those of the {side}; expected "
            "input_ids, also beside encoder_outputs"
        )
    mask = given.get("attention_mask")
    mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    content = mask & ~torch.isin(ids, torch.tensor(sorted(special), dtype=ids.dtype, device=ids.device))
    if special and side == "target":
        content[:, 0] = False  # the start token, whichever id it has
    return TokenView(ids, mask, content, torch.full_like(ids, NO_WORD), (None,) * len(ids))
