"""Layout: which rows of a projection belong to which heads, told by what each head's output depends on."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles import families, seam
from headroles.probe import body, probe, without_cache
from headroles.site import Site

Run = tuple[frozenset[int], int, int]  # heads, first row, row after the last
Layout = dict[str, list[Run]]  # name of a linear map in the attention module -> its rows


def layouts(model: PreTrainedModel) -> dict[nn.Module, Layout]:
    """The rows of every linear map in each attention module: those of queries, keys and values, fused or not.

    A row belongs to the heads whose outputs have a gradient with respect to it; no family's order of queries, keys and
    values has to be known. Raises ValueError where a row belongs to several heads that do not share a key-value head:
    a norm over all of them, for one.
    """
    found = families.sites(model)
    felt: dict[nn.Module, dict[str, Tensor]] = {}
    for site, name, slopes in _slopes(model, found):
        mine = felt.setdefault(site.module, {})
        mine[name] = mine[name] | slopes if name in mine else slopes
    by = {site.module: site for site in found}
    return {
        module: {name: _runs(by[module], name, each) for name, each in maps.items() if not _latent(each)}
        for module, maps in felt.items()
    }


def _slopes(model: PreTrainedModel, found: list[Site]) -> list[tuple[Site, str, Tensor]]:
    """For each site and linear map in it: bool [head, row], whether the head's output depends on the row."""
    inside = {each: (site.module, name) for site in found for name, each in site.module.named_modules() if is_map(each)}
    outs = {site.out: [one for one in found if one.out is site.out] for site in found if site.out is not None}
    leaves: list[tuple[nn.Module, str, Tensor]] = []
    rows: list[tuple[Site, str, Tensor]] = []
    calls = dict.fromkeys(outs, 0)

    def keep(module: nn.Module, _: Any, output: Tensor) -> Tensor:
        leaf = output.detach().requires_grad_()
        leaves.append((*inside[module], leaf))
        return leaf

    def look(module: nn.Module, args: tuple[Any, ...]) -> None:
        site = sorted(outs[module], key=lambda one: one.turn)[calls[module] % len(outs[module])]
        calls[module] += 1
        mine = [(name, leaf) for owner, name, leaf in leaves if owner is site.module]
        leaves.clear()
        rows.extend((site, name, depends) for name, depends in _of(site, args[0], mine))

    with ExitStack() as stack:
        for each in inside.keys() - outs.keys():
            stack.callback(each.register_forward_hook(keep).remove)
        for out in outs:
            stack.callback(out.register_forward_pre_hook(look, prepend=True).remove)  # before any that silences
        stack.enter_context(seam.evaluating(model))
        stack.enter_context(torch.enable_grad())
        body(model)(**probe(model), **without_cache(body(model)))
    return rows


def _of(site: Site, z: Tensor, leaves: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    some = torch.randn(z.shape, generator=generator).to(z)
    each = (z * some).unflatten(-1, (site.heads, site.size)).sum(-1).flatten(0, -2).sum(0)  # [head]
    slopes = [
        torch.autograd.grad(one, [leaf for _, leaf in leaves], retain_graph=True, allow_unused=True) for one in each
    ]
    found = []
    for i, (name, leaf) in enumerate(leaves):
        zero = torch.zeros(leaf.shape[-1], dtype=torch.bool)
        parts = [zero if one[i] is None else (one[i] != 0).flatten(0, -2).any(0).cpu() for one in slopes]
        found.append((name, torch.stack(parts) if parts else zero[None][:0]))
    return found


def _latent(slopes: Tensor) -> bool:
    """Whether a map makes latents, which other maps read, and else only what all heads share: it stays as it is."""
    felt = slopes.sum(0)  # by how many heads: [row]
    shared = (felt == 0) | (felt == len(slopes))
    return bool(shared.all() and felt[0] == 0)


def _runs(site: Site, name: str, slopes: Tensor) -> list[Run]:
    """Neighbouring rows of the same heads; a row whose gradient vanishes belongs to those of the rows around it."""
    sharing = site.heads // max(site.kv_heads, 1)
    if site.size and slopes.shape[1] % site.size == 0:
        slopes = slopes.unflatten(1, (-1, site.size)).any(-1).repeat_interleave(site.size, 1)
    owners = [frozenset(column.nonzero().flatten().tolist()) for column in slopes.T]
    for row, heads in enumerate(owners):
        if len(heads) not in (1, sharing) or len({head // sharing for head in heads}) > 1:
            raise ValueError(
                f"no head can be cut out of {site.name}: row {row} of its {name} belongs to {len(heads)} heads "
                f"(a norm over several heads, for one); close heads with gates instead"
            )
    runs, row = [], 0
    for heads, part in groupby(owners):
        size = len(list(part))
        runs.append((heads, row, row + size))
        row += size
    return runs


def is_map(module: nn.Module) -> bool:
    """Whether a module is a linear map with weights [out, in], or GPT-2's Conv1D with [in, out]."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
