"""Imposed attention: replacements of head outputs by those under other attention weights, of the model's own values."""

from __future__ import annotations

import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles._changes import Changes
from headroles.models import dummy_inputs
from headroles.models.attention_hooks import Call, arguments, observe_attention
from headroles.models.batching import Batch
from headroles.models.heads import Head
from headroles.models.sites import Site

Counted = Mapping[str, tuple[Tensor, Tensor]]  # "source", "target" -> counts and ranks of tokens, each [vocabulary]
NEGLIGIBLE = 70.0  # of a score below the largest: a weight of exp(-70), less than 1e-30


class Values(NamedTuple):
    """What the outputs of a site's heads are made of in one attention call."""

    value: Tensor  # [batch, key-value heads, key, size]
    allowed: Tensor | None  # bool [batch, heads or 1, query, key]; None if the model's mask is unknown
    weights: Tensor | None  # the heads' own, [batch, heads, query, key]; None outside the attention interface
    inputs: Mapping[str, Mapping[str, Tensor]]  # of this forward, by side: "source" and "target"


class Imposed(ABC):
    """A replacement of head outputs by those under other attention weights."""

    needs_weights: bool = False  # the heads' own
    needs_trees: bool = False
    needs_counts: bool = False  # of tokens in a corpus
    needs_links: bool = False  # of words and their translations
    needs_special: bool = False  # which tokens are special

    @abstractmethod
    def outputs(self, site: Site, z: Tensor, values: Values) -> Tensor:
        """Return the outputs of the heads of a site under the imposed attention.

        Args:
            site: The site.
            z: The heads' own outputs, [batch, query, heads, size].
            values: What they are made of.

        Returns:
            Tensor[batch, query, heads, size].
        """

    def of(self, batch: Batch, counted: Counted | None = None) -> Imposed:  # noqa: ARG002
        """Return the replacement for the forwards of one batch, with its words, trees and counts."""
        return self

    def check(self, site: Site) -> None:  # noqa: B027
        """Raise ValueError if this attention cannot be imposed on the heads of a site."""


class Uniform(Imposed):
    """The same weight on every key that the model's mask allows."""

    def outputs(self, site: Site, z: Tensor, values: Values) -> Tensor:  # noqa: ARG002
        """Return the mean of the allowed values."""
        allowed = torch.ones_like(z[:, :, 0, 0])[:, None, :, None] if values.allowed is None else values.allowed
        allowed = allowed.to(values.value).expand(-1, -1, -1, values.value.shape[2])
        return attended(allowed / allowed.sum(-1, keepdim=True).clamp(min=1), values.value, site)


class Zero(Imposed):
    """No output: what masking does, for heads beside others that attend by a pattern."""

    def outputs(self, site: Site, z: Tensor, values: Values) -> Tensor:  # noqa: ARG002
        """Return zeros."""
        return torch.zeros_like(z)


class ByHead(Imposed):
    """One replacement for each of some heads."""

    def __init__(self, replacements: Mapping[Head, Imposed]) -> None:
        self.replacements = dict(replacements)
        parts = self.replacements.values()
        if strays := [part for part in parts if not isinstance(part, Imposed)]:
            raise ValueError(
                f"no pattern: got {strays[0]!r} for one head; expected a pattern for each, such as Offset(-1); try "
                f"replacement={strays[0]!r} for all of them"
            )
        self.needs_weights = any(part.needs_weights for part in parts)
        self.needs_trees = any(part.needs_trees for part in parts)
        self.needs_counts = any(part.needs_counts for part in parts)
        self.needs_links = any(part.needs_links for part in parts)

    @property
    def label(self) -> str:
        """The replacement of all heads if it is the same, otherwise a digest: in columns and file names."""
        labels = {str(getattr(part, "label", part)) for part in self.replacements.values()}
        if len(labels) == 1:
            return labels.pop()
        written = sorted(f"{head}: {part!r}" for head, part in self.replacements.items())
        return f"by-head-{hashlib.sha256(repr(written).encode()).hexdigest()[:8]}"

    def of(self, batch: Batch, counted: Counted | None = None) -> ByHead:
        """Return the replacements for one batch; heads of one replacement share it."""
        bound = {id(part): part.of(batch, counted) for part in self.replacements.values()}
        return ByHead({head: bound[id(part)] for head, part in self.replacements.items()})

    def outputs(self, site: Site, z: Tensor, values: Values) -> Tensor:
        """Return the outputs of the heads that have a replacement; others are zero."""
        places: dict[int, tuple[Imposed, list[int]]] = {}
        for place, number in enumerate(site.numbers):
            part = self.replacements.get((*site.key, number))
            if part is not None:
                places.setdefault(id(part), (part, []))[1].append(place)
        replaced = torch.zeros_like(z)
        for part, columns in places.values():
            replaced[:, :, columns] = part.outputs(site, z, values)[:, :, columns]
        return replaced

    def check(self, site: Site) -> None:
        """Raise ValueError if a replacement does not fit its head of the site."""
        for (kind, layer, _), part in self.replacements.items():
            if (kind, layer) == site.key:
                part.check(site)


