"""The seam: a model's own eager attention, seen from outside through transformers' attention interface."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import eager_mask

NAME = "headroles"
HEAD_MASKS = ("head_mask", "decoder_head_mask", "cross_attn_head_mask")


class Call(NamedTuple):
    """One attention call: its tensors as the model's own eager function saw and made them."""

    module: nn.Module
    query: Tensor  # [batch, heads, query, size]
    key: Tensor  # [batch, key-value heads, key, size]
    value: Tensor  # [batch, key-value heads, key, size]
    mask: Tensor | None  # additive, [batch, 1, query, key]
    out: Tensor  # [batch, query, heads, size]
    weights: Tensor  # [batch, heads, query, key]
    scaling: float  # of query times key


Handler = Callable[[Call], Tensor | None]
_handlers: WeakKeyDictionary[nn.Module, list[Handler]] = WeakKeyDictionary()


@contextmanager
def attending(model: PreTrainedModel, handler: Handler) -> Iterator[None]:
    """Within the block `model` attends by its own eager function and `handler` sees every call; masks are kept.

    What `handler` returns, if anything, takes the place of `call.out`. Weights are dropped after `handler` returns, so
    `output_attentions` gives none. Blocks nest; on leaving, also by an exception, the attention implementation of every
    (sub-)config is what it was. Other models are not touched.
    """
    modules, configs = list(model.modules()), configs_of(model)
    before = [config._attn_implementation for config in configs]
    for module in modules:
        _handlers.setdefault(module, []).append(handler)
    try:
        for config in configs:
            config._attn_implementation_internal = NAME
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation_internal = name
        for module in modules:
            _handlers[module].remove(handler)


def configs_of(model: nn.Module) -> list[Any]:
    """The configs of all modules of a model, each once."""
    found = [getattr(module, "config", None) for module in model.modules()]
    return list({id(one): one for one in found if isinstance(one, PreTrainedConfig)}.values())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within the block `model` is in eval mode; on leaving, each of its modules is in the mode it was in."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


@contextmanager
def no_head_masks(model: PreTrainedModel) -> Iterator[None]:
    """Within the block a forward of `model` that is given a head mask raises TypeError: transformers 5 ignores them."""
    hook = model.register_forward_pre_hook(_refuse, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def eager(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """The eager attention function of the file that defines `module` (families differ: T5's bias, Gemma's softcap)."""
    for cls in type(module).__mro__:
        function = getattr(sys.modules[cls.__module__], "eager_attention_forward", None)
        if function is not None:
            return function  # type: ignore[no-any-return]
    raise ValueError(f"{type(module).__name__} has no eager attention function in {type(module).__module__}")


def arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """What a call of `module` passes, by name."""
    return inspect.signature(module.forward).bind(*args, **kwargs)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,  # by place or, in some families, by name
    **kwargs: Any,
) -> tuple[Tensor, None]:
    out, weights = eager(module)(module, query, key, value, attention_mask, **kwargs)
    scaling = kwargs.get("scaling")
    scaling = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    for handler in tuple(_handlers.get(module, ())):
        instead = handler(Call(module, query, key, value, attention_mask, out, weights, scaling))
        out = out if instead is None else instead
    return out, None


def _refuse(model: nn.Module, _: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = [name for name in HEAD_MASKS if kwargs.get(name) is not None]
    if given:
        raise TypeError(
            f"{type(model).__name__} was called with {', '.join(given)}: transformers 5 accepts head masks and ignores "
            f"them, so no head would be masked; use headroles.gated(model, gates) instead"
        )


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, eager_mask)  # an attention name without a mask function gets no mask at all
