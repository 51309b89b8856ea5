"""Replacements for the output z of a masked head, in z -> g z + (1 - g) replacement."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles._changes import Changes
from headroles.models.attention_hooks import AttentionCall, arguments, observe_attention
from headroles.models.batching import Batch
from headroles.models.heads import attention_sites
from headroles.models.parts import body
from headroles.models.sites import Head, Site
from headroles.tables.arguments import one_of
from headroles.tables.frame import Kind

Need = Literal["values", "weights", "trees", "links", "counts", "special"]
Counted = Mapping[str, tuple[Tensor, Tensor]]  # "source", "target" -> counts and ranks of tokens, each [vocabulary]
NEGLIGIBLE = 70.0  # of a score below the largest: a weight of exp(-70), less than 1e-30


class Values(NamedTuple):
    """The tensors from which the outputs of a site's heads are computed in one attention call."""

    value: Tensor  # [batch, key-value heads, key, size]
    allowed: Tensor | None  # bool [batch, heads or 1, query, key]; None if the model's mask is unknown
    weights: Tensor | None  # the heads' own, [batch, heads, query, key]; None where they are not needed
    inputs: Mapping[str, Mapping[str, Tensor]]  # of this forward, by side: "source" and "target"
    share: Tensor | None = None  # of the heads' own weights, without a learned sink: [batch, heads, query, 1]


