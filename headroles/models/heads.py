"""Heads: the attention sites of a model, found by one forward, and their weights, captured in every forward."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary, ref

import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles._changes import Changes, heal
from headroles.models.attention_hooks import capture, configs_of, evaluating, without_cache
from headroles.models.discovery import discover_sites
from headroles.models.dummy_inputs import dummy_inputs, examples, nonfinite_output, nonfinite_weight
from headroles.models.parts import OUTSIDE
from headroles.models.sharded import check_supported
from headroles.models.sites import Site, Sites, recorded, recorded_sites
from headroles.tables.frame import Kind

AttentionCallback = Callable[[Site, Tensor], None]
# the modules themselves in order, the shapes of their weights, and options of modules and configs
Structure = tuple[list[nn.Module], list[torch.Size], list[object]]
CELLS = 2**20  # weights of a part: 4 MiB in float32, which fit the cache; by smaller parts more keys are left out
log = logging.getLogger(__name__)
_sites: WeakKeyDictionary[PreTrainedModel, tuple[Structure, Sites]] = WeakKeyDictionary()


def attention_sites(model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None) -> Sites:
    """Find every attention site of a model.

    One forward finds them, through transformers' attention interface and without code for each architecture. They are
    cached until modules, the shapes of their weights or their numbers of layers and heads change.

    Args:
        model: A transformers model.
        inputs: Arguments of one small forward, for a model that reads anything but token ids, pixels or log-mel
            features. The source and target of an encoder-decoder must differ in length.

    Returns:
        The sites by kind (enc-self, dec-self, cross), then by layer: the order of the rows of every table.

    Raises:
        TypeError: `model` is not a transformers model.
        ValueError: `model` has no attention, or does not run on `inputs`.
    """  # noqa: DOC502
    heal()
    model = uncompiled(model)
    check_supported(model, pruned=recorded(model.config) is not None)
    structure = _structure(model)
    if inputs is None and model in _sites and _sites[model][0] == structure:
        return _sites[model][1]
    discovered = recorded_sites(model) or discover_sites(model, dict(inputs or dummy_inputs(model)))
    sites = Sites(discovered, type(model).__name__)
    if not sites:
        raise ValueError(
            f"no attention found in {type(model).__name__} ({model.config.model_type!r}): no module called "
            f"transformers' attention interface, none is of a class known outside it: {', '.join(sorted(OUTSIDE))}; "
            f"add the class to headroles.models.parts.OUTSIDE if it has attention"
        )
    if all(site.out for site in sites) or not (nonfinite_weight(model) or nonfinite_output(model)):
        _sites[model] = _structure(model), sites  # projections are not recognised by numbers that are not finite
    return sites


def uncompiled(model: Any) -> PreTrainedModel:
    """Return the model inside a compiled or PEFT model; TypeError unless it is a PreTrainedModel."""
    inner = getattr(model, "_orig_mod", model)
    if hasattr(inner, "merge_and_unload"):  # a PeftModel with adapters in the layers; prompts stand before them
        inner = inner.get_base_model()
    if not isinstance(inner, PreTrainedModel):
        raise TypeError(f"expected a transformers model, got {type(inner).__name__}; {_advice(inner)}")
    return inner


def _advice(model: Any) -> str:
    """Say what to give in place of an object that is not a transformers model."""
    if hasattr(model, "get_base_model"):  # of PEFT
        return "try model.get_base_model(), the model in it without its prompt"
    if isinstance(getattr(model, "module", None), PreTrainedModel):  # DataParallel and the like
        return "try model.module"
    return "load one with headroles.load(name)"


def _structure(model: PreTrainedModel) -> Structure:
    """Return what attention sites depend on; it changes if layers are replaced, moved or repeated, or heads removed."""
    places = [module for _, module in model.named_modules(remove_duplicate=False)]  # one may stand in several places
    parts = dict.fromkeys(places)
    shapes = [weight.shape for module in parts for weight in module._parameters.values() if weight is not None]
    options = [number for part in (*parts, *configs_of(parts)) for number in _numbers(vars(part))]
    return places[1:], shapes, options  # without the model, which a cache must not keep alive


def _numbers(values: dict[str, Any]) -> list[object]:
    """Whole numbers, such as counts of layers and heads, and a forward that replaces the class's."""
    numbers: list[object] = [value for key, value in values.items() if isinstance(value, int) and key != "training"]
    return [*numbers, ref(values["forward"])] if "forward" in values else numbers


