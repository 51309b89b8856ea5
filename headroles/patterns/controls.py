"""Controls: patterns as sharp as a given one but at other places, and other changes of the same queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from headroles.models.replacements import Values
from headroles.models.sites import Site
from headroles.patterns.base import OfPattern, Pattern
from headroles.patterns.observation import Observation
from headroles.patterns.simple import shifted


@dataclass(frozen=True)
class _Control(OfPattern, Pattern):
    """A pattern that moves the targets of another one."""

    pattern: Pattern


@dataclass(frozen=True)
class Shift(_Control):
    """The targets of a pattern, each `by` tokens later: equally sharp, elsewhere.

    If a shifted target is not a content token that the query may attend to, all targets are shifted to the other side;
    if that fails too, each target is shifted to the side where it fits. If that fails or gives the same targets, the
    pattern does not apply.

    Args:
        pattern: The pattern.
        by: The number of tokens; negative for earlier ones.
    """

    by: int

    def targets(self, observation: Observation) -> Tensor:
        """Return the shifted weights."""
        # A query takes the first of three candidates that loses no weight (`_moved` drops targets beyond the visible
        # keys): all shifted forth, all back, or `mixed`. For this, targets that are lost forth are found by shifting
        # the rest back, and move to the other side. If two targets change places, `mixed` is not a control.
        targets = self.pattern.targets(observation)
        forth, back = (_moved(targets, by, observation) for by in (self.by, -self.by))
        lost = targets - shifted(forth, -self.by)
        mixed = forth + _moved(lost, -self.by, observation)
        is_control = ((mixed - targets).abs().sum(-1, keepdim=True) > 1e-6) & _keeps_all(mixed, targets)
        otherwise = torch.where(_keeps_all(back, targets), back, torch.where(is_control, mixed, 0.0))
        return torch.where(_keeps_all(forth, targets), forth, otherwise)


@dataclass(frozen=True)
class Shuffle(_Control):
    """The targets of a pattern on random content tokens that the query may attend to: equally sharp, anywhere.

    Args:
        pattern: The pattern.
        seed: Seed of the random places.
    """

    seed: int = 0

    def targets(self, observation: Observation) -> Tensor:
        """Return the weights on shuffled keys: the k-th largest weight is on the k-th key of a random order."""
        targets = self.pattern.targets(observation)
        batch, queries, keys = targets.shape[0], targets.shape[-2], targets.shape[-1]
        noise = self._noise(observation.first, queries, keys).to(targets)
        visible = _visible(observation)  # sorted first
        order = noise.expand(batch, -1, -1).masked_fill(~visible, 2.0).argsort(dim=-1, stable=True)
        if targets.ndim == 4:
            order, visible = order[:, None].expand_as(targets), visible[:, None]
        shuffled = torch.zeros_like(targets).scatter_(-1, order, targets.sort(-1, descending=True).values)
        return torch.where(_keeps_all(shuffled * visible, targets), shuffled, 0.0)

    def _noise(self, first: int, queries: int, keys: int) -> Tensor:
        """Return a random number for each query and key, which does not depend on the batch: [query, key]."""
        # Numbers drawn row by row would depend on the number of keys, and so on the batch. Here the pairs are counted
        # in squares, each around the last (Rosenberg and Strong 1972): (0, 0); then (0, 1), (1, 1), (1, 0); ... so that
        # a pair has its number in the stream whatever the size of the largest square.
        row, column = torch.arange(first, first + queries)[:, None], torch.arange(keys)
        size = max(first + queries, keys)
        numbers = torch.rand(size**2, generator=torch.Generator().manual_seed(self.seed))
        further = torch.maximum(row, column)
        return numbers[further**2 + further + row - column]


@dataclass(frozen=True)
class Absent(_Control):
    """No output at the queries to which a pattern applies."""

    def targets(self, observation: Observation) -> Tensor:
        """Return the weights of the pattern."""
        return self.pattern.targets(observation)

    def outputs_where(self, weights: Tensor, site: Site, values: Values) -> Tensor:
        """Return zeros."""
        return torch.zeros_like(super().outputs_where(weights, site, values))


@dataclass(frozen=True)
class Where(Pattern):
    """Another pattern at the queries to which a pattern applies, such as a fixed offset instead of a dependency.

    Args:
        pattern: The pattern of the queries.
        other: The pattern of the keys to which they attend.
    """

    pattern: Pattern
    other: Pattern
    needs = property(lambda self: self.pattern.needs | self.other.needs)
    kinds: ClassVar[Any] = property(lambda self: tuple(k for k in self.pattern.kinds if k in self.other.kinds))

    def check(self, site: Site) -> None:
        """Raise ValueError if the heads of a site cannot attend by both patterns."""
        self.pattern.check(site)
        self.other.check(site)

    def view(self, observation: Observation) -> Observation:
        """Return the observation with the tokens that its queries stand for, by the pattern of the queries."""
        return self.pattern.view(observation)

    def targets(self, observation: Observation) -> Tensor:
        """Return the weights of the other pattern."""
        where, weights = self.pattern.targets(observation).sum(-1, keepdim=True) > 0, self.other.targets(observation)
        where = where if where.ndim >= weights.ndim else where[:, None]
        return (weights if weights.ndim >= where.ndim else weights[:, None]) * where


def _visible(observation: Observation) -> Tensor:
    """Return the content keys that a query may attend to: bool [batch, query, key]."""
    keys = observation.keys.content[:, None].expand(-1, observation.queries.ids.shape[1], -1)
    keys = keys.tril(observation.first) if observation.causal else keys
    return keys if observation.allowed is None else keys & observation.allowed.any(1)


def _moved(targets: Tensor, by: int, observation: Observation) -> Tensor:
    """Return targets moved along the keys; a target beyond the keys that a query may attend to is dropped."""
    visible = _visible(observation)
    return shifted(targets, by) * (visible if targets.ndim == 3 else visible[:, None])


def _keeps_all(moved: Tensor, targets: Tensor) -> Tensor:
    """Return which queries keep all of their weight: bool [..., query, 1]."""
    total = targets.sum(-1, keepdim=True)
    return (moved.sum(-1, keepdim=True) >= total - 1e-6) & (total > 0)