def attended(weights: Tensor, value: Tensor, site: Site) -> Tensor:
    """Return the outputs of heads under weights, [batch, heads or 1, query, key]: [batch, query, heads, size]."""
    groups = site.heads // value.shape[1]
    if weights.shape[1] != 1 and groups > 1:
        value, groups = value.repeat_interleave(groups, dim=1), 1  # [batch, heads, key, size]
    return (weights @ value).repeat_interleave(groups, dim=1).transpose(1, 2)


def allowed(mask: Tensor) -> Tensor:
    """Return the keys that an additive mask allows, also one with biases: bool [batch, heads or 1, query, key].

    Besides the lowest numbers of the dtype, models write masks as -10,000 (MarkupLM), or as -100 on top of a bias
    (Swin). Biases of distance may be as low in a head, but not in all.
    """
    best = mask.amax(1, keepdim=True)  # of all heads
    return (mask > torch.finfo(mask.dtype).min / 2) & (best > best.amax(-1, keepdim=True) - NEGLIGIBLE)


def read(
    changes: Changes, model: PreTrainedModel, sites: Sequence[Site], gates: Tensor, replacement: Imposed
) -> Callable[[Site, Tensor, Tensor], Tensor | None]:
    """Return a function of a site, its outputs and its gates, which returns the outputs under the imposed attention.

    Sites with gates other than 1 are checked; heads of other sites keep their outputs: the function returns None, but
    where gates need the gradient.
    """
    kept: dict[nn.Module, Values] = {}
    outs: dict[nn.Module, Tensor] = {}
    inputs: dict[str, dict[str, Tensor]] = {}

    def keep(site: Site, call: Call) -> None:
        outs[call.module] = site.join(call.out, 2)
        kept[call.module] = _values(site, call, inputs, needs_weights=replacement.needs_weights)

    def replaced(site: Site, z: Tensor, gates: Tensor) -> Tensor | None:
        out = outs.pop(site.module, None)
        is_replaced = (gates != 1).reshape(-1, site.heads).any(0) | gates.requires_grad  # others: by another mask
        if out is not None and not torch.equal(out.reshape(z.shape)[:, :, is_replaced], z[:, :, is_replaced]):
            raise ValueError(
                f"no other attention can be imposed on {site.name} in {type(model).__name__}: an operation between "
                f"attention and its output projection changes the outputs of its heads; try replacement='mean'"
            )
        values = kept.pop(site.module, None)
        if not gates.requires_grad and not (gates != 1).any():
            return None
        return z if values is None else replacement.outputs(site, z, values)

    sides = _sides(model)
    for side, module in sides.items():
        changes.hook(module, _Reader(side, inputs), with_kwargs=True)
    if "target" in sides:
        _read_states(changes, model, sides, inputs)
    for site, part in zip(sites, gates.split([site.heads for site in sites], dim=-1), strict=True):
        is_masked = bool((part != 1).any())
        if is_masked:
            replacement.check(site)
        if site.outside is not None and (is_masked or site.outside.value is not None):
            _read_outside(changes, model, site, kept, inputs, needs_weights=is_masked and replacement.needs_weights)
    observe_attention(changes, _at_sites(sites, keep))
    return replaced


