"""Patterns: which keys each query is about, measured as a score or imposed as a replacement."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor

from headroles.models.batching import Batch, TokenView
from headroles.models.head_model import HeadModel
from headroles.models.masking import head_mask, mask_heads
from headroles.models.replacements import Counted, Need, Replacement, Values, attended, needing
from headroles.models.sites import Head, Site
from headroles.models.tokens.alignment import NO_WORD
from headroles.patterns.observation import Observation
from headroles.tables.frame import KINDS, Kind

CHANGED = 1e-5  # share of a query's weights that a pattern of the heads' own weights moves, more than by rounding
NAMES: dict[Need, str] = {  # what a pattern needs of a batch
    "trees": "dependency trees",
    "links": "word links",
    "counts": "counts of tokens",
    "special": "the ids of special tokens",
}


@dataclass(frozen=True)
class Pattern(Replacement):
    """Base class of patterns. A subclass is a frozen dataclass; its fields are options.

    `targets` returns for each query the keys that it is about. `hr.score(model, tokenizer, corpus, [pattern])` measures
    how often a head attends there. `hr.mask_heads(..., replacement=pattern)` and `hr.ablate(..., replacement=pattern)`
    make a head attend exactly there, with the model's own values; where the pattern does not apply, it is unchanged.
    """

    needs = needing()
    kinds: ClassVar[tuple[Kind, ...]] = KINDS
    about: ClassVar[str] = ""  # where its heads attend, for the report

    @abstractmethod
    def targets(self, observation: Observation) -> Tensor:
        """Return the weights of the pattern.

        Args:
            observation: The tokens of one batch at one site. Its `weights` may be missing when the pattern is imposed.

        Returns:
            Tensor[batch, query, key], or Tensor[batch, heads, query, key] where heads differ. The weights of a query
            sum to 1, or are all 0 where the pattern does not apply.
        """

    def view(self, observation: Observation) -> Observation:
        """Return the observation with the tokens that its queries stand for; by default the tokens that they read."""
        return observation

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
        """Return which content queries the pattern is about: bool [batch, heads or 1, query].

        Of a pattern made of the heads' own weights, the queries at which it changes the weights.
        """
        weights = self._seen(observation)
        total = weights.sum(-1)
        if "weights" in self.needs:
            before = observation.weights.float()
            size = before.sum(-1)
            changes = (weights * size[..., None] - before * total[..., None]).abs().sum(-1)
            total = total * (changes > CHANGED * size * total)
        return (total > 0) & self.view(observation).queries.content[:, None]

    def _seen(self, observation: Observation) -> Tensor:
        """Return the weights on keys that the model's mask allows: [batch, heads or 1, query, key]."""
        weights = self.targets(observation)
        weights = weights if weights.ndim == 4 else weights[:, None]
        return weights if observation.allowed is None else weights * observation.allowed

    def check(self, site: Site) -> None:
        """Raise ValueError if the pattern does not apply to heads of the site's kind."""
        if site.kind not in self.kinds:
            raise ValueError(
                f"pattern {self} is for {' or '.join(self.kinds)} heads, got {site.kind} heads of {site.name}"
            )

    # imposed

    def bind(self, batch: Batch, counted: Counted | None = None) -> BoundPattern:
        """Return the pattern for the forwards of one batch."""
        return BoundPattern(self, batch, counted)

    def outputs(self, site: Site, z: Tensor, values: Values, gates: Tensor) -> Tensor:
        """Return the outputs of heads under the pattern, from the token ids of a forward."""
        if site.kind in self.kinds and (needs := sorted(self.needs - needing("weights"))):
            raise ValueError(
                f"pattern {self} needs {NAMES[needs[0]]}, and a forward has none; try hr.ablate(..., replacement=...)"
            )
        return BoundPattern(self).outputs(site, z, values, gates)

    def imposed(self, observation: Observation, site: Site, z: Tensor, values: Values) -> Tensor:
        """Return the outputs of heads under the pattern, or z where it does not apply."""
        got = [len(z), z.shape[1], values.value.shape[2]]
        expected = [*observation.queries.ids.shape, observation.keys.ids.shape[1]]
        if got != expected:
            raise ValueError(
                f"pattern {self} needs all tokens in one forward, {expected} examples, queries and keys, got {got}; "
                f"try use_cache=False"
            )
        weights = self._seen(replace(observation, allowed=values.allowed))
        total = weights.sum(-1, keepdim=True) * self.view(observation).queries.content[:, None, :, None]
        weights = weights / total.clamp(min=torch.finfo(torch.float32).tiny)
        if values.share is not None:
            weights = weights * self.share(observation, values.share)
        return torch.where((total > 0).transpose(1, 2), self.outputs_where(weights, site, values), z)

    def share(self, observation: Observation, share: Tensor) -> Tensor:  # noqa: ARG002
        """Return the share of weights that a learned sink leaves, [batch, heads, query, 1]: as without the pattern."""
        return share

    def outputs_where(self, weights: Tensor, site: Site, values: Values) -> Tensor:
        """Return the outputs of heads where the pattern applies; weights: [batch, heads or 1, query, key]."""
        return attended(weights.to(values.value), values.value, site)


