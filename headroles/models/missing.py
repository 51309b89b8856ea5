"""Missing weights: what a checkpoint lacks is drawn at random, so numbers that depend on it are refused.

Loading keeps some values of each such weight on the model. A weight that still has them when a number is asked for is
random; one that was trained or loaded since is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from headroles.models.attention_hooks import evaluating, observe_attention, without_cache
from headroles.models.dummy_inputs import dummy_inputs, examples
from headroles.models.identity import DRAWN, is_offloaded
from headroles.models.sites import Site, body

What = Literal["output", "attention"]
SAMPLED = 1000  # values of a weight by which it is recognised
SHOWN = 3


def note(model: PreTrainedModel, names: Iterable[str]) -> None:
    """Record on a loaded model and its submodels which weights the checkpoint lacks."""
    lacking = set(names)
    drawn = {name: _sample(value) for name, value in _weights(model).items() if name in lacking}
    for path, part in model.named_modules():
        start = f"{path}." if path else ""
        inside = {name.removeprefix(start): value for name, value in drawn.items() if name.startswith(start)}
        if inside and isinstance(part, PreTrainedModel):
            vars(part)[DRAWN] = inside


def forget(model: PreTrainedModel) -> None:
    """Stop treating missing weights as random."""
    for part in model.modules():
        vars(part).pop(DRAWN, None)


def none_matched(model: PreTrainedModel, names: Iterable[str]) -> bool:
    """Return whether all trainable weights but norms and biases are among these names."""
    lacking = set(names)
    drawn = {id(value) for name, value in _weights(model).items() if name in lacking}
    maps = [value for value in model.parameters() if value.ndim > 1 and value.requires_grad]
    return bool(maps) and all(id(value) in drawn for value in maps)


def needed(model: PreTrainedModel, sites: Iterable[Site], what: What) -> list[str]:
    """Return the random weights on which the attention or output of a model depends."""
    values = _weights(model)
    kept: Mapping[str, Tensor] = vars(model).get(DRAWN, {})
    names = [name for name, sample in kept.items() if name in values and _is(values[name], sample)]
    if not names or is_offloaded(model):
        return names
    listed = list(sites)
    if not _spoilt(model, listed, names, what) or _spoilt(model, listed, [], what):  # not finite: another error
        return []
    return [name for name in names if _spoilt(model, listed, [name], what)]


def described(names: list[str]) -> str:
    """Return names of weights in words, the first few."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """All weights and buffers of floating-point numbers, by every name they have."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: value for name, value in named if value.is_floating_point()}


def _sample(value: Tensor) -> Tensor:
    flat = value.detach().flatten()
    return flat[:: max(1, len(flat) // SAMPLED)].clone().cpu()


def _is(value: Tensor, sample: Tensor) -> bool:
    """Whether a weight is as it was drawn, also in another precision."""
    now = _sample(value)
    return now.shape == sample.shape and torch.equal(now, sample.to(now.dtype))


# Not every random weight matters: a pooler changes no attention, and a head of tokens no state of an encoder. Which do
# is found by a small forward in which the weight is NaN: whatever is computed from it is NaN, too, and nothing else is.
# Attention is asked at its output projections, since softmax and fused kernels may swallow NaN; a forward that fails
# (experts are not chosen by NaN) has read the weight.
def _spoilt(model: PreTrainedModel, sites: list[Site], names: list[str], what: What) -> bool:
    """Return whether NaN in these weights reaches the attention or the output, or makes the forward fail."""
    part = body(model) if what == "attention" else model
    start = next(f"{path}." if path else "" for path, module in model.named_modules() if module is part)
    values = _weights(part)
    inside = [name.removeprefix(start) for name in names if name.startswith(start)]
    spoilt = {name: torch.full_like(values[name], torch.nan) for name in inside}
    inputs = dummy_inputs(model) if what == "attention" else examples(model, batch=1)
    seen: list[bool] = []

    def look(_: nn.Module, __: object, output: Any) -> None:
        parts = output.to_tuple() if hasattr(output, "to_tuple") else output if isinstance(output, tuple) else [output]
        numbers = next(value for value in parts if isinstance(value, Tensor) and value.is_floating_point())
        seen.append(bool(numbers.isnan().any()))

    with evaluating(model) as changes, torch.no_grad():
        observe_attention(changes, lambda _: None)  # eager: fused attention may hide NaN
        for module in {site.out or site.module for site in sites} if what == "attention" else {part}:
            changes.hook(module, look, after=True)
        try:
            functional_call(part, spoilt, kwargs={**inputs, **without_cache(part)}, tie_weights=False)
        except (ValueError, RuntimeError, LookupError):
            return True
    return any(seen)