def remember(model: PreTrainedModel, sites: list[Site]) -> None:
    """Cache the sites after a change of parameters that leaves attention as it is."""
    _sites[model] = _structure(model), Sites(sites, type(model).__name__)


def head_index(model: PreTrainedModel) -> pd.MultiIndex:
    """Return the index (kind, layer, head) of every table of a model: one entry per head that is left."""
    return attention_sites(model).head_index


def layer_of(model: PreTrainedModel, site: Site) -> nn.Module | None:
    """Return the layer that holds a site: the first element of a ModuleList on the path to it; None without one."""
    module: nn.Module = model
    for name in site.name.split("."):
        parent, module = module, module.get_submodule(name)
        if isinstance(parent, nn.ModuleList):
            return module
    return None


def layers(model: PreTrainedModel) -> dict[nn.Module, Kind]:
    """Return the layers that hold the attention sites, each with the kind of its last one."""
    kinds = ((layer_of(model, site), site.kind) for site in attention_sites(model))
    return {layer: kind for layer, kind in kinds if layer is not None}


def capture_attention(model: PreTrainedModel, callback: AttentionCallback) -> Changes:
    """Call `callback(site, weights)` at every attention of a model within the block.

    The model attends by its own eager attention. Weights are dropped after each call: no more than one layer's
    are in memory. Use eval mode, because dropout applies to the weights.

    Args:
        model: A transformers model.
        callback: Called with the `Site` and its weights, Tensor[batch, heads, query, key]. Rows of padded queries are
            included.

    Returns:
        A context manager.

    Example:
        >>> with hr.capture_attention(model, lambda site, weights: print(site.key, weights.shape)):
        ...     model(**inputs)
    """
    sites, model = attention_sites(model), uncompiled(model)
    return Changes(model, lambda changes: capture(changes, sites, lambda site, weights, *_: callback(site, weights)))


def divisible(model: PreTrainedModel) -> bool:
    """Return whether attention in parts equals full attention for a model; a warning is logged if not.

    Tested on dummy inputs, once for its sites. It differs where a model adds biases to the weights by position (T5), or
    attends outside transformers' attention interface.
    """
    sites = attention_sites(model)
    if sites.divisible is None:
        sites.divisible = all(site.outside is None for site in sites) and _same_in_parts(model)
    if not sites.divisible:
        name = type(model).__name__
        log.warning("%s attends to long texts as a whole: memory grows with the square of their length", name)
    return sites.divisible


def _same_in_parts(model: PreTrainedModel) -> bool:
    try:
        whole, parts = (_all_weights(model, cells) for cells in (None, 1))  # all queries at once, and one by one
    except Exception:  # noqa: BLE001 - the model's code gets a mask that is no tensor
        return False
    atol = 1e-5 if model.dtype.itemsize >= 4 else 1e-2
    return all(torch.allclose(weights, parts[key], atol=atol) for key, weights in whole.items())


def _all_weights(model: PreTrainedModel, cells: int | None) -> dict[tuple[Kind, int], Tensor]:
    """Return the attention of every site in a small forward, with its parts concatenated."""
    parts: dict[tuple[Kind, int], list[Tensor]] = {}

    def keep(site: Site, weights: Tensor, *_: object) -> None:
        parts.setdefault(site.key, []).append(weights.float())

    sites = attention_sites(model)
    with torch.no_grad(), evaluating(model) as changes:
        capture(changes, sites, keep, cells)
        model(**examples(model), **without_cache(model))
    return {key: torch.cat(weights, 2) for key, weights in parts.items()}
