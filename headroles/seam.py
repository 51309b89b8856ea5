"""The seam: a model's own eager attention, seen from outside through transformers' attention interface."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import eager_mask

NAME, IN_PARTS = "headroles", "headroles-in-parts"
HEAD_MASKS = ("head_mask", "decoder_head_mask", "cross_attn_head_mask")


class Call(NamedTuple):
    """One attention call, or its part for some of the queries: tensors as the model's own eager function had them."""

    module: nn.Module
    query: Tensor  # [batch, heads, query, size]
    key: Tensor  # [batch, key-value heads, key, size]
    value: Tensor  # [batch, key-value heads, key, size]
    mask: Tensor | None  # additive, [batch, 1, query, key]
    out: Tensor  # [batch, query, heads, size]
    weights: Tensor  # [batch, heads, query, key]
    scaling: float  # of query times key
    first: int = 0  # the place of its first query


Handler = Callable[[Call], Tensor | None]
_handlers: WeakKeyDictionary[nn.Module, list[tuple[Handler, int | None]]] = WeakKeyDictionary()


@contextmanager
def attending(model: PreTrainedModel, handler: Handler, *, cells: int | None = None) -> Iterator[None]:
    """Within the block `model` attends by its own eager function and `handler` sees every call; masks are kept.

    With `cells` a call that has more weights than that is made in parts, one for some of the queries after the other,
    each with no more weights, or those of one query. Where a model cannot be divided so is told by `parts.divisible`.

    What `handler` returns, if anything, takes the place of `call.out`. Weights are dropped after `handler` returns, so
    `output_attentions` gives none. Blocks nest; on leaving, also by an exception, the attention implementation of every
    (sub-)config is what it was. Other models are not touched.
    """
    modules, configs = list(model.modules()), configs_of(model)
    before = [config._attn_implementation for config in configs]
    for module in modules:
        _handlers.setdefault(module, []).append((handler, cells))
    try:
        for config in configs:
            config._attn_implementation_internal = NAME if cells is None else IN_PARTS
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation_internal = name
        for module in modules:
            _handlers[module].remove((handler, cells))


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


class _Mask:
    """A mask that is made for some queries at a time: whole, it grows with the square of the length."""

    def __init__(self, **told: Any) -> None:
        self.told = told

    def of(self, rows: slice) -> Tensor | None:
        """Of some queries: [batch, 1, query, key]."""
        part = {"q_length": rows.stop - rows.start, "q_offset": self.told["q_offset"] + rows.start}
        return eager_mask(**self.told | part)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | _Mask | None = None,  # by place or, in some families, by name
    **kwargs: Any,
) -> tuple[Tensor, None]:
    handlers = tuple(_handlers.get(module, ()))
    scaling = kwargs.get("scaling")
    scaling = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    parts = []
    for rows in _spans(query, key, [cells for _, cells in handlers if cells is not None]):
        asking, mask = query[:, :, rows], _rows_of(attention_mask, rows, query)
        out, weights = eager(module)(module, asking, key, value, mask, **kwargs)
        for handler, _ in handlers:
            instead = handler(Call(module, asking, key, value, mask, out, weights, scaling, rows.start))
            out = out if instead is None else instead
        parts.append(out)
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1), None


def _spans(query: Tensor, key: Tensor, cells: list[int]) -> list[slice]:
    """The queries of each part: all at once where no handler asks for parts."""
    length = query.shape[2]
    step = min([length, *(max(1, one // (query.shape[0] * query.shape[1] * key.shape[2])) for one in cells)])
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _rows_of(mask: Tensor | _Mask | None, rows: slice, query: Tensor) -> Tensor | None:
    """The mask of some queries."""
    if isinstance(mask, _Mask):
        made = mask.of(rows)
        return None if made is None else made.to(query.device)  # of several devices, that of this layer
    return mask if mask is None or mask.shape[-2] != query.shape[2] else mask[..., rows, :]


def _refuse(model: nn.Module, _: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = [name for name in HEAD_MASKS if kwargs.get(name) is not None]
    if given:
        raise TypeError(
            f"{type(model).__name__} was called with {', '.join(given)}: transformers 5 accepts head masks and ignores "
            f"them, so no head would be masked; use headroles.gated(model, gates) instead"
        )


AttentionInterface.register(NAME, _attend)
AttentionInterface.register(IN_PARTS, _attend)
AttentionMaskInterface.register(NAME, eager_mask)  # an attention name without a mask function gets no mask at all
AttentionMaskInterface.register(IN_PARTS, _Mask)
