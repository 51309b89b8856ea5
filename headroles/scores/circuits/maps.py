"""Maps: what each head reads from the residual stream and writes to it, as matrices read from a forward pass."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles.models.attention_hooks import Call, attending, evaluating
from headroles.models.dummy_inputs import dummy_inputs, without_cache
from headroles.models.heads import attention_sites, layer_of, layers
from headroles.models.sites import Site
from headroles.scores.lrp import lrp_rules
from headroles.scores.outputs import has_vocabulary
from headroles.scores.value_norms import output_weight, unreadable
from headroles.tables.frame import Kind


class Maps(NamedTuple):
    """The linear maps of one site: what each head reads from the residual stream, and what it writes."""

    query: Tensor  # [heads, size, width]
    key: Tensor
    value: Tensor
    out: Tensor


class Circuits(NamedTuple):
    """The maps of all sites, and that of the final norm, [width, width], if the unembedding follows it."""

    maps: dict[tuple[Kind, int], Maps]  # of self-attention
    final: Tensor | None


def read_circuits(model: PreTrainedModel) -> Circuits:
    """Read the maps as Jacobians, which needs neither the family's order of queries, keys and values nor its names."""
    if fault := unreadable(model):
        raise ValueError(fault.replace("norms need", "circuits need", 1))
    try:
        return _read(model, every_layer=False)
    except ValueError:  # a layer reads the sum of earlier layers without a norm (OLMo 2)
        return _read(model, every_layer=True)


@dataclass(frozen=True)
class _Reader:
    """One forward, in which the inputs of layers and of norms outside attention are leaves."""

    leaves: list[Tensor] = field(default_factory=list)
    calls: dict[nn.Module, list[Call]] = field(default_factory=dict)
    maps: list[nn.Module] = field(default_factory=list)  # linear maps in the order in which they ran
    last: list[Tensor] = field(default_factory=list)  # the input of each of them

    def jacobian(self, output: Tensor, name: str) -> Tensor:
        """The map from the nearest leaf to a tensor of the first token: [features, width]."""
        flat = output.flatten()
        eye = torch.eye(len(flat), dtype=flat.dtype, device=flat.device)
        reached = torch.autograd.grad(flat.sum(), self.leaves, retain_graph=True, allow_unused=True)
        leaves = [leaf for leaf, slope in zip(self.leaves, reached, strict=True) if slope is not None]
        if len(leaves) != 1:
            raise ValueError(f"maps of {name} cannot be read: got {len(leaves)} norms before it; expected one")
        (rows,) = torch.autograd.grad(flat, leaves, eye, retain_graph=True, is_grads_batched=True)
        return rows[:, 0, 0].double().cpu()  # of the first token


def _read(model: PreTrainedModel, *, every_layer: bool) -> Circuits:
    """Read the maps; a layer reads from its input, or with `every_layer=False` from the input of the norm before."""
    sites, reader = attention_sites(model), _Reader()
    with ExitStack() as stack:
        _hook(stack, model, [site for site in sites if every_layer or site.layer == 0], reader)
        for context in (evaluating(model), lrp_rules(model, "cp"), torch.enable_grad()):
            stack.enter_context(context)
        model(**dummy_inputs(model), **without_cache(model))
        maps = {site.key: _maps(site, reader) for site in sites if site.heads and site.kind != "cross"}
        unembedding = model.get_output_embeddings() if has_vocabulary(model) else None
        follows = unembedding in reader.maps and any(reader.maps[-2] in layer.modules() for layer in layers(model))
        final = reader.jacobian(reader.last[-1][:, :1], "the unembedding") if follows else None
    return Circuits(maps, final)


def _hook(stack: ExitStack, model: PreTrainedModel, starts: list[Site], reader: _Reader) -> None:
    """Make leaves, of layers at `starts` and norms, and keep attention calls and linear maps until `stack` is left."""

    def start(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if not args:
            return None
        reader.leaves.append(args[0].detach().requires_grad_())
        return reader.leaves[-1], *args[1:]

    def ran(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        reader.maps.append(module)
        reader.last.append(args[0] if args else torch.empty(0))

    inside = {part for site in attention_sites(model) for part in site.module.modules()}
    layers = {layer_of(model, site) for site in starts}
    for module in model.modules():
        if module in layers or (module not in inside and is_norm(module)):
            stack.callback(module.register_forward_pre_hook(start).remove)
        elif getattr(getattr(module, "weight", None), "ndim", 0) == 2:
            stack.callback(module.register_forward_pre_hook(ran).remove)
    stack.enter_context(attending(model, lambda call: reader.calls.setdefault(call.module, []).append(call)))


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm: all its own weights are vectors, and it has no children."""
    weights = list(module.parameters(recurse=False))
    return bool(weights) and all(weight.ndim == 1 for weight in weights) and not any(True for _ in module.children())


def _maps(site: Site, reader: _Reader) -> Maps:
    call = reader.calls[site.module][site.turn]

    def read(tensor: Tensor) -> Tensor:
        rows: Tensor = reader.jacobian(tensor[:, :, :1], site.name).unflatten(0, (tensor.shape[1], -1))
        return rows.repeat_interleave(site.heads // len(rows), dim=0)

    out = output_weight(site).detach().double().cpu().unflatten(0, (site.heads, site.size))
    return Maps(read(call.query), read(call.key), read(call.value), out)
