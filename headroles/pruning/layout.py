"""Layout: which rows of a projection belong to which heads, by the paths from each row to each head's output."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles.models import attention_hooks
from headroles.models import heads as families
from headroles.models.dummy_inputs import body, dummy_inputs, without_cache
from headroles.models.masking import by_projection
from headroles.models.sites import Site

Run = tuple[frozenset[int], int, int]  # heads, first row, row after the last
Layout = dict[str, list[Run]]  # name of a linear map in the attention module -> its rows


def layouts(model: PreTrainedModel) -> dict[nn.Module, Layout]:
    """Find the rows of every linear map in each attention module: queries, keys, values, fused or not.

    A row belongs to the heads whose outputs are computed from it; no family's order of queries, keys and values has to
    be known, and no number decides. A layer without heads has no rows. Raises ValueError where a row belongs to several
    heads that do not share a key-value head: a norm over all of them, for one.
    """
    found = families.attention_sites(model)
    reach: dict[nn.Module, dict[str, Tensor]] = {site.module: {} for site in found}
    for site, name, paths in _paths(model, found):
        maps = reach[site.module]
        maps[name] = maps[name] | paths if name in maps else paths
    by = {site.module: site for site in found}
    return {
        module: {name: _runs(by[module], name, paths) for name, paths in maps.items() if not _latent(paths)}
        for module, maps in reach.items()
    }


def _paths(model: PreTrainedModel, found: list[Site]) -> list[tuple[Site, str, Tensor]]:
    """For each site with heads and linear map in it: bool [head, row], whether a path leads from the row to the head.

    Every map's output is replaced by numbers of our own: neither dead rows nor saturated attention hide a path then.
    """
    inside = {each: (site.module, name) for site in found for name, each in site.module.named_modules() if is_map(each)}
    outs = {out: mine for out, mine in by_projection(model, found).items() if mine[0].heads}
    generator = torch.Generator().manual_seed(0)
    leaves: list[tuple[nn.Module, str, Tensor]] = []
    rows: list[tuple[Site, str, Tensor]] = []
    calls = dict.fromkeys(outs, 0)

    def keep(module: nn.Module, _: Any, output: Tensor) -> Tensor:
        leaf = (0.5 + torch.rand(output.shape, generator=generator)).to(output).requires_grad_()
        leaves.append((*inside[module], leaf))
        return leaf

    def look(module: nn.Module, args: tuple[Any, ...]) -> None:
        site = outs[module][calls[module] % len(outs[module])]
        calls[module] += 1
        mine = [(name, leaf) for owner, name, leaf in leaves if owner is site.module]
        leaves.clear()
        rows.extend((site, name, paths) for name, paths in _of(site, args[0], mine))

    with ExitStack() as stack:
        for each in inside.keys() - outs.keys():
            stack.callback(each.register_forward_hook(keep).remove)
        for out in outs:
            stack.callback(out.register_forward_pre_hook(look, prepend=True).remove)  # before any that silences
        stack.enter_context(attention_hooks.evaluating(model))
        stack.enter_context(
            attention_hooks.attending(model, lambda _: None)
        )  # eager: fused attention may skip what is zero
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autograd.set_detect_anomaly(False))  # which would raise at the first NaN
        body(model)(**dummy_inputs(model), **without_cache(body(model)))
    return rows


def _of(site: Site, z: Tensor, leaves: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """For each map: bool [head, row]. The gradient of each head is NaN, and so is all it reaches: 0 x NaN is NaN."""
    given = [leaf for _, leaf in leaves]
    reached = torch.zeros(site.heads, sum(leaf.shape[-1] for leaf in given), dtype=torch.bool)  # [head, rows of all]
    for head in range(site.heads if given else 0):
        seed = torch.zeros_like(z).unflatten(-1, (site.heads, site.size))  # [..., head, size]
        seed[..., head, :] = torch.nan
        slopes = torch.autograd.grad(z, given, seed.flatten(-2), retain_graph=True, materialize_grads=True)
        reached[head] = torch.cat([slope.isnan().flatten(0, -2).any(0).cpu() for slope in slopes])
    parts = reached.split([leaf.shape[-1] for leaf in given], 1)
    return [(name, paths) for (name, _), paths in zip(leaves, parts, strict=True)]


def _latent(paths: Tensor) -> bool:
    """Whether a map makes latents, which other maps read, and else only what all heads share: it stays as it is."""
    heads = paths.sum(0)  # how many each row leads to: [row]
    shared = (heads == 0) | (heads == len(paths))
    return bool(shared.all() and heads[0] == 0)


def _runs(site: Site, name: str, paths: Tensor) -> list[Run]:
    """Neighbouring rows of the same heads."""
    sharing = site.heads // max(site.kv_heads, 1)
    owners = [frozenset(column.nonzero().flatten().tolist()) for column in paths.T]
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