def _at_sites(sites: Sequence[Site], keep: Callable[[Site, Call], None]) -> Callable[[Call], None]:
    places = {site.module: site for site in sites}
    return lambda call: keep(places[call.module], call) if call.module in places else None


def _values(site: Site, call: Call, inputs: Mapping[str, Mapping[str, Tensor]], *, needs_weights: bool) -> Values:
    mask = site.join_mask(call.mask)
    weights = site.join(call.weights) if needs_weights else None
    return Values(site.join(call.value), None if mask is None else allowed(mask), weights, inputs)


class _Reader:
    """The hook on an encoder or decoder that keeps the token ids and attention mask of its input."""

    def __init__(self, side: str, inputs: dict[str, dict[str, Tensor]]) -> None:
        self.side, self.inputs = side, inputs

    def __call__(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        given = arguments(module, args, kwargs).arguments
        tensors = {name: given.get(name) for name in ("input_ids", "attention_mask")}
        self.inputs[self.side] = {name: value for name, value in tensors.items() if isinstance(value, Tensor)}


def _read_states(
    changes: Changes, model: PreTrainedModel, sides: Mapping[str, nn.Module], inputs: dict[str, dict[str, Tensor]]
) -> None:
    """Take the source's tokens of a forward from its states where the encoder does not run in it."""
    latest: list[tuple[Tensor, dict[str, Tensor]]] = []  # the states that the encoder wrote last, and their tokens

    def keep(_: nn.Module, __: object, output: Any) -> None:
        latest[:] = [(output[0], inputs.get("source", {}))]

    def find(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        given: Any = arguments(module, args, kwargs).arguments
        states = given.get("encoder_outputs")
        if states is None:
            return
        tensors = {name: given.get(name) for name in ("input_ids", "attention_mask")}
        inputs["source"] = {name: value for name, value in tensors.items() if isinstance(value, Tensor)}
        for read, tokens in latest:
            beams = len(states[0]) // max(1, len(read))  # those of an example are adjacent
            same = torch.equal(read.repeat_interleave(beams, 0), states[0].to(read.device))
            if same and "input_ids" not in inputs["source"]:
                inputs["source"] = {name: value.repeat_interleave(beams, 0) for name, value in tokens.items()}

    changes.hook(sides["source"], keep, after=True)
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and "encoder_outputs" in inspect.signature(module.forward).parameters:
            changes.hook(module, find, with_kwargs=True)


def _sides(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Return the modules that read the source and, of an encoder-decoder, the target."""
    if model.config.is_encoder_decoder:
        return {"source": model.get_encoder(), "target": model.get_decoder()}
    return {"source": dummy_inputs.body(model)}


def _read_outside(
    changes: Changes,
    model: PreTrainedModel,
    site: Site,
    kept: dict[nn.Module, Values],
    inputs: dict[str, dict[str, Tensor]],
    *,
    needs_weights: bool,
) -> None:
    """Keep the values of a site outside the attention interface, by its value map."""
    linear = (
        None if site.outside is None or site.outside.value is None else site.module.get_submodule(site.outside.value)
    )
    if linear is None or needs_weights:
        what = "values" if linear is None else "weights"
        raise ValueError(
            f"no other attention can be imposed on {site.name} in {type(model).__name__}: its {what} are outside "
            f"transformers' attention interface; try replacement='mean'"
        )

    def keep(_: nn.Module, __: object, output: Tensor) -> None:
        value = output.unflatten(-1, (site.kv_heads, site.size)).transpose(1, 2)
        mask = inputs.get("source", {}).get("attention_mask")
        if mask is not None:
            rows = mask.bool() if mask.ndim == 3 else mask.bool()[:, None]  # [batch, query or 1, key]
            mask = rows[:, None].expand(-1, -1, value.shape[2], -1)
        kept[site.module] = Values(value, mask, None, inputs)

    changes.hook(linear, keep, after=True)