class Replacement:
    """Replacement of the outputs of masked heads."""

    @property
    def needs(self) -> frozenset[Need]:
        """What it needs in addition to z.

        - values: of the attention call, with the keys that the model's mask allows; weights: the heads' own.
        - trees, links, counts, special: of the batch (`bind`) its dependency trees, word links, counts of tokens in the
          corpus, and which tokens are special.
        """
        return frozenset()

    @property
    def label(self) -> str:
        """Its name in columns and file names."""
        return type(self).__name__.lower()

    def bind(self, batch: Batch, counted: Counted | None = None) -> Replacement:  # noqa: ARG002
        """Return the replacement for forwards of a batch, each example repeated for each variant of the model."""
        return self

    def check(self, site: Site) -> None:
        """Raise ValueError if it cannot replace the outputs of a site's heads."""

    def outputs(self, site: Site, z: Tensor, values: Values, gates: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return what replaces the outputs of the heads of a site.

        Args:
            site: The site.
            z: The heads' own outputs, [batch, query, heads, size].
            values: What they are made of; empty unless the replacement needs values.
            gates: The gates of the heads, [heads] or [examples, heads]; the beams of an example follow each other in z.

        Returns:
            Tensor[batch, query, heads, size], or a shape that expands to it; None for zeros.

        Raises:
            NotImplementedError: If the replacement must be bound to a batch first.
        """
        raise NotImplementedError(f"{type(self).__name__} must be bound to a batch")


def needing(*needs: Need) -> frozenset[Need]:
    """Return the needs of attention that is imposed: values, and others."""
    return frozenset(("values", *needs))


Word = Literal["zero", "uniform"]
Computed = Callable[[Site, Tensor], Tensor]  # (site, z [batch, query, heads, size]) -> what replaces z
ReplacementLike = Word | Mapping[tuple[Kind, int], Tensor] | Mapping[Head, Replacement] | Replacement | Computed | None


def as_replacement(model: PreTrainedModel, given: ReplacementLike) -> Replacement:
    """Return a replacement from a word, outputs of each site, a function, or a replacement of each head."""
    if isinstance(given, Replacement):
        return given
    if isinstance(given, Mapping):
        if any(isinstance(part, Replacement) for part in given.values()):
            heads = attention_sites(model).named(cast(Mapping[Head, Replacement], given))
            return ByHead(dict(zip(heads, cast(Mapping[Head, Replacement], given).values(), strict=True)))
        return given_outputs(model, cast(Mapping[tuple[Kind, int], Tensor], given))
    if callable(given):
        return Function(given)
    more = ", a pattern such as headroles.patterns.Offset(-1), or a mapping (kind, layer) -> [heads, size]"
    return WORDS[one_of("replacement", "zero" if given is None else given, WORDS, more)]


class Zero(Replacement):
    """Zeros instead of the output."""

    def outputs(self, site: Site, z: Tensor, values: Values, gates: Tensor) -> None:
        """Return None, for zeros."""


class UniformAttention(Replacement):
    """The same weight on every key that the model's mask allows."""

    needs = needing()

    def outputs(self, site: Site, z: Tensor, values: Values, gates: Tensor) -> Tensor:  # noqa: ARG002
        """Return the mean of the allowed values."""
        allowed = torch.ones_like(z[:, :, 0, 0])[:, None, :, None] if values.allowed is None else values.allowed
        allowed = allowed.to(values.value).expand(-1, -1, -1, values.value.shape[2])
        weights = allowed / allowed.sum(-1, keepdim=True).clamp(min=1)
        return attended(weights if values.share is None else weights * values.share, values.value, site)


WORDS: dict[Word, Replacement] = {"zero": Zero(), "uniform": UniformAttention()}


class Function(Replacement):
    """Output that a function computes from a site and its z."""

    def __init__(self, function: Computed) -> None:
        self.function = function

    def outputs(self, site: Site, z: Tensor, values: Values, gates: Tensor) -> Tensor:  # noqa: ARG002
        """Call the function."""
        return self.function(site, z)


def given_outputs(model: PreTrainedModel, given: Mapping[tuple[Kind, int], Tensor]) -> Function:
    """Return a replacement by outputs of each site, [..., heads, size]; ValueError if they do not fit."""
    for site in attention_sites(model):
        shape = tuple(getattr(given[site.key], "shape", ())) if site.key in given else "none"
        if shape[-2:] != (site.heads, site.size):
            expected = [site.heads, site.size]
            raise ValueError(f"replacement must have outputs [heads, size] {expected} for {site.key}, got {shape}")
    return Function(lambda site, z: torch.as_tensor(given[site.key]).to(z))


class ByHead(Replacement):
    """One replacement for each of some heads."""

    def __init__(self, parts: Mapping[Head, Replacement]) -> None:
        self.parts = dict(parts)
        for part in self.parts.values():
            if not isinstance(part, Replacement):
                raise ValueError(f"replacement of each head must be a pattern such as Offset(-1), got {part!r}")

    @property
    def needs(self) -> frozenset[Need]:
        """What any of the replacements needs."""
        return frozenset[Need]().union(*(part.needs for part in self.parts.values()))

    @property
    def label(self) -> str:
        """Name in columns and file names: of the replacement if all heads have the same, otherwise a digest."""
        labels = {part.label for part in self.parts.values()}
        if len(labels) == 1:
            return labels.pop()
        written = sorted(f"{head}: {part!r}" for head, part in self.parts.items())
        return f"by-head-{hashlib.sha256(repr(written).encode()).hexdigest()[:8]}"

    def bind(self, batch: Batch, counted: Counted | None = None) -> ByHead:
        """Return the replacements for one batch; heads with the same replacement share it."""
        bound = {id(part): part.bind(batch, counted) for part in self.parts.values()}
        return ByHead({head: bound[id(part)] for head, part in self.parts.items()})

    def check(self, site: Site) -> None:
        """Raise ValueError if a replacement does not fit its head of the site."""
        for (kind, layer, _), part in self.parts.items():
            if (kind, layer) == site.key:
                part.check(site)

    def outputs(self, site: Site, z: Tensor, values: Values, gates: Tensor) -> Tensor:
        """Return the outputs of the heads that have a replacement; others are zero."""
        places: dict[int, tuple[Replacement, list[int]]] = {}
        for place, number in enumerate(site.numbers):
            part = self.parts.get((*site.key, number))
            if part is not None:
                places.setdefault(id(part), (part, []))[1].append(place)
        replaced = torch.zeros_like(z)
        for part, columns in places.values():
            outputs = part.outputs(site, z, values, gates)
            if outputs is not None:
                replaced[:, :, columns] = outputs[:, :, columns]
        return replaced


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


# Outputs under other weights are made of the values of an attention call, but they replace z at the output projection,
# which runs after the call. So the values of each call are kept until its projection asks for them. What the projection
# reads must be what the call returned: an operation in between (a norm, a gate of the model's own) would be left out.
# Patterns of tokens read the ids and masks with which the encoder and the decoder were called in the same forward.
def capture_values(
    changes: Changes, sites: Sequence[Site], gates: Tensor, replacement: Replacement
) -> Callable[[Site, Tensor, Tensor], Tensor | None]:
    """Keep the values of attention calls within the block; sites with gates other than 1 must have values.

    Returns:
        A function of a site, its outputs and its gates, which returns what replaces the outputs; None where all gates
        are 1 and need no gradient.
    """
    kept: dict[nn.Module, tuple[Tensor | None, Values | None]] = {}  # what the last call returned, and its values
    inputs: dict[str, dict[str, Tensor]] = {}
    by_module = {site.module: site for site in sites}

    def keep(call: AttentionCall) -> None:
        if (site := by_module.get(call.module)) is not None:
            mask = site.join_mask(call.mask)
            weights = site.join(call.weights) if "weights" in replacement.needs else None
            has_sink = getattr(call.module, "sinks", None) is not None  # of gpt-oss: its share is no token's
            share = site.join(call.weights.sum(-1, keepdim=True)) if has_sink else None
            values = Values(site.join(call.value), None if mask is None else allowed(mask), weights, inputs, share)
            kept[call.module] = site.join(call.out, 2), values

    def outputs(site: Site, z: Tensor, gates: Tensor) -> Tensor | None:
        out, values = kept.pop(site.module, (None, None))
        is_replaced = (gates != 1).reshape(-1, site.heads).any(0) | gates.requires_grad  # others: by another mask
        is_left = [number not in site.zeroed for number in site.numbers]
        is_replaced &= torch.tensor(is_left, device=gates.device)  # the outputs of removed ones are 0
        if out is not None and not torch.equal(out.reshape(z.shape)[:, :, is_replaced], z[:, :, is_replaced]):
            raise ValueError(
                f"no other attention can be imposed on {site.name} in {type(changes.model).__name__}: an operation "
                f"between attention and its output projection changes the outputs of its heads; try replacement='mean'"
            )
        if not gates.requires_grad and not (gates != 1).any():
            return None
        return z if values is None else replacement.outputs(site, z, values, gates)

    _keep_inputs(changes, inputs)
    for site, part in zip(sites, gates.split([site.heads for site in sites], dim=-1), strict=True):
        is_masked = bool((part != 1).any())
        if site.outside is not None and (is_masked or site.outside.value is not None):
            _keep_outside(changes, site, kept, inputs, needs_weights=is_masked and "weights" in replacement.needs)
    observe_attention(changes, keep)
    return outputs


def _keep_inputs(changes: Changes, inputs: dict[str, dict[str, Tensor]]) -> None:
    """Keep the token ids and attention masks of the encoder and the decoder in each forward, by side."""

    def keep(side: str, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        inputs[side] = _tokens(arguments(module, args, kwargs).arguments)

    model = changes.model
    if not model.config.is_encoder_decoder:
        changes.hook(body(model), partial(keep, "source"), with_kwargs=True)
        return
    changes.hook(model.get_encoder(), partial(keep, "source"), with_kwargs=True)
    changes.hook(model.get_decoder(), partial(keep, "target"), with_kwargs=True)
    _keep_source(changes, model.get_encoder(), inputs)


def _tokens(given: Mapping[str, Any]) -> dict[str, Tensor]:
    tensors = {name: given.get(name) for name in ("input_ids", "attention_mask")}
    return {name: value for name, value in tensors.items() if isinstance(value, Tensor)}


# In a forward with given `encoder_outputs` (a step of generation, a variant with an intact encoder) the encoder does
# not run, and the source has no ids. If the encoder wrote these states last, also if they are repeated for several
# beams, the ids are the ones that it read then. Other states have the ids of this call alone, if it has any.
def _keep_source(changes: Changes, encoder: nn.Module, inputs: dict[str, dict[str, Tensor]]) -> None:
    """Find the source's tokens of a forward in which the encoder does not run."""
    latest: list[tuple[Tensor, dict[str, Tensor]]] = []  # the states that the encoder wrote last, and their tokens

    def keep(_: nn.Module, __: object, output: Any) -> None:
        latest[:] = [(output[0], inputs.get("source", {}))]

    def find(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        given: Any = arguments(module, args, kwargs).arguments
        states = given.get("encoder_outputs")
        if states is None:
            return
        inputs["source"] = _tokens(given)
        for written, tokens in latest:
            beams = len(states[0]) // max(1, len(written))  # the beams of an example are adjacent
            same = torch.equal(written.repeat_interleave(beams, 0), states[0].to(written.device))
            if same and "input_ids" not in inputs["source"]:
                inputs["source"] = {name: value.repeat_interleave(beams, 0) for name, value in tokens.items()}

    changes.hook(encoder, keep, after=True)
    for module in changes.model.modules():
        if isinstance(module, PreTrainedModel) and "encoder_outputs" in inspect.signature(module.forward).parameters:
            changes.hook(module, find, with_kwargs=True)


def _keep_outside(
    changes: Changes,
    site: Site,
    kept: dict[nn.Module, tuple[Tensor | None, Values | None]],
    inputs: dict[str, dict[str, Tensor]],
    *,
    needs_weights: bool,
) -> None:
    """Keep the values of a site outside the attention interface, by its value map."""
    name = site.outside.value if site.outside is not None else None
    if name is None or needs_weights:
        raise ValueError(
            f"no other attention can be imposed on {site.name} in {type(changes.model).__name__}: its "
            f"{'values' if name is None else 'weights'} are outside transformers' attention interface; try "
            f"replacement='mean'"
        )

    def keep(_: nn.Module, __: object, output: Tensor) -> None:
        value = output.unflatten(-1, (site.kv_heads, site.size)).transpose(1, 2)
        mask = inputs.get("source", {}).get("attention_mask")
        if mask is not None:
            rows = mask.bool() if mask.ndim == 3 else mask.bool()[:, None]  # [batch, query or 1, key]
            mask = rows[:, None].expand(-1, -1, value.shape[2], -1)
        kept[site.module] = None, Values(value, mask, None, inputs)

    changes.hook(site.module.get_submodule(name), keep, after=True)
