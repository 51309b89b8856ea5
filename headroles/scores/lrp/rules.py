"""LRP rules: functions that replace the gradient of one operation.

The relevance of a tensor x for the target is R(x) = x * c(x), where c is the cotangent that autograd carries back.
Linear maps, sums, views and gathers follow LRP-0 by their own gradient, so a table holds the other operations only. A
rule is called as `rule(func, *args, **kwargs)` with the operation and its arguments and returns its value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

Operation = Callable[..., object] | Literal["activation", "attention"]  # a torch function, or a part of the model

_CONVOLUTIONS = (F.conv1d, torch.conv1d, F.conv2d, torch.conv2d, F.conv3d, torch.conv3d)
LINEAR = (F.linear, torch.addmm, Tensor.addmm, *_CONVOLUTIONS)
SOFTMAX = (torch.softmax, Tensor.softmax, F.softmax)
ADD = (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_, Tensor.__iadd__)
SUBTRACT = (torch.sub, Tensor.sub, Tensor.__sub__, Tensor.__rsub__)
MULTIPLY = (
    *(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, Tensor.mul_, Tensor.__imul__),
    *(torch.multiply, Tensor.multiply),
)
MATMUL = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.mm, Tensor.mm)
DIVIDE = (
    *(torch.div, Tensor.div, Tensor.__truediv__, torch.true_divide, Tensor.div_, Tensor.__itruediv__),
    *(torch.divide, Tensor.divide),
)
NORM = (F.layer_norm, torch.layer_norm)
GROUP_NORM = (F.group_norm, torch.group_norm)
RMS_NORM = (F.rms_norm, torch.rms_norm, F.normalize)  # each number of the output is the input times a scale
ROOT = (torch.rsqrt, Tensor.rsqrt, torch.sqrt, Tensor.sqrt)
POWER = (torch.pow, Tensor.pow, Tensor.__pow__, torch.float_power, torch.square, Tensor.square)
RECIPROCAL = (torch.reciprocal, Tensor.reciprocal, Tensor.__rdiv__, Tensor.__rpow__)  # 1 / x arrives as __rdiv__
_EXPONENTIAL = (torch.exp, Tensor.exp, Tensor.exp_, F.softplus, F.logsigmoid)  # gates, and decays of linear attention
GATE = (torch.sigmoid, Tensor.sigmoid, F.sigmoid, *_EXPONENTIAL)
ACTIVATION = (
    *(F.gelu, F.silu, F.mish, F.hardswish, F.elu, F.selu, F.celu, F.relu, F.relu6, F.leaky_relu, F.hardtanh),
    *(torch.relu, Tensor.relu, torch.tanh, Tensor.tanh, F.tanh, torch.clamp, Tensor.clamp),
    *(torch.clamp_min, Tensor.clamp_min, torch.clamp_max, Tensor.clamp_max),
)
FUSED = (F.scaled_dot_product_attention, F.multi_head_attention_forward)


Rule = Callable[..., Tensor]
Operand = Tensor | float
Weight = Tensor | None
Shape = Sequence[int]  # of the last dimensions, that are normalised


class Ratio(Function):
    """y = f(x), element by element: all R passes from y to x, c(x) = c(y) y / x (Achtibat et al. 2024, eq. 9)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:  # noqa: D102
        safe = torch.where(x == 0, 1.0, x)
        y = f(x)
        ctx.save_for_backward(y / safe)
        return y

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor, None]:  # noqa: D102
        return c * ctx.saved_tensors[0], None


class FrozenNorm(Function):
    """Layer norm with a constant standard deviation; the rest is linear (Ali et al. 2022)."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, x: Tensor, shape: Shape, weight: Weight, bias: Weight, eps: float
    ) -> Tensor:
        y, _, rstd = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.save_for_backward(rstd, weight)
        ctx.dims = tuple(range(-len(shape), 0))
        return y

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor, None, None, Tensor | None, None]:  # noqa: D102
        rstd, weight = ctx.saved_tensors
        cx = (c if weight is None else c * weight) * rstd
        bias = c if ctx.needs_input_grad[3] else None  # autograd sums it to the shape of the bias
        return cx - cx.mean(ctx.dims, keepdim=True), None, None, bias, None


def plain(func: Rule, *args: object, **kwargs: object) -> Tensor:
    """Call an operation that has no rule."""
    return func(*args, **kwargs)


def constant(func: Rule, *args: object, **kwargs: object) -> Tensor:
    """Pass no relevance: attention softmax (Ali et al. 2022, CP-LRP), gates, 1 / sqrt of a norm's variance."""
    with torch.no_grad():
        return func(*args, **kwargs)


def whole(func: Rule, x: Tensor, *args: object, **kwargs: object) -> Tensor:
    """Pass all relevance of an activation to its input (Achtibat et al. 2024, eq. 9; Voita's code does the same)."""
    y: Tensor = Ratio.apply(x, lambda x: func(x, *args, **kwargs)) if x.requires_grad else func(x, *args, **kwargs)
    return y


