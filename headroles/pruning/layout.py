"""Projection layout: the rows of each query, key and value map that belong to each head, by tracing gradients."""

from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor, nn

from headroles.models.attention_hooks import attending
from headroles.models.dummy_inputs import dummy_inputs
from headroles.models.head_model import HeadModel
from headroles.models.masking import by_projection
from headroles.models.sites import Site

Run = tuple[frozenset[int], int, int]  # heads, first row, row after the last
Layout = dict[str, list[Run]]  # name of a linear map in the attention module -> its rows


def layouts(handle: HeadModel) -> dict[nn.Module, Layout]:
    """Return the rows of every linear map in each attention module that belong to each head: those that depend on it.

    This needs neither the family's order of queries, keys and values, nor a numerical threshold. A row that belongs to
    several heads that do not share a key-value head (a norm over all heads, for one) raises ValueError. A layer without
    heads has no rows.
    """
    reach: dict[nn.Module, dict[str, Tensor]] = {site.module: {} for site in handle.sites}
    for site, name, paths in _paths(handle):
        maps = reach[site.module]
        maps[name] = maps[name] | paths if name in maps else paths
    by_module = {site.module: site for site in handle.sites}
    return {
        module: {name: _runs(by_module[module], name, paths) for name, paths in maps.items() if not _latent(paths)}
        for module, maps in reach.items()
    }


def _paths(handle: HeadModel) -> list[tuple[Site, str, Tensor]]:
    """Return for each site and linear map whether each head depends on each row: bool [head, row].

    The outputs of the maps are replaced by random numbers, so that no dead row or saturated attention hides a path.
    """
    parts = [(site.module, name, part) for site in handle.sites for name, part in site.module.named_modules()]
    inside = {part: (module, name) for module, name, part in parts if is_map(part)}
    outs = {out: mine for out, mine in by_projection(handle.model, handle.sites).items() if mine[0].heads}
    generator = torch.Generator().manual_seed(0)
    leaves: list[tuple[nn.Module, str, Tensor]] = []
    rows: list[tuple[Site, str, Tensor]] = []
    calls = dict.fromkeys(outs, 0)

    def keep(module: nn.Module, _: object, output: Tensor) -> Tensor:
        leaf = (0.5 + torch.rand(output.shape, generator=generator)).to(output).requires_grad_()
        leaves.append((*inside[module], leaf))
        return leaf

    def trace(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        site = outs[module][calls[module] % len(outs[module])]
        calls[module] += 1
        mine = [(name, leaf) for owner, name, leaf in leaves if owner is site.module]
        leaves.clear()
        rows.extend((site, name, paths) for name, paths in _traced(site, args[0], mine))

    with handle.evaluating() as changes, torch.enable_grad(), torch.autograd.set_detect_anomaly(False):  # NaN is meant
        for linear in inside.keys() - outs.keys():
            changes.hook(linear, keep, after=True)
        for out in outs:
            changes.hook(out, trace, prepend=True)  # before any that masks
        changes.enter(attending(handle.model, lambda _: None))  # eager: fused attention may skip zeros
        handle.forward_body(dummy_inputs(handle.model))
    return rows


def _traced(site: Site, z: Tensor, leaves: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Trace rows by gradients of NaN, which spread to all that a head depends on (0 x NaN is NaN): bool [head, row]."""
    outputs = [leaf for _, leaf in leaves]
    reached = torch.zeros(site.heads, sum(leaf.shape[-1] for leaf in outputs), dtype=torch.bool)  # [head, rows of all]
    for head in range(site.heads if outputs else 0):
        seed = torch.zeros_like(z).unflatten(-1, (site.heads, site.size))  # [..., head, size]
        seed[..., head, :] = torch.nan
        gradients = torch.autograd.grad(z, outputs, seed.flatten(-2), retain_graph=True, materialize_grads=True)
        reached[head] = torch.cat([gradient.isnan().flatten(0, -2).any(0).cpu() for gradient in gradients])
    parts = reached.split([leaf.shape[-1] for leaf in outputs], 1)
    return [(name, paths) for (name, _), paths in zip(leaves, parts, strict=True)]


def _latent(paths: Tensor) -> bool:
    """Return whether a map only makes latents and rows that all heads share, so that it stays as it is."""
    heads = paths.sum(0)  # that depend on each row: [row]
    shared = (heads == 0) | (heads == len(paths))
    return bool(shared.all() and heads[0] == 0)


def _runs(site: Site, name: str, paths: Tensor) -> list[Run]:
    """Group neighbouring rows of the same heads."""
    sharing = site.heads // max(site.kv_heads, 1)
    owners = [frozenset(column.nonzero().flatten().tolist()) for column in paths.T]
    for row, heads in enumerate(owners):
        if len(heads) not in (1, sharing) or len({head // sharing for head in heads}) > 1:
            raise ValueError(
                f"heads cannot be removed from {site.name}: row {row} of its {name} belongs to {len(heads)} heads "
                f"(a norm over several heads, for one)"
            )
    runs, row = [], 0
    for heads, part in groupby(owners):
        size = len(list(part))
        runs.append((heads, row, row + size))
        row += size
    return runs


def is_map(module: nn.Module) -> bool:
    """Return whether a module is a linear map with weights [out, in], or GPT-2's Conv1D with [in, out]."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
