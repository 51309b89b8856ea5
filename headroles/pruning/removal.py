"""Head removal: delete heads from the query, key, value and output projections with the output of masking them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Literal

import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles._restoration import Changes, block
from headroles.models import dummy_inputs
from headroles.models.head_model import HeadModel
from headroles.models.heads import attention_sites, remember
from headroles.models.masking import Head, by_projection
from headroles.models.pruned import renumber, resize
from headroles.models.sites import RECORD, Site, record, recorded, unreadable_weight
from headroles.models.weights.memory import convert, sharing
from headroles.pruning.layout import Layout, layouts

Groups = Literal["equal", "whole", "expand"]
LARGEST = 0.01  # of the largest number of an output: no more are roundings in float32
log = logging.getLogger(__name__)


def remove_heads(
    model: PreTrainedModel, heads: Iterable[Head | str] | str | pd.Series[float], *, groups: Groups = "equal"
) -> PreTrainedModel:
    """Remove heads from the weights of a model.

    The model is changed in place. Its output is that with these heads masked. Remaining heads keep their numbers. A
    pruned head that has to stay is kept as a zeroed head: if it shares a key-value head with remaining ones, or if its
    layer cannot do without any head (a decoder's cache takes its length from it). It is in no table, and cannot be
    named; masks have a place for it. The model's config records the remaining heads: `save_pretrained` and the Trainer
    save the record, `headroles.load` reads it. An error leaves the model as it was.

    Args:
        model: A Hugging Face model.
        heads: The heads to remove, (kind, layer, head) each, or in writing as in `head_mask`; or a column of a table
            such as `prune` returns, with 0 for the heads to remove and 1 for the others.
        groups: What is removed where query heads share key-value heads: "whole" groups of pruned heads only; "equal"
            also the same number of pruned heads from every other group; "expand" all pruned heads, by giving each
            remaining head its own key-value head.

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
    if handle.offloaded:
        raise ValueError(
            f"the device_map of {type(model).__name__} keeps weights away from it; load it whole to remove heads"
        )
    sites, pruned = handle.sites, _pruned_heads(handle, heads)
    check_plain(handle)
    if groups not in ("equal", "whole", "expand"):
        raise ValueError(f"unknown groups {groups!r}; known: equal, whole, expand")
    _check_shared(sites, pruned)
    pruned |= {(*site.key, number) for site in sites for number in site.silenced}
    expected, rows = _states(handle, pruned), None
    if dummy_inputs.weights(model) or not expected.isfinite().all():  # fused attention may hide NaN
        dummy_inputs.check(model)
    for spare in (False, True):
        try:
            with torch._C._InferenceMode(False):  # entered and left in C++, where no interrupt comes between
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
    by_module = {site.module: site for site in attention_sites(model)}
    if zeroed := sum(len(site.silenced) for site in by_module.values()):
        log.warning(
            "%d pruned head%s kept as zeroed: key-value heads are shared with remaining heads, or the layer needs one",
            *(zeroed, " is" if zeroed == 1 else "s are"),
        )
    return given


def zero_heads(model: PreTrainedModel, heads: Iterable[Head | str] | str | pd.Series[float]) -> PreTrainedModel:
    """Set heads of a model to zero in place; its output is that with these heads masked.

    The columns of the output projection that read the heads become zero. The model stays an ordinary one of the same
    shapes, which any program loads, and is not faster. Further training may restore the heads.

    Args:
        model: A Hugging Face model.
        heads: The heads, as of `remove_heads`.

    Returns:
        The model.

    Raises:
        ValueError: If a head is unknown, weights are offloaded or quantised, or layers share weights but not heads.

    Example:
        >>> hr.save(hr.zero_heads(model, "L0H2,L1H0"), tokenizer, "zeroed")
    """
    handle = HeadModel(model)
    sites, chosen = handle.sites, _pruned_heads(handle, heads)
    _check_shared(sites, chosen)
    by_projection(model, sites)  # raises an error for heads that cannot be masked
    if handle.offloaded:
        raise ValueError(f"the weights of {type(model).__name__} are offloaded; load it whole to zero heads")
    check_plain(handle)
    for site in sites:
        _zero_columns(site, [place for place, number in enumerate(site.numbers) if (*site.key, number) in chosen])
    return model


def check_plain(handle: HeadModel) -> None:
    """Raise ValueError for an output projection with a weight that is not all of its map: quantised, or adapted."""
    for site in handle.sites:
        if site.out is not None and (fault := unreadable_weight(site, handle.name, merged=False)):
            raise ValueError(f"heads cannot be removed from {handle.name}; mask them instead: {fault}")


def _pruned_heads(handle: HeadModel, heads: Iterable[Head | str] | str | pd.Series[float]) -> set[Head]:
    if isinstance(heads, pd.Series):
        if other := sorted(set(heads.dropna()) - {0, 1}):
            raise ValueError(
                f"column {heads.name!r} has the value {other[0]:g}; expected 1 (stays) and 0 (removed), as in "
                f"survival[...] of prune"
            )
        heads = heads.index[heads == 0].tolist()
    return {(kind, int(layer), int(head)) for kind, layer, head in handle.named_heads(heads)}


def _check_shared(sites: Sequence[Site], pruned: set[Head]) -> None:
    """Raise ValueError if different heads are pruned in layers that share weights."""
    for module in {site.module for site in sites}:
        shared = [site for site in sites if site.module is module]
        numbers = [{number for number in site.numbers if (*site.key, number) in pruned} for site in shared]
        if any(others != numbers[0] for others in numbers):
            raise ValueError(
                f"{shared[0].name} is one module for {len(shared)} layers: remove the same heads from all; got "
                + ", ".join(f"layer {site.layer}: {sorted(heads)}" for site, heads in zip(shared, numbers, strict=True))
            )


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
            keep = _kept(site, places, groups) or ([0] if site.heads and (spare or site.kind == "dec-self") else [])
            zeroed = tuple(site.numbers[place] for place in keep if place in places)
            new = replace(_resize_site(site, keep, rows.get(site.module, {}), groups), silenced=zeroed)
            after[site.module] = new
            _zero_columns(new, [*map(new.numbers.index, zeroed)])  # plain checkpoints behave the same
            renumber(new)
            for name, module in [(site.name, site.module), (site.out_name, _out(site))]:
                shapes |= _shapes(str(name), module)
    left = []
    for site in sites:  # sites that share a module share its heads
        new = after[site.module]
        left.append(replace(site, heads=new.heads, numbers=new.numbers, kv_heads=new.kv_heads, silenced=new.silenced))
    record(model, left, {"groups": groups, "shapes": shapes, "version": version("headroles")})
    remember(model, left)  # also where heads were only zeroed


def _shapes(name: str, module: nn.Module) -> dict[str, list[int]]:
    """Return the shapes of a module's parameters by their names in a model without adapters, or with merged ones."""
    adapted = [path for path, part in module.named_modules(prefix=name) if hasattr(part, "base_layer")]
    shapes = {}
    for path, value in module.named_parameters(prefix=name):
        layer = next((layer for layer in adapted if path.startswith(f"{layer}.")), None)
        if layer is None or path.startswith(f"{layer}.base_layer."):
            shapes[path.replace(".base_layer.", ".")] = list(value.shape)
    return shapes


def _kept(site: Site, pruned: set[int], groups: Groups) -> list[int]:
    """Return the places of the heads that stay."""
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
        columns = weight.T if type(site.out).__name__ == "Conv1D" else weight
        for place in places:
            columns[:, place * site.size : (place + 1) * site.size] = 0
        resize(_out(site), "weight", weight)


def _out(site: Site) -> nn.Module:
    if site.out is None:  # masking has raised an error before
        raise ValueError(f"the heads of {site.name} are not the direct input of an output projection")
    return site.out


def _resize_site(site: Site, keep: list[int], layout: Layout, groups: Groups) -> Site:
    expand = groups == "expand" and site.kv_heads != site.heads
    for name, runs in layout.items():
        taken: list[int] = []
        for heads, start, stop in runs:
            here = len(heads & set(keep))
            taken += [*range(start, stop)] * (here if expand else min(here, 1))
        _take(site.module.get_submodule(name), taken, out=True)
    _take(_out(site), [place * site.size + i for place in keep for i in range(site.size)], out=False)
    for name, value in list(site.module.named_parameters()):  # norms and sinks of heads
        owner, _, last = name.rpartition(".")
        if owner not in layout and value.shape[:1] == (site.heads,) and (value.ndim == 2 or last == "sinks"):
            resize(site.module.get_submodule(owner), last, value.detach()[keep])
    sharing = site.heads // max(site.kv_heads, 1)
    groups_left = len(keep) if expand else len({place // sharing for place in keep})
    numbers = tuple(site.numbers[place] for place in keep)
    return replace(site, heads=len(keep), numbers=numbers, kv_heads=groups_left)


def _take(module: nn.Module, rows: list[int], *, out: bool) -> None:
    """Keep these output rows, or input columns, of a linear map."""
    axis = int(out == (type(module).__name__ == "Conv1D"))
    assert isinstance(module.weight, Tensor)
    weight = module.weight.detach()
    resize(module, "weight", weight.index_select(axis, torch.tensor(rows, dtype=torch.long, device=weight.device)))
    if out and isinstance(bias := module.bias, Tensor):
        resize(module, "bias", bias.detach()[rows])


def _states(handle: HeadModel, masked: Iterable[Head] = ()) -> Tensor:
    """Return the output of the model's base for a small input, with masked heads."""
    devices = [handle.device] if handle.device.type == "cuda" else []
    whole = torch.autocast(handle.device.type, enabled=False)  # which would round both outputs otherwise
    mask = handle.mask(handle.head_mask(masked))
    with torch.random.fork_rng(devices), whole, handle.evaluating(), mask, torch.no_grad():
        torch.manual_seed(0)  # some models mask inputs at random
        output = handle.forward_body(dummy_inputs.dummy_inputs(handle.model))
    return torch.as_tensor(output[0]).double()


class _Rounding(ValueError):
    """The output differs by more than a few roundings: those of many layers, or another output."""


def _remove_same(model: PreTrainedModel, remove: Callable[..., None], expected: Tensor | None = None) -> None:
    """Remove heads from a model, whole or not at all, and compare its output with the expected one, if any."""
    sites = attention_sites(model)
    with _undone(model, sites) as changes, torch._C._InferenceMode(False):  # for parameters that can train
        remove(model, sites)
        if expected is not None:
            rounding = (10 if model.dtype.itemsize < 4 else 100) * torch.finfo(model.dtype).eps
            _check_same(expected, _states(HeadModel(model)), rounding)
        changes.keep()


def _check_in_double(model: PreTrainedModel, remove: Callable[..., None], pruned: Iterable[Head]) -> None:
    """Compare the outputs again in float64, where roundings of all layers and features stay far below a difference."""
    double = sharing(model)
    handle = HeadModel(double)
    rows = layouts(handle)
    _shorten_table(handle)
    convert(handle.body, torch.float64)
    expected = _states(handle, pruned)
    with torch._C._InferenceMode(False):
        remove(double, handle.sites, rows=rows)
    roundings = 100 * len(handle.sites) * max(max(weight.shape, default=1) for weight in double.parameters())
    _check_same(expected, _states(HeadModel(double)), roundings * torch.finfo(torch.float64).eps)


def _shorten_table(handle: HeadModel) -> None:
    """Leave only the tokens of the dummy inputs in the table of embeddings, which may be most of the weights."""
    values = dummy_inputs.dummy_inputs(handle.model).values()
    ids = [value.flatten() for value in values if not value.is_floating_point()]
    table = None
    with suppress(NotImplementedError):  # of models without such a table
        table = handle.body.get_input_embeddings()
    if not ids or not isinstance(table, nn.Embedding):
        return
    known = torch.cat(ids).unique()

    def find(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return torch.searchsorted(known, args[0]).clamp(max=len(known) - 1), *args[1:]

    table.weight = nn.Parameter(table.weight.detach()[known])
    table.padding_idx = None
    table.register_forward_pre_hook(find)


def _check_same(expected: Tensor, output: Tensor, rounding: float) -> None:
    apart, size = float((output - expected).abs().max()), float(expected.abs().max())
    if not apart <= rounding * size:
        error = _Rounding if apart <= LARGEST * size else ValueError
        raise error(f"its output would differ by {apart:.2g}, of {size:.2g}")


@block
def _undone(changes: Changes, model: PreTrainedModel, sites: list[Site]) -> Changes:
    """Restore the attention modules and the config at the end of the block, unless the changes are kept."""
    touched = [module for site in sites for module in (*site.module.modules(), site.out)]
    before = [(module, type(module), _copied(module.__dict__)) for module in dict.fromkeys(touched)]
    notes = recorded(model.config)

    def undo() -> None:
        for module, cls, kept in before:
            module.__class__ = cls
            module.__dict__.clear()
            module.__dict__.update(_copied(kept))
        if notes is None:
            model.config.__dict__.pop(RECORD, None)
        else:
            setattr(model.config, RECORD, notes)
        remember(model, sites)

    changes.add(undo)
    return changes


def _copied(kept: Mapping[str, object]) -> dict[str, object]:
    """Copy a module's attributes, also the dicts of parameters and hooks."""
    return {name: value.copy() if isinstance(value, dict) else value for name, value in kept.items()}
