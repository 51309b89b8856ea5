"""The attention sites and heads of a model, found by one forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles.models.discovery import ask_for_weights, discover_sites
from headroles.models.dummy_inputs import dummy_inputs, outputs, weights
from headroles.models.sites import OUTSIDE, Site, recorded_sites
from headroles.tables import frame
from headroles.tables.frame import KINDS, Kind

HEAD_MASKS = ("head_mask", "decoder_head_mask", "cross_attn_head_mask")
_sites: WeakKeyDictionary[PreTrainedModel, tuple[tuple[torch.Size, ...], list[Site]]] = WeakKeyDictionary()


def attention_sites(model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None) -> list[Site]:
    """Find every attention site of a model.

    One forward finds them, through transformers' attention interface and without code for each architecture. They are
    cached until the shapes of the weights change.

    Args:
        model: A transformers model.
        inputs: Arguments of one small forward, for a model that reads anything but token ids, pixels or log-mel
            features. The source and target of an encoder-decoder must differ in length.

    Returns:
        The sites by kind (enc-self, dec-self, cross), then by layer: the order of the rows of every table.

    Raises:
        TypeError: `model` is not a transformers model.
        ValueError: `model` has no attention, or does not run on `inputs`.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"expected a transformers model, got {type(model).__name__}; load one with headroles.load(name)"
        )
    shapes = _shapes(model)
    if inputs is None and model in _sites and _sites[model][0] == shapes:
        return _sites[model][1]
    sites = recorded_sites(model) or discover_sites(model, dict(inputs or dummy_inputs(model)))
    if not sites:
        raise ValueError(
            f"no attention found in {type(model).__name__} ({model.config.model_type!r}): no module called "
            f"transformers' attention interface, none is of a class known outside it: {', '.join(sorted(OUTSIDE))}; "
            f"add the class to headroles.models.sites.OUTSIDE if it has attention"
        )
    if all(site.out for site in sites) or not (weights(model) or outputs(model)):
        _sites[model] = shapes, sites  # projections are not recognised by numbers that are not finite
    return sites


def _shapes(model: PreTrainedModel) -> tuple[torch.Size, ...]:
    """The shapes of the weights, which change when heads are removed."""
    shapes: list[torch.Size] = []
    seen: set[nn.Module] = set()
    left: list[nn.Module] = [model]
    while left:  # by hand: `parameters` takes five times as long, and every forward calls this
        module = left.pop()
        if module not in seen:
            seen.add(module)
            shapes += [weight.shape for weight in module._parameters.values() if weight is not None]
            left += [child for child in module._modules.values() if child is not None]
    return tuple(shapes)


def remember(model: PreTrainedModel, sites: list[Site]) -> None:
    """Cache the sites after a change of parameters that leaves attention as it is."""
    _sites[model] = _shapes(model), sites


def head_index(model: PreTrainedModel) -> Any:
    """Return the index of every table of a model.

    Args:
        model: A transformers model.

    Returns:
        A pandas MultiIndex (kind, layer, head), one entry per head.
    """
    return frame.index({site.key: site.numbers for site in attention_sites(model)})


def check_head(model: PreTrainedModel, head: tuple[Kind, int, int]) -> None:
    """Raise ValueError if `model` does not have the (kind, layer, head); the message says which heads it has."""
    sites = attention_sites(model)
    if len(head) != 3 or not any(site.key == tuple(head[:2]) and head[2] in site.numbers for site in sites):
        raise ValueError(f"no head {tuple(head)} in {type(model).__name__}, which has {sizes(sites)}")


def sizes(sites: list[Site]) -> str:
    """Return the numbers of layers and heads in words."""
    counts = {kind: [site.heads for site in sites if site.kind == kind] for kind in KINDS}
    return ", ".join(f"{kind} {len(heads)} layers of {_range(heads)} heads" for kind, heads in counts.items() if heads)


def _range(counts: list[int]) -> str:
    return str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"


def layer_of(model: PreTrainedModel, site: Site) -> nn.Module | None:
    """Return the layer that holds a site: the first element of a ModuleList on the path to it; None without one."""
    module: nn.Module = model
    for name in site.name.split("."):
        parent, module = module, module.get_submodule(name)
        if isinstance(parent, nn.ModuleList):
            return module
    return None


@contextmanager
def outside_attending(sites: list[Site], handler: Callable[[nn.Module, Tensor], None]) -> Iterator[None]:
    """Call `handler(module, weights)` within the block at every call of the sites outside the attention interface."""
    with ExitStack() as stack:
        for module in {site.module: None for site in sites if site.outside}:
            for hook in ask_for_weights(module, handler):
                stack.callback(hook.remove)
        yield


@contextmanager
def no_head_masks(model: PreTrainedModel) -> Iterator[None]:
    """Raise TypeError within the block if `model` is called with a head mask: transformers 5 ignores them."""
    hook = model.register_forward_pre_hook(_refuse_head_masks, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def _refuse_head_masks(model: nn.Module, _: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    names = [name for name in HEAD_MASKS if kwargs.get(name) is not None]
    if names:
        raise TypeError(
            f"{type(model).__name__} was called with {', '.join(names)}: transformers 5 accepts head masks and ignores "
            f"them, so no head would be masked; use headroles.mask_heads(model, gates) instead"
        )
