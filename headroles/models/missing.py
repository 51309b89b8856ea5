"""Missing weights: weights that a checkpoint lacks are random, so results that depend on them are refused.

Loading keeps some values of each such weight on the model. A weight that still has these values when a result is
computed is random; a weight that was trained or loaded since is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from headroles.models.attention_hooks import evaluating, observe_attention, without_cache
from headroles.models.dummy_inputs import dummy_inputs, examples
from headroles.models.identity import DRAWN, is_offloaded
from headroles.models.parts import body
from headroles.models.sites import Site

What = Literal["output", "attention"]
SAMPLED = 1000  # values of a weight by which it is recognised


def note(model: PreTrainedModel, names: Iterable[str]) -> None:
    """Record in the modules of a loaded model which weights the checkpoint lacks."""
    for name, value in _weights(model, names).items():
        path, _, last = name.rpartition(".")
        vars(model.get_submodule(path)).setdefault(DRAWN, {})[last] = _sample(value)


def forget(model: PreTrainedModel) -> None:
    """Stop treating missing weights as random."""
    for part in model.modules():
        vars(part).pop(DRAWN, None)


def none_matched(model: PreTrainedModel, names: Iterable[str]) -> bool:
    """Return whether all trainable weights but norms and biases are among these names."""
    drawn = {id(value) for value in _weights(model, names).values()}
    maps = [value for value in model.parameters() if value.ndim > 1 and value.requires_grad]
    return bool(maps) and all(id(value) in drawn for value in maps)


def needed(model: PreTrainedModel, sites: Iterable[Site], what: What) -> list[str]:
    """Return the random weights on which the attention or output of a model depends."""
    part = body(model) if what == "attention" else model
    names = [
        f"{path}.{name}".removeprefix(".")
        for path, module in part.named_modules()
        for name, sample in vars(module).get(DRAWN, {}).items()
        if _is_sampled(getattr(module, name, None), sample)
    ]
    if names and not is_offloaded(model):
        inputs = dummy_inputs(model) if what == "attention" else examples(model, batch=1)
        readers: set[nn.Module] = {site.out or site.module for site in sites} if what == "attention" else {part}
        if not _spoilt(part, inputs, readers, names) or _spoilt(part, inputs, readers, []):  # something else is NaN
            return []
        names = [name for name in names if _spoilt(part, inputs, readers, [name])]
    place = next(path for path, module in model.named_modules() if module is part)
    return [f"{place}.{name}".removeprefix(".") for name in names]


def _weights(model: PreTrainedModel, names: Iterable[str]) -> dict[str, Tensor]:
    """Return the floating-point weights and buffers with these names, in the order of the model."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    chosen = set(names)
    return {name: value for name, value in named if name in chosen and value.is_floating_point()}


def _sample(value: Tensor) -> Tensor:
    flat = value.detach().flatten()
    return flat[:: max(1, len(flat) // SAMPLED)].clone().cpu()


def _is_sampled(value: Tensor | None, sample: Tensor) -> bool:
    """Return whether a weight is still as it was drawn, also in another precision."""
    now = sample[:0] if value is None else _sample(value)
    return now.shape == sample.shape and torch.equal(now, sample.to(now.dtype))


# Not every random weight matters: a pooler changes no attention, and a head of tokens no state of an encoder. Which do
# is found by a small forward in which the weight is NaN: whatever is computed from it is NaN, too, and nothing else is.
# Attention is asked at its output projections, since softmax and fused kernels may swallow NaN; a forward that fails
# (experts are not chosen by NaN) has read the weight.
def _spoilt(model: PreTrainedModel, inputs: dict[str, Tensor], readers: set[nn.Module], names: list[str]) -> bool:
    """Return whether NaN in these weights reaches the output of a module, or makes the forward fail."""
    spoilt = {name: torch.full_like(value, torch.nan) for name, value in _weights(model, names).items()}
    seen: list[bool] = []

    def look(_: nn.Module, __: object, output: object) -> None:
        numbers = (value for value in tree_leaves(output) if isinstance(value, Tensor) and value.is_floating_point())
        seen.append(bool(next(numbers).isnan().any()))

    with evaluating(model) as changes, torch.no_grad():
        observe_attention(changes, lambda _: None)  # eager: fused attention may hide NaN
        for module in readers:
            changes.hook(module, look, after=True)
        try:
            functional_call(model, spoilt, kwargs={**inputs, **without_cache(model)}, tie_weights=False)
        except (ValueError, RuntimeError, LookupError):
            return True
    return any(seen)