def power(func: Rule, x: Operand, *args: object, **kwargs: object) -> Tensor:
    """Treat a root and its reciprocal, of a norm's variance, as constants; another power passes all R to its base."""
    exponent = args[0] if args else kwargs.get("exponent", 2)  # of `torch.square` none is given
    if not isinstance(x, Tensor) or (isinstance(exponent, int | float) and exponent < 1):
        return constant(func, x, *args, **kwargs)
    return whole(func, x, *args, **kwargs)


def halves(func: Rule, a: Operand, b: Operand, *args: object, **kwargs: object) -> Tensor:
    """Give two factors half each, a constant nothing (Achtibat et al. 2024, propositions 3.2 and 3.3)."""
    y = func(a, b, *args, **kwargs)
    if y.requires_grad and all(isinstance(x, Tensor) and x.requires_grad for x in (a, b)):
        y.register_hook(lambda c: c * 0.5)
    return y


def shares(func: Rule, equation: str, *operands: object) -> Tensor:
    """Give the factors of `torch.einsum` equal shares, a constant nothing."""
    y = func(equation, *operands)
    factors = operands[0] if isinstance(operands[0], list | tuple) else operands
    count = sum(isinstance(x, Tensor) and x.requires_grad for x in factors)
    if count > 1:
        y.register_hook(lambda c: c / count)
    return y


def summands(func: Rule, start: Tensor, batch1: Tensor, batch2: Tensor, *args: object, **kwargs: object) -> Tensor:
    """Apply `halves` to start + batch1 batch2."""
    return halves(lambda a, b: func(start, a, b, *args, **kwargs), batch1, batch2)


def signal(func: Rule, a: Operand, b: Operand, *args: object, **kwargs: object) -> Tensor:
    """Treat an activation that multiplies a tensor as a constant gate (`cp_LRP` of the package lxt)."""
    gates = [isinstance(x, Tensor) and x.grad_fn is not None and x.grad_fn.name() == "RatioBackward" for x in (a, b)]
    tensors = all(isinstance(x, Tensor) and x.ndim > 0 for x in (a, b))  # a number is the cap of soft-capped logits
    if tensors and gates[0] != gates[1]:
        a, b = (x.detach() if gate and isinstance(x, Tensor) else x for x, gate in zip((a, b), gates, strict=True))
    return halves(func, a, b, *args, **kwargs)


def numerator(func: Rule, a: Operand, b: Operand, *args: object, **kwargs: object) -> Tensor:
    """Give all of a quotient's relevance to the numerator (Ali et al. 2022)."""
    return func(a, b.detach() if isinstance(b, Tensor) else b, *args, **kwargs)


def solved(func: Rule, a: Tensor, b: Tensor, **kwargs: object) -> Tensor:
    """Give all relevance of the solution x of a x = b to b, as for a quotient (the delta rule of linear attention)."""
    return func(a.detach(), b, **kwargs)


def norm(
    func: Rule, x: Tensor, shape: Shape, weight: Weight = None, bias: Weight = None, eps: float = 1e-5, *rest: object
) -> Tensor:
    """Treat the standard deviation of layer norm as a constant (Ali et al. 2022)."""
    inputs = x, shape, weight, bias, eps
    y: Tensor = FrozenNorm.apply(*inputs) if x.requires_grad else func(*inputs, *rest)
    return y


def group_norm(
    func: Rule, x: Tensor, groups: int, weight: Weight = None, bias: Weight = None, eps: float = 1e-5
) -> Tensor:
    """Treat the standard deviations of groups of channels, [batch, channel, ...], as constants."""
    y = func(x, groups, weight, bias, eps)
    if not x.requires_grad:
        return y
    shape = (1, -1, *[1] * (x.ndim - 2))
    parts = x.unflatten(1, (groups, -1)).flatten(2)  # [batch, group, number]
    deviation = (parts.var(-1, unbiased=False, keepdim=True) + eps).detach().sqrt()
    flows: Tensor = ((parts - parts.mean(-1, keepdim=True)) / deviation).view_as(x)
    flows = flows if weight is None else flows * weight.view(shape)
    flows = flows if bias is None else flows + bias.view(shape)
    return y.detach() + (flows - flows.detach())  # the bits of y


def gated_unit(func: Rule, x: Tensor, dim: int = -1) -> Tensor:
    """Treat the sigmoid of F.glu as a constant gate."""
    a, b = x.chunk(2, dim)
    return a * b.detach().sigmoid() if x.requires_grad else func(x, dim)


def fused(func: Rule, *_: object, **__: object) -> Tensor:
    """Refuse fused attention, which cannot be given rules."""
    raise ValueError(
        f"rules need attention by transformers' interface, got {func.__name__}, which cannot be taken apart into "
        f"softmax and products; try rules='gradient'"
    )
