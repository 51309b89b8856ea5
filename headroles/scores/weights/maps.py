"""The linear maps of heads, read from a model's weights: what each head reads and writes, norms and rotation folded."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headroles._restoration import Changes
from headroles.models.attention_hooks import Call, attending
from headroles.models.dummy_inputs import dummy_inputs
from headroles.models.head_model import HeadModel
from headroles.models.heads import layer_of, layers
from headroles.models.sites import Site
from headroles.scores.lrp import lrp_rules
from headroles.scores.outputs import has_vocabulary
from headroles.scores.value_norms import output_weight, unreadable
from headroles.tables.frame import Kind

SIZE = 64.0  # root mean square of what norms get: their epsilon is no part of the maps
QUERY = 1  # the token of the query at a distance; keys, values and all else are of token 0


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


def read_circuits(
    model: HeadModel, *, distance: int = 0, only: tuple[Kind, int] | None = None, turn: int = 0
) -> Circuits:
    """Read the maps as Jacobians, which needs neither the family's order of queries, keys and values nor its names."""
    # a norm before attention counts with its weights, where what it divides by is 1; another `turn` gives other states
    # to the norms: maps that differ by it are not linear
    model.check_weights("attention")
    if fault := unreadable(model):
        raise ValueError(fault.replace("norms need", "circuits need", 1))
    inputs = dummy_inputs(model.model) | _positions(model, distance)
    sites = [site for site in model.sites if site.heads and site.kind != "cross" and only in (None, site.key)]
    query = QUERY if "position_ids" in inputs else 0
    try:
        return _read(model, inputs, sites, _Reader(query, turn), every_layer=False)
    except ValueError:  # a layer reads the sum of earlier layers without a norm (OLMo 2)
        return _read(model, inputs, sites, _Reader(query, turn), every_layer=True)


def _positions(model: HeadModel, distance: int) -> dict[str, Tensor]:
    """Positions of the dummy input, in which token `QUERY` is `distance` tokens after the first one."""
    if distance == 0:
        return {}
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None) or float("inf")
    if distance < 0 or distance >= limit:
        raise ValueError(f"distance out of range: got distance={distance}; expected 0 or more, and below {limit}")
    if "position_ids" not in inspect.signature(model.model.forward).parameters:
        raise ValueError(f"no distance in {model.name}: got distance={distance}, and no position_ids; expected 0")
    positions = torch.full_like(dummy_inputs(model.model)["input_ids"], distance)
    positions[:, 0] = 0
    return {"position_ids": positions}


@dataclass(frozen=True)
class _Reader:
    """One forward, in which the inputs of layers and of norms outside attention are leaves."""

    query: int  # the token of the query
    turn: int  # by which the states that norms get are turned
    leaves: list[Tensor] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)  # of leaves: what a norm divides by
    calls: dict[nn.Module, list[Call]] = field(default_factory=dict)
    maps: list[nn.Module] = field(default_factory=list)  # linear maps in the order in which they ran
    last: list[Tensor] = field(default_factory=list)  # the input of each of them

    def jacobian(self, output: Tensor, name: str, token: int = 0) -> Tensor:
        """The map from the nearest leaf to a tensor of one token: [features, width]."""
        flat = output.flatten()
        eye = torch.eye(len(flat), dtype=flat.dtype, device=flat.device)
        reached = torch.autograd.grad(flat.sum(), self.leaves, retain_graph=True, allow_unused=True)
        pairs = zip(self.leaves, self.sizes, reached, strict=True)
        read = [(leaf, size) for leaf, size, slope in pairs if slope is not None]
        if len(read) != 1:
            raise ValueError(f"maps of {name} cannot be read: got {len(read)} norms before it; expected one")
        leaf, size = read[0]
        (rows,) = torch.autograd.grad(flat, [leaf], eye, retain_graph=True, is_grads_batched=True)
        return rows[:, 0, token].double().cpu() * size


def _read(
    model: HeadModel, inputs: dict[str, Tensor], sites: list[Site], reader: _Reader, *, every_layer: bool
) -> Circuits:
    """Read the maps; a layer reads from its input, or with `every_layer=False` from the input of the norm before."""
    with model.evaluating() as changes, torch.enable_grad():
        _hook(changes, model, [site for site in model.sites if every_layer or site.layer == 0], reader)
        changes.enter(lrp_rules(model, "cp"))
        model.forward(inputs)
        maps = {site.key: _maps(site, reader) for site in sites}
        unembedding = model.model.get_output_embeddings() if has_vocabulary(model) else None
        follows = unembedding in reader.maps and any(
            reader.maps[-2] in layer.modules() for layer in layers(model.model)
        )
        final = reader.jacobian(reader.last[-1][:, :1], "the unembedding") if follows else None
    return Circuits(maps, final)


def _hook(changes: Changes, model: HeadModel, starts: list[Site], reader: _Reader) -> None:
    """Make leaves, of layers at `starts` and norms, and keep attention calls and linear maps."""

    def start(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if not args:
            return None
        leaf, size = (args[0], 1.0) if module in starting else (_standard(args[0], reader.turn), SIZE)
        reader.leaves.append(leaf.detach().requires_grad_())
        reader.sizes.append(size)
        return reader.leaves[-1], *args[1:]

    def ran(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        reader.maps.append(module)
        reader.last.append(args[0] if args else torch.empty(0))

    inside = {part for site in model.sites for part in site.module.modules()}
    starting = {layer_of(model.model, site) for site in starts}
    for module in model.model.modules():
        if module in starting or (module not in inside and is_norm(module)):
            changes.hook(module, start)
        elif getattr(getattr(module, "weight", None), "ndim", 0) == 2:
            changes.hook(module, ran)
    changes.enter(attending(model.model, lambda call: reader.calls.setdefault(call.module, []).append(call)))


def _standard(states: Tensor, turn: int) -> Tensor:
    """Rows of mean 0 and root mean square `SIZE`, by which layer norm and RMS norm divide, in the place of others."""
    row = torch.arange(states.shape[-1], dtype=torch.float64) - (states.shape[-1] - 1) / 2
    row *= SIZE / row.square().mean().sqrt()
    return row.roll(turn).to(states).expand_as(states)


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm: all its own weights are vectors, and it has no children."""
    weights = list(module.parameters(recurse=False))
    return bool(weights) and all(weight.ndim == 1 for weight in weights) and not any(True for _ in module.children())


def _maps(site: Site, reader: _Reader) -> Maps:
    call = reader.calls[site.module][site.turn]

    def read(tensor: Tensor, token: int = 0) -> Tensor:
        rows: Tensor = reader.jacobian(tensor[:, :, token : token + 1], site.name, token).unflatten(
            0, (tensor.shape[1], -1)
        )
        return rows.repeat_interleave(site.heads // len(rows), dim=0)

    out = output_weight(site).detach().double().cpu().unflatten(0, (site.heads, site.size))
    return Maps(read(call.query, reader.query), read(call.key), read(call.value), out)