class OfPattern:
    """Base class of objects with a pattern, which take the kinds of heads and the needs from it."""

    pattern: Pattern
    kinds: ClassVar[Any] = property(attrgetter("pattern.kinds"))
    needs: ClassVar[Any] = property(attrgetter("pattern.needs"))

    def check(self, site: Site) -> None:
        """Raise ValueError if the heads of a site cannot attend by the pattern."""
        self.pattern.check(site)

    def view(self, observation: Observation) -> Observation:
        """Return the observation with the tokens that its queries stand for."""
        return self.pattern.view(observation)


class BoundPattern(OfPattern, Replacement):
    """A pattern for the forwards of one batch, which may be repeated for several variants, or without a batch."""

    def __init__(self, pattern: Pattern, batch: Batch | None = None, counted: Counted | None = None) -> None:
        self.pattern, self.batch, self.counted = pattern, batch, counted

    def outputs(self, site: Site, z: Tensor, values: Values, gates: Tensor) -> Tensor:  # noqa: ARG002
        """Return the outputs of heads under the pattern."""
        if site.kind not in self.pattern.kinds:
            return z
        return self.pattern.imposed(self.observation(site, z, values), site, z, values)

    def observation(self, site: Site, z: Tensor, values: Values) -> Observation:
        """Return the tokens of the batch or the forward at a site, with the weights of its heads if they are kept."""
        weights = values.weights
        if weights is None:  # a placeholder
            weights = z.new_empty(1).expand(len(z), z.shape[2], z.shape[1], values.value.shape[2])
        if self.batch is None:
            target = "target" if "target" in values.inputs else "source"
            queries = _view(values, "source" if site.kind == "enc-self" else target)
            keys = _view(values, target if site.kind == "dec-self" else "source")
        else:
            queries, keys = self.batch.queries(site.kind), self.batch.keys(site.kind)
        observation = Observation(site.kind, weights, queries, keys, layer=site.layer)
        if self.batch is None or self.counted is None:
            return observation
        counts, ranks = self.counted["source" if keys is self.batch.source else "target"]
        return replace(observation, counts=counts, ranks=ranks)


Place = tuple[tuple[Kind, int], Pattern]  # kind and layer of heads, and a pattern


def count_applications(
    model: HeadModel, patterns: Mapping[Place, Head], batch: Batch, counted: Counted | None
) -> dict[Place, Tensor]:
    """Count the content queries to which patterns apply, and all content queries: each [2, text]."""
    counts = _Count(patterns, batch, counted)
    with mask_heads(model.model, head_mask(model.model, patterns.values()), counts):  # a head of each layer
        model.forward_body(batch)
    return counts.numbers


class _Count(Replacement):
    """Counts queries, and leaves the outputs of heads as they are."""

    needs: ClassVar[Any] = property(
        lambda self: needing("weights") & frozenset().union(*(p.needs for _, p in self.bound))
    )

    def __init__(self, patterns: Iterable[Place], batch: Batch, counted: Counted | None) -> None:
        self.bound = {(key, pattern): pattern.bind(batch, counted) for key, pattern in patterns}
        self.numbers: dict[Place, Tensor] = {}

    def outputs(self, site: Site, z: Tensor, values: Values, gates: Tensor) -> Tensor:  # noqa: ARG002
        for (key, pattern), bound in self.bound.items():
            if key == site.key:
                seen = replace(bound.observation(site, z, values), allowed=values.allowed)
                count = pattern.applies(seen).any(1).sum(-1)
                self.numbers[key, pattern] = torch.stack([count, pattern.view(seen).queries.content.sum(-1)])
        return z


def _view(values: Values, side: str) -> TokenView:
    """Return the tokens of a forward; all but padding are content."""
    given = values.inputs.get(side, {})
    ids = given.get("input_ids")
    if ids is None:
        raise ValueError(
            f"a pattern needs token ids, got a forward without {side} ids; try input_ids together with encoder_outputs"
        )
    mask = given.get("attention_mask")
    mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    return TokenView(ids, mask, mask, torch.full_like(ids, NO_WORD), (None,) * len(ids))
