"""Cutting heads out: smaller queries, keys, values and output projections, and the same output as gates of zero."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles.models import attention_hooks, loading
from headroles.models import dummy_inputs as finite
from headroles.models import heads as families
from headroles.models.dummy_inputs import body, dummy_inputs, without_cache
from headroles.models.masking import Head, head_mask, mask_heads
from headroles.models.pruned import renumber, resize
from headroles.models.sites import RECORD, Site, record, recorded
from headroles.pruning.layout import Layout, layouts

Groups = Literal["equal", "whole", "expand"]
log = logging.getLogger(__name__)


def remove_heads(
    model: PreTrainedModel, heads: Iterable[Head] | pd.Series[Any], *, groups: Groups = "equal"
) -> PreTrainedModel:
    """Cut heads out of `model`, in place: its output is that with their gates at zero, its attention is smaller.

    `heads` are those to go, or a column of a table such as `prune` makes: heads whose value is 0 go. Those that stay
    keep their numbers. Where query heads share key-value heads, `groups` says what goes: "whole" groups of which
    every head is closed; "equal" also as many heads of each other group; "expand" gives every head that stays
    key-value heads of its own, and all go. A closed head that has to stay is silenced, for good: there, and as the
    last one of a layer where attention cannot be without any (a decoder's cache takes its length from it). The record
    of what is left is in the model's config: `save_pretrained` and the Trainer keep it, `headroles.load` reads it.
    Raises ValueError, and changes nothing, where the output would not be the same.
    """
    if loading.is_offloaded(model):
        raise ValueError(
            f"the device_map of {type(model).__name__} keeps weights away from it; load it whole to cut heads out"
        )
    found = families.attention_sites(model)
    gone = _gone(model, heads)
    if groups not in ("equal", "whole", "expand"):
        raise ValueError(f"unknown groups {groups!r}; known: equal, whole, expand")
    _check_shared(found, gone)
    gone |= {(*site.key, number) for site in found for number in site.silenced}
    expected, rows = _states(model, gone), None
    if finite.weights(model) or not expected.isfinite().all():  # fused attention may hide NaN
        finite.check(model)
    for spare in (False, True):
        try:
            with _undone_by_errors(model, found), torch.inference_mode(mode=False):  # for parameters that can train
                rows = rows or layouts(model)
                _cut(model, found, gone, rows, groups, spare=spare)
                _check_same(model, expected, _states(model))
            break
        except (ValueError, RuntimeError, IndexError, ArithmeticError) as error:
            empties = any(all((*site.key, number) in gone for number in site.numbers) for site in found)
            if spare or not empties:
                why = error if isinstance(error, ValueError) else f"its own code fails on fewer heads ({error})"
                raise ValueError(
                    f"heads cannot be cut out of {type(model).__name__}, gates close them: {why}"
                ) from error
    if silenced := sum(
        len(site.silenced) for site in {one.module: one for one in families.attention_sites(model)}.values()
    ):
        log.warning(
            "%d closed heads stay, silenced: they share key-value heads with open ones, or their layer needs one",
            silenced,
        )
    return model


def _gone(model: PreTrainedModel, heads: Iterable[Head] | pd.Series[Any]) -> set[Head]:
    if isinstance(heads, pd.Series):
        if other := sorted(set(heads.dropna()) - {0, 1}):
            raise ValueError(
                f"column {heads.name!r} has other values than 1 (a head stays) and 0 (it goes), such as {other[0]:g}; "
                f"give a column such as survival[...] of prune"
            )
        heads = heads.index[heads == 0].tolist()
    listed = [tuple(head) for head in heads]
    for head in listed:
        families.check_head(model, head)
    return {(kind, int(layer), int(head)) for kind, layer, head in listed}


def _check_shared(found: Sequence[Site], gone: set[Head]) -> None:
    """Raises ValueError for a head that is to go from some layers of those that share its weights."""
    for module in {site.module for site in found}:
        shared = [site for site in found if site.module is module]
        each = [{number for number in site.numbers if (*site.key, number) in gone} for site in shared]
        if any(one != each[0] for one in each):
            raise ValueError(
                f"{shared[0].name} is one module for {len(shared)} layers: the same heads must go from all of them; "
                f"got {', '.join(f'layer {site.layer}: {sorted(one)}' for site, one in zip(shared, each, strict=True))}"
            )


def _cut(
    model: PreTrainedModel,
    found: list[Site],
    gone: set[Head],
    rows: dict[nn.Module, Layout],
    groups: Groups,
    *,
    spare: bool,
) -> None:
    after: dict[nn.Module, Site] = {}
    shapes = dict((recorded(model.config) or {}).get("shapes", {}))
    for site in found:
        if site.module not in after:
            closed = {place for place, number in enumerate(site.numbers) if (*site.key, number) in gone}
            keep = _kept(site, closed, groups) or ([0] if site.heads and (spare or site.kind == "dec-self") else [])
            quiet = tuple(site.numbers[place] for place in keep if place in closed)
            new = replace(_cut_site(site, keep, rows.get(site.module, {}), groups), silenced=quiet)
            after[site.module] = new
            _empty(new)
            renumber(new)
            for name, module in [(site.name, site.module), (site.out_name, _out(site))]:
                shapes |= {f"{name}.{key}": list(value.shape) for key, value in module.named_parameters()}
    left = [_like(after[site.module], site) for site in found]
    record(model, left, {"groups": groups, "shapes": shapes, "version": version("headroles")})
    families.remember(model, left)  # also where heads were silenced and no shape has changed


def _kept(site: Site, closed: set[int], groups: Groups) -> list[int]:
    """The places of the heads that stay."""
    if site.heads == site.kv_heads or groups == "expand":
        return [place for place in range(site.heads) if place not in closed]
    sharing = site.heads // site.kv_heads
    parts = [range(start, start + sharing) for start in range(0, site.heads, sharing)]
    rest = [part for part in parts if not set(part) <= closed]
    common = min((len(closed & set(part)) for part in rest), default=0) if groups == "equal" else 0
    drop = {place for part in rest for place in sorted(closed & set(part))[:common]}
    return [place for part in rest for place in part if place not in drop]


def _empty(site: Site) -> None:
    """Let nothing of silenced heads through, also where the weights are read without their record."""
    if site.silenced:
        weight: Tensor = _out(site).weight.detach().clone()  # type: ignore[operator]
        columns = weight.T if type(site.out).__name__ == "Conv1D" else weight
        for place in map(site.numbers.index, site.silenced):
            columns[:, place * site.size : (place + 1) * site.size] = 0
        resize(_out(site), "weight", weight)


def _out(site: Site) -> nn.Module:
    if site.out is None:  # a forward under gates has refused it before
        raise ValueError(f"something stands between the heads of {site.name} and the output projection")
    return site.out


def _cut_site(site: Site, keep: list[int], layout: Layout, groups: Groups) -> Site:
    expand = groups == "expand" and site.kv_heads != site.heads
    for name, runs in layout.items():
        taken: list[int] = []
        for heads, start, stop in runs:
            here = len(heads & set(keep))
            taken += [*range(start, stop)] * (here if expand else min(here, 1))
        _take(site.module.get_submodule(name), taken, out=True)
    _take(site.out, [place * site.size + i for place in keep for i in range(site.size)], out=False)
    for name, value in list(site.module.named_parameters()):  # norms of their own, sinks
        owner, _, last = name.rpartition(".")
        if owner not in layout and value.shape[:1] == (site.heads,) and (value.ndim == 2 or last == "sinks"):
            resize(site.module.get_submodule(owner), last, value.detach()[keep])
    sharing = site.heads // max(site.kv_heads, 1)
    groups_left = len(keep) if expand else len({place // sharing for place in keep})
    numbers = tuple(site.numbers[place] for place in keep)
    return replace(site, heads=len(keep), numbers=numbers, kv_heads=groups_left)


def _like(cut: Site, site: Site) -> Site:
    """What is left of a site, told of one that shares its module."""
    return replace(site, heads=cut.heads, numbers=cut.numbers, kv_heads=cut.kv_heads, silenced=cut.silenced)


def _take(module: Any, rows: list[int], *, out: bool) -> None:
    """Keep these rows of what a linear map puts out, or of what it takes in."""
    axis = int(out == (type(module).__name__ == "Conv1D"))
    weight = module.weight.detach()
    resize(module, "weight", weight.index_select(axis, torch.tensor(rows, dtype=torch.long, device=weight.device)))
    if out and module.bias is not None:
        resize(module, "bias", module.bias.detach()[rows])


def _states(model: PreTrainedModel, gone: Iterable[Head] = ()) -> Tensor:
    """What the model's base puts out for a small input, with heads closed."""
    gates = head_mask(model, gone)
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad(), attention_hooks.evaluating(model), mask_heads(model, gates):
        torch.manual_seed(0)  # some draw at random what they mask
        output: Any = body(model)(**dummy_inputs(model), **without_cache(body(model)))
    return torch.as_tensor(output[0]).double()


def _check_same(model: PreTrainedModel, expected: Tensor, found: Tensor) -> None:
    rounding = (10 if model.dtype.itemsize < 4 else 100) * torch.finfo(model.dtype).eps
    apart, size = float((found - expected).abs().max()), float(expected.abs().max())
    if not apart <= rounding * size:
        raise ValueError(f"its output would differ by {apart:.2g}, of {size:.2g}")


@contextmanager
def _undone_by_errors(model: PreTrainedModel, found: list[Site]) -> Iterator[None]:
    """Whatever ends the block early, the attention modules and the config are then what they were before it."""
    touched = [each for site in found for each in (*site.module.modules(), site.out)]
    before = [(module, type(module), _copied(module.__dict__)) for module in dict.fromkeys(touched)]
    notes = recorded(model.config)
    done = False
    try:
        yield
        done = True
    finally:
        if not done:
            for module, cls, kept in before:
                module.__class__ = cls
                module.__dict__.clear()
                module.__dict__.update(_copied(kept))
            if notes is None:
                model.config.__dict__.pop(RECORD, None)
            else:
                setattr(model.config, RECORD, notes)
            families.remember(model, found)


def _copied(kept: dict[str, Any]) -> dict[str, Any]:
    """A copy, also of the parameters and hooks in it."""
    return {name: value.copy() if isinstance(value, dict) else value for name, value in kept.items()}
