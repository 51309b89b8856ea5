"""Linear maps, however a model writes them, and the epsilon rule on them (Bach et al. 2015, eq. 58).

A product of activations with weights is a linear map, whether it is called `F.linear`, `@`, `bmm` or `einsum`. Weights
are frozen parameters and what is made of them alone, such as transposed, cast or selected ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from headroles.scores.lrp.rules import ADD, MATMUL, SUBTRACT, Rule, plain

_SUMMED = (torch.baddbmm, Tensor.baddbmm)  # their first tensor is added to the product
_PRODUCT = (*MATMUL, *_SUMMED, torch.einsum, torch.mv, Tensor.mv)
_OF_EXPERTS = ("_grouped_mm", "grouped_mm_fallback")  # in torch, and in transformers where torch has none
_NO_PRODUCT = ("cat", "concat", "stack", "where", "to", "type_as", "expand_as", "view_as", "reshape_as", "copy_")


def damped(epsilon: float, func: Rule, *args: object, **kwargs: object) -> Tensor:
    """Damp the cotangent of a linear map where its output is small."""
    y = func(*args, **kwargs)
    _damp(epsilon, y)
    return y


def products(epsilon: float, rule: Rule, func: Rule, *args: object, **kwargs: object) -> Any:
    """Call any operation by its rule; damp products of activations with weights, and refuse what may be some."""
    y = rule(func, *args, **kwargs)
    tensors = list(_floating((*args, *kwargs.values())))
    weights = [x for x in tensors if _is_weight(x)]
    if tensors and func is not F.embedding:  # of tokens
        _mark(args[0] if y is None else y, made_of_weights=len(weights) == len(tensors))
    if not weights or not isinstance(y, Tensor) or not y.requires_grad:
        return y
    factors = tensors[-2:] if func in _SUMMED else tensors
    if func in _PRODUCT or func.__name__ in _OF_EXPERTS:
        activations = sum(not _is_weight(x) for x in factors)
        if activations == 1 < len(factors):
            y._product = _damp(epsilon, y)  # type: ignore[attr-defined]
        elif activations < len(factors):
            raise ValueError(_unknown(func))
    elif func in (*ADD, *SUBTRACT):
        _add_bias(epsilon, y, args[:2])
    elif rule is plain and func.__name__ not in _NO_PRODUCT and any(x.ndim > 1 for x in weights):
        raise ValueError(_unknown(func))
    return y


def _unknown(func: Rule) -> str:
    return (
        f"epsilon is not known for {func.__name__}: got an operation on weights that may be a linear map; expected "
        f"F.linear, addmm, a convolution, matmul, bmm, einsum or grouped_mm; try epsilon=0"
    )


def _damp(epsilon: float, y: Tensor) -> RemovableHandle | None:
    if not y.requires_grad:
        return None
    size = y.detach().abs()
    damping = size / (size + epsilon)
    return y.register_hook(lambda c: c * damping)  # type: ignore[no-any-return]


def _add_bias(epsilon: float, y: Tensor, summands: Iterable[object]) -> None:
    """Damp a product that is a summand of y, with weights that are its bias, where y is small."""
    for x in summands:
        product = getattr(x, "_product", None) or getattr(getattr(x, "_base", None), "_product", None)
        if product is not None and isinstance(x, Tensor) and x.shape == y.shape:
            product.remove()
            _damp(epsilon, y)


def _floating(values: Iterable[object]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            if value.is_floating_point():
                yield value
        elif isinstance(value, list | tuple):
            yield from _floating(value)


def _is_weight(x: Tensor) -> bool:
    return not x.requires_grad and (isinstance(x, nn.Parameter) or getattr(x, "_made_of_weights", False))


def _mark(y: object, *, made_of_weights: bool) -> None:
    for x in _floating([y]):
        if made_of_weights != _is_weight(x):
            x._made_of_weights = made_of_weights  # type: ignore[attr-defined]
