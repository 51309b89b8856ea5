"""Head removal: delete heads from the query, key, value and output projections; the output is as with masked heads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from itertools import groupby
from typing import Any, Literal, get_args

import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles._changes import Changes
from headroles.models import dummy_inputs
from headroles.models.attention_hooks import observe_attention
from headroles.models.head_model import HeadModel
from headroles.models.heads import attention_sites, remember
from headroles.models.masking import Head, by_projection, head_mask
from headroles.models.parts import sharing
from headroles.models.pruned import renumber, resize
from headroles.models.sites import RECORD, Site, record, recorded, unreadable_weight
from headroles.models.speech import timing_heads
from headroles.tables.arguments import one_of

Groups = Literal["equal", "whole", "expand"]
Run = tuple[frozenset[int], int, int]  # heads, first row, row after the last
Layout = dict[str, list[Run]]  # name of a linear map in the attention module -> its rows
LARGEST = 0.01  # roundings in float32 are below this share of the largest number of an output
log = logging.getLogger(__name__)


def remove_heads(
    model: PreTrainedModel, heads: Iterable[Head | str] | str | pd.Series[float], *, groups: Groups = "equal"
) -> PreTrainedModel:
    """Remove heads from the weights of a model.

    The model is changed in place. Its output is as with these heads masked. Remaining heads keep their numbers. A
    pruned head is kept as a zeroed head if it shares a key-value head with remaining heads, or if its layer needs a
    head (a decoder's cache takes its length from it). Zeroed heads are in no table, and cannot be named; masks have a
    place for them. The model's config records the remaining heads: `save_pretrained` and the Trainer save the record,
    `headroles.load` reads it. An error leaves the model as it was.

    Args:
        model: A Hugging Face model.
        heads: The heads to remove, (kind, layer, head) each, or in writing as in `head_mask`; or a column of a table
            such as `prune` returns, with 0 for the heads to remove and 1 for the others.
        groups: What is removed where query heads share key-value heads: "whole" removes only groups in which all heads
            are pruned; "equal" also the same number of pruned heads from every other group; "expand" removes all pruned
            heads and gives each remaining head its own key-value head.

    Returns:
        The model.

    Raises:
        ValueError: If a head or value of `groups` is unknown, weights are offloaded, or the model cannot run without
            the heads or would give another output.

    Example:
        >>> hr.remove_heads(model, [("enc-self", 0, 2), ("enc-self", 1, 0)])
    """
    handle = HeadModel(model)
    given, model = model, handle.model
    sites, pruned = handle.sites, _pruned_heads(handle, heads)
    check_plain(handle)
    one_of("groups", groups, get_args(Groups))
    _check_shared(sites, pruned)
    pruned |= {(*site.key, number) for site in sites for number in site.zeroed}
    expected, rows = _states(handle, pruned), None
    if dummy_inputs.nonfinite_weight(model) or not expected.isfinite().all():  # fused attention may hide NaN
        dummy_inputs.check_finite(model)
    for spare in (False, True):
        try:
            with torch._C._InferenceMode(False):  # in C++, which no interrupt stops halfway
                rows = rows or layouts(handle)
            remove = partial(_remove, pruned=pruned, rows=rows, groups=groups, spare=spare)
            try:
                _remove_same(model, remove, expected)
            except _Rounding:
                _check_in_double(model, remove, pruned)
                _remove_same(model, remove)
            break
        except (ValueError, RuntimeError, IndexError, ArithmeticError) as error:
            empties = any(all((*site.key, number) in pruned for number in site.numbers) for site in sites)
            if spare or not empties:
                why = error if isinstance(error, ValueError) else f"its own code fails on fewer heads ({error})"
                raise ValueError(
                    f"heads cannot be removed from {type(model).__name__}; mask them instead: {why}"
                ) from error
    _renumber_alignment(model, sites)
    by_module = {site.module: site for site in attention_sites(model)}
    if zeroed := [f"{site.kind} L{site.layer}H{head}" for site in by_module.values() for head in site.zeroed]:
        log.warning(
            "kept as zeroed, since heads that stay need their keys, or the layer needs a head: %s (%d in all)",
            *(", ".join(zeroed[:8]) + ", ..." * (len(zeroed) > 8), len(zeroed)),
        )
    return given


def _renumber_alignment(model: PreTrainedModel, before: Sequence[Site]) -> None:
    """Let the generation config of Whisper name the heads that give times to words by their places among those left."""
    config: Any = getattr(model, "generation_config", None)
    named = timing_heads(model, before)
    left = {site.layer: site.numbers for site in attention_sites(model) if site.kind == "cross"}
    places = [[layer, left[layer].index(head)] for layer, head in named if head in left[layer]]
    if getattr(config, "alignment_heads", None):
        config.alignment_heads = places or None
    if len(places) < len(named):
        lost = ", ".join(f"{layer}:{head}" for layer, head in named if head not in left[layer])
        log.warning("cross heads %s, which give times to words, are removed; try hr.alignment_heads for others", lost)


def zero_heads(model: PreTrainedModel, heads: Iterable[Head | str] | str | pd.Series[float]) -> PreTrainedModel:
    """Set heads of a model to zero in place; its output is as with these heads masked.

    The columns of the output projection that read the heads become zero. The model keeps its shapes, so that any
    program loads it, and is not faster. Further training may restore the heads.

    Args:
        model: A Hugging Face model.
        heads: The heads, as in `remove_heads`.

    Returns:
        The model.

    Example:
        >>> hr.save(hr.zero_heads(model, "L0H2,L1H0"), tokenizer, "zeroed")
    """
    handle = HeadModel(model)
    sites, chosen = handle.sites, _pruned_heads(handle, heads)
    _check_shared(sites, chosen)
    by_projection(model, sites)  # raises an error for heads that cannot be masked
    check_plain(handle)
    for site in sites:
        _zero_columns(site, [place for place, number in enumerate(site.numbers) if (*site.key, number) in chosen])
    return model


def check_plain(handle: HeadModel) -> None:
    """Raise ValueError if weights cannot be cut: quantised, adapted or offloaded."""
    if handle.offloaded:
        raise ValueError(f"heads cannot be removed from {handle.name}: its weights are offloaded; load it whole")
    for site in handle.sites:
        if site.out is not None and (fault := unreadable_weight(site, handle.name, merged=False)):
            raise ValueError(f"heads cannot be removed from {handle.name}; mask them instead: {fault}")


def _pruned_heads(handle: HeadModel, heads: Iterable[Head | str] | str | pd.Series[float]) -> set[Head]:
    if isinstance(heads, pd.Series):
        if unknown := sorted(set(heads.dropna()) - {0, 1}):
            raise ValueError(f"column {heads.name!r} must hold 0 (removed) and 1 (kept), got {unknown[0]:g}")
        heads = heads.index[heads == 0].tolist()
    return {(kind, int(layer), int(head)) for kind, layer, head in handle.sites.named(heads)}


def _check_shared(sites: Sequence[Site], pruned: set[Head]) -> None:
    """Raise ValueError if different heads are pruned in layers that share weights."""
    for module in {site.module for site in sites}:
        shared = [site for site in sites if site.module is module]
        numbers = [sorted(number for number in site.numbers if (*site.key, number) in pruned) for site in shared]
        if any(heads != numbers[0] for heads in numbers):
            got = ", ".join(f"layer {site.layer}: {heads}" for site, heads in zip(shared, numbers, strict=True))
            raise ValueError(f"heads must be the same in {len(shared)} layers that share {shared[0].name}, got {got}")


def _remove(
    model: PreTrainedModel,
    sites: list[Site],
    pruned: set[Head],
    rows: dict[nn.Module, Layout],
    groups: Groups,
    *,
    spare: bool,
) -> None:
    after: dict[nn.Module, Site] = {}
    shapes = dict((recorded(model.config) or {}).get("shapes", {}))
    for site in sites:
        if site.module not in after:
            places = {place for place, number in enumerate(site.numbers) if (*site.key, number) in pruned}
            keep = _places_kept(site, places, groups) or (
                [0] if site.heads and (spare or site.kind == "dec-self") else []
            )
            zeroed = tuple(site.numbers[place] for place in keep if place in places)
            new = replace(_resize_site(site, keep, rows.get(site.module, {}), groups), zeroed=zeroed)
            after[site.module] = new
            _zero_columns(new, [*map(new.numbers.index, zeroed)])  # plain checkpoints behave the same
            renumber(new)
            for name, module in [(site.name, site.module), (site.out_name, _out(site))]:
                shapes |= _shapes(str(name), module)
    remaining = []
    for site in sites:  # sites that share a module share its heads
        new = after[site.module]
        smaller = replace(site, heads=new.heads, numbers=new.numbers, kv_heads=new.kv_heads, zeroed=new.zeroed)
        remaining.append(smaller)
    record(model, remaining, {"groups": groups, "shapes": shapes, "version": version("headroles")})
    remember(model, remaining)  # also where heads were only zeroed


def _shapes(name: str, module: nn.Module) -> dict[str, list[int]]:
    """Return the shapes of a module's parameters by their names in a model with merged adapters."""
    adapted = [path for path, part in module.named_modules(prefix=name) if hasattr(part, "base_layer")]
    shapes = {}
    for path, value in module.named_parameters(prefix=name):
        layer = next((layer for layer in adapted if path.startswith(f"{layer}.")), None)
        if layer is None or path.startswith(f"{layer}.base_layer."):
            shapes[path.replace(".base_layer.", ".")] = list(value.shape)
    return shapes


def _places_kept(site: Site, pruned: set[int], groups: Groups) -> list[int]:
    """Return the places of the heads to keep."""
    if site.heads == site.kv_heads or groups == "expand":
        return [place for place in range(site.heads) if place not in pruned]
    sharing = site.heads // site.kv_heads
    parts = [range(start, start + sharing) for start in range(0, site.heads, sharing)]
    rest = [part for part in parts if not set(part) <= pruned]
    common = min((len(pruned & set(part)) for part in rest), default=0) if groups == "equal" else 0
    drop = {place for part in rest for place in sorted(pruned & set(part))[:common]}
    return [place for part in rest for place in part if place not in drop]


def _zero_columns(site: Site, places: list[int]) -> None:
    """Zero the weights that read the heads at these places."""
    if places:
        weight: Tensor = _out(site).weight.detach().clone()  # type: ignore[operator]
        columns = weight.T if _is_conv1d(site.out) else weight
        for place in places:
            columns[:, place * site.size : (place + 1) * site.size] = 0
        resize(_out(site), "weight", weight)


def _out(site: Site) -> nn.Module:
    assert site.out is not None  # masking would have raised an error before
    return site.out


def _resize_site(site: Site, keep: list[int], layout: Layout, groups: Groups) -> Site:
    expand = groups == "expand" and site.kv_heads != site.heads
    for name, runs in layout.items():
        taken: list[int] = []
        for heads, start, stop in runs:
            count = len(heads & set(keep))
            taken += [*range(start, stop)] * (count if expand else min(count, 1))
        _take(site.module.get_submodule(name), taken, out=True)
    _take(_out(site), [place * site.size + i for place in keep for i in range(site.size)], out=False)
    for part in site.module.modules():  # norms and sinks of heads
        if not isinstance(part, nn.Linear | nn.Embedding) and not _is_conv1d(part):
            for name, value in list(part.named_parameters(recurse=False)):
                if value.shape[:1] == (site.heads,) and (value.ndim == 2 or name == "sinks"):
                    resize(part, name, value.detach()[keep])
    sharing = site.heads // max(site.kv_heads, 1)
    groups_left = len(keep) if expand else len({place // sharing for place in keep})
    numbers = tuple(site.numbers[place] for place in keep)
    return replace(site, heads=len(keep), numbers=numbers, kv_heads=groups_left)


def _take(module: nn.Module, rows: list[int], *, out: bool) -> None:
    """Keep these output rows, or input columns, of a linear map."""
    axis = int(out == _is_conv1d(module))
    assert isinstance(module.weight, Tensor)
    weight = module.weight.detach()
    resize(module, "weight", weight.index_select(axis, torch.tensor(rows, dtype=torch.long, device=weight.device)))
    if out and isinstance(bias := module.bias, Tensor):
        resize(module, "bias", bias.detach()[rows])


def _is_conv1d(module: nn.Module | None) -> bool:
    """Return whether a module is GPT-2's linear map, with weights [in, out]."""
    return type(module).__name__ == "Conv1D"


def _states(handle: HeadModel, masked: Iterable[Head] = ()) -> Tensor:
    """Return the output of the model's base for a small input, with masked heads."""
    devices = [handle.device] if handle.device.type == "cuda" else []
    exact = torch.autocast(handle.device.type, enabled=False)  # it would round both outputs
    mask = handle.mask(head_mask(handle.model, masked))
    with torch.random.fork_rng(devices), exact, handle.evaluating(), mask, torch.no_grad():
        torch.manual_seed(0)  # some models mask inputs at random
        output = handle.forward_body(dummy_inputs.dummy_inputs(handle.model))
    return torch.as_tensor(output[0]).double()


class _Rounding(ValueError):
    """The output differs by more than a few roundings: by the roundings of many layers, or it is another output."""


def _remove_same(model: PreTrainedModel, remove: Callable[..., None], expected: Tensor | None = None) -> None:
    """Remove heads and compare the output with the expected one, if any; an error undoes the removal."""
    sites = attention_sites(model)
    with _undone(model, sites) as changes, torch._C._InferenceMode(False):  # for parameters that can train
        remove(model, sites)
        if expected is not None:
            rounding = (10 if model.dtype.itemsize < 4 else 100) * torch.finfo(model.dtype).eps
            _check_same(expected, _states(HeadModel(model)), rounding)
        changes.undos.clear()


# Is a small difference a rounding or another output? In float32 the roundings of many layers add up, differently on
# each processor, and may be as large as the effect of one head. So a difference between a few roundings and LARGEST
# decides nothing: the heads are removed once more, from a copy in float64 that shares the integer tensors, where
# roundings of all layers and features stay far below the effect of a head.
def _check_in_double(model: PreTrainedModel, remove: Callable[..., None], pruned: Iterable[Head]) -> None:
    """Raise ValueError if a copy of the model in float64 gives another output without the heads."""
    double = sharing(model)
    handle = HeadModel(double)
    rows = layouts(handle)
    handle.body.to(torch.float64)  # type: ignore[arg-type]
    expected = _states(handle, pruned)
    with torch._C._InferenceMode(False):
        remove(double, handle.sites, rows=rows)
    roundings = 100 * len(handle.sites) * max(max(weight.shape, default=1) for weight in double.parameters())
    _check_same(expected, _states(HeadModel(double)), roundings * torch.finfo(torch.float64).eps)


def _check_same(expected: Tensor, output: Tensor, rounding: float) -> None:
    difference, size = float((output - expected).abs().max()), float(expected.abs().max())
    if not difference <= rounding * size:
        error = _Rounding if difference <= LARGEST * size else ValueError
        raise error(f"its output would differ by {difference:.2g}, of {size:.2g}")


def _undone(model: PreTrainedModel, sites: list[Site]) -> Changes:
    """Restore the attention modules and the config at the end of the block, unless the undos are cleared."""
    touched = [module for site in sites for module in (*site.module.modules(), site.out)]
    before = [(module, type(module), _copied(module.__dict__)) for module in dict.fromkeys(touched)]
    notes = recorded(model.config)

    def undo() -> None:
        for module, cls, kept in before:
            module.__class__ = cls
            module.__dict__.update(_copied(kept))
            for name in module.__dict__.keys() - kept.keys():
                del module.__dict__[name]
        if notes is None:
            model.config.__dict__.pop(RECORD, None)
        else:
            setattr(model.config, RECORD, notes)
        remember(model, sites)

    return Changes(model, lambda changes: changes.undos.append(undo))


def _copied(kept: Mapping[str, object]) -> dict[str, object]:
    """Copy a module's attributes, also the dicts of parameters and hooks."""
    return {name: value.copy() if isinstance(value, dict) else value for name, value in kept.items()}


# Which rows of q, k and v belong to a head? No name or shape says so: families fuse maps and order their rows in their
# own ways. So one forward is traced: the output of every map is replaced by random numbers that take gradients, and the
# gradient that enters the output projection at one head is NaN. NaN spreads to everything that the head depends on,
# also where a weight is 0 or attention is exactly 0 or 1, since 0 x NaN is NaN. Rows with NaN belong to the head.
def layouts(handle: HeadModel) -> dict[nn.Module, Layout]:
    """Return the rows of every linear map in each attention module that belong to each head.

    A layer without heads has no rows. Raises ValueError for a row of several heads that do not share a key-value head,
    such as a norm over all heads.
    """
    reach: dict[nn.Module, dict[str, Tensor]] = {site.module: {} for site in handle.sites}
    for site, name, paths in _paths(handle):
        reach[site.module][name] = paths | reach[site.module].get(name, paths)
    by_module = {site.module: site for site in handle.sites}
    return {
        module: {name: _runs(by_module[module], name, paths) for name, paths in maps.items() if not _latent(paths)}
        for module, maps in reach.items()
    }


def _paths(handle: HeadModel) -> list[tuple[Site, str, Tensor]]:
    """Return for each site and linear map whether each head depends on each row: bool [head, row]."""
    parts = [(site.module, name, part) for site in handle.sites for name, part in site.module.named_modules()]
    inside = {part: (module, name) for module, name, part in parts if isinstance(part, nn.Linear) or _is_conv1d(part)}
    outs = {out: sites for out, sites in by_projection(handle.model, handle.sites).items() if sites[0].heads}
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
        inputs = [(name, leaf) for owner, name, leaf in leaves if owner is site.module]
        leaves.clear()
        rows.extend((site, name, paths) for name, paths in _traced(site, args[0], inputs))

    with handle.evaluating() as changes, torch.enable_grad(), torch.autograd.set_detect_anomaly(False):  # NaN is meant
        for linear in inside.keys() - outs.keys():
            changes.hook(linear, keep, after=True)
        for out in outs:
            changes.hook(out, trace, prepend=True)  # before any that masks
        observe_attention(changes, lambda _: None)  # eager: fused attention may skip zeros
        handle.forward_body(dummy_inputs.dummy_inputs(handle.model))
    return rows


def _traced(site: Site, z: Tensor, leaves: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Trace the rows that each head depends on by gradients of NaN: bool [head, row]."""
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
    """Return whether a map makes only latents and rows that all heads share, so that nothing is removed from it."""
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
                f"(as in a norm over several heads)"
            )
    runs, row = [], 0
    for heads, part in groupby(owners):
        size = len(list(part))
        runs.append((heads, row, row + size))
        row += size
    return runs
