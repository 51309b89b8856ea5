"""Alpha-beta rules, alpha = beta = 0.5: positive and negative contributions share the relevance of an output.

The rule of Voita's released code (2020, `lib/layers/lrp.py` of the-story-of-heads): with contributions z_ji of input i
to output j, R_i = sum_j R_j (z_ji+ / (2 sum_i z_ji+) + z_ji- / (2 sum_i z_ji-)); both terms are positive. An output
with contributions of one sign loses half, so each row is then rescaled to the relevance of its outputs. Written on
cotangents c = R / value, so that constants, views and sums need no rules.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from headroles.models.attention_hooks import AttentionCall
from headroles.scores.lrp.rules import ADD, NORM, Operand, Operation, Ratio, Rule, whole

BLOCK = 1 << 24  # numbers in the largest tensor of the attention rule


class Linear(Function):
    """Linear map y = x W + b, factored into 4 products each way; the bias takes no share. x [..., in], W [in, out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: D102
        y = F.linear(x, weight.T, bias)
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor, None, None]:  # noqa: D102
        x, weight, y = ctx.saved_tensors
        up, down = weight.clamp(min=0), weight.clamp(max=0)
        high, low = x.clamp(min=0), x.clamp(max=0)
        s, t = _split(c * y, high @ up + low @ down, high @ down + low @ up)
        cx = torch.where(x > 0, s @ up.T + t @ down.T, s @ down.T + t @ up.T)
        return cx * _scale(c * y, x * cx), None, None


class Sum(Function):
    """Sum y = a + b, element by element."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:  # noqa: D102
        ctx.save_for_backward(a, b)
        return a + b

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        a, b = ctx.saved_tensors
        r = c * (a + b)
        s, t = _split(r, a.clamp(min=0) + b.clamp(min=0), a.clamp(max=0) + b.clamp(max=0))
        ca, cb = torch.where(a > 0, s, t), torch.where(b > 0, s, t)
        scale = _scale(r, torch.cat([a * ca, b * cb], -1))
        return ca * scale, cb * scale


class Attend(Function):
    """Attention o = softmax(scaling q k') v: contributions are the Jacobian times q, k and v jointly.

    With a soft cap, the softmax is of cap tanh(scaling q k' / cap).
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, o: Tensor, a: Tensor, scaling: float, cap: float
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, o, a)
        ctx.scaling, ctx.cap = scaling, cap
        return o.view_as(o)

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None, None]:  # noqa: D102
        q, k, v, o, a = ctx.saved_tensors
        cq, ck, cv = _attend(c * o, q * ctx.scaling, k, v, o, a, ctx.cap)
        by_q, by_k, by_v = ((x * cx).abs().sum((-1, -2)) for x, cx in ((q * ctx.scaling, cq), (k, ck), (v, cv)))
        scale = _ratio((c * o).abs().sum((-1, -2)), by_q + by_k + by_v)[..., None, None]
        return cq * scale * ctx.scaling, ck * scale, cv * scale, None, None, None, None


def alphabeta() -> dict[Operation, Rule]:
    """Return the rules that differ from the other composites."""
    table: dict[Operation, Rule] = {F.linear: linear, torch.addmm: conv1d}
    table |= dict.fromkeys(NORM, whole)  # factored, its Jacobian passes all R (Achtibat et al. 2024)
    return table | dict.fromkeys(ADD, residual) | {"attention": attend}


def linear(func: Rule, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply alpha-beta to the inputs of a linear map (Voita's code, `Dense`)."""
    y: Tensor = Linear.apply(x, weight.T, bias) if x.requires_grad else func(x, weight, bias)
    return y


def conv1d(func: Rule, bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Apply `linear` to GPT-2's Conv1D."""
    y: Tensor = Linear.apply(x, weight, bias) if x.requires_grad else func(bias, x, weight)
    return y


def residual(func: Rule, a: Operand, b: Operand, *args: object, **kwargs: object) -> Tensor:
    """Apply alpha-beta to the summands of a residual stream, also below the first masks; biases take no share."""
    if func in (Tensor.add_, Tensor.__iadd__) and isinstance(a, Tensor) and a.requires_grad:
        return a.copy_(residual(torch.add, a.clone(), b, *args, **kwargs))
    tensors = [x for x in (a, b) if isinstance(x, Tensor) and x.is_floating_point()]
    variable = [x for x in tensors if x.requires_grad]
    with_constant = len(variable) == 1 < len(tensors)
    stream = len(variable) == 2 or (with_constant and tensors[0].shape == tensors[1].shape)
    y: Tensor
    if stream and 2 <= max(x.ndim for x in tensors) <= 4 and not args and not kwargs:
        y = Sum.apply(*torch.broadcast_tensors(*tensors))
        return y
    whole_y = func(a, b, *args, **kwargs)
    y = Ratio.apply(variable[0], lambda _: whole_y.detach()) if with_constant else whole_y
    return y


def attend(call: AttentionCall) -> Tensor:
    """Apply alpha-beta to q, k and v jointly (Voita's code, the attention core)."""
    groups = call.query.shape[1] // call.key.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (call.key, call.value))
    out = call.out.detach().transpose(1, 2)
    weights = call.weights.detach()
    if weights.shape[-1] != v.shape[-2] or _differ(weights @ v.detach(), out):
        raise ValueError(
            f"rules 'voita' need attention equal to weights times values, got {type(call.module).__name__}, as with "
            f"a scale after the softmax; try rules='cp' or 'attn'"
        )
    cap = call.options.get("softcap")
    attended: Tensor = Attend.apply(call.query, k, v, out, weights, call.scaling, math.inf if cap is None else cap)
    return attended.transpose(1, 2)


def _differ(a: Tensor, b: Tensor) -> bool:
    """Return whether tensors differ beyond rounding, at least to float32, in which some models attend."""
    precision = max(torch.finfo(x.dtype).eps for x in (a, b, torch.empty(0))) ** 0.5
    return bool((a - b).abs().max() > precision * b.abs().max())


def _attend(
    r: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, a: Tensor, cap: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return cotangents of scaled q, k and v [batch, heads, token, size] from R of o, a block of queries at a time."""
    step = max(1, BLOCK // (k.numel() * k.shape[-1]))
    rows, ck, cv = [], torch.zeros_like(k[..., :1, :]), torch.zeros_like(r[..., :1, :])
    for block_r, block_q, block_o, block_a in zip(*(x.split(step, -2) for x in (r, q, o, a)), strict=True):
        cq, block_ck, block_cv = _block(block_r, block_q, k, v, block_o, block_a, cap)
        rows.append(cq)
        ck, cv = ck + block_ck, cv + block_cv
    return torch.cat(rows, -2), ck, cv


def _block(
    r: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, a: Tensor, cap: float
) -> tuple[Tensor, Tensor, Tensor]:
    # An output o_id = sum_j a_ij v_jd depends on q, k and v at once. The contribution of an input is the Jacobian times
    # the input: of v_jd it is a_ij v_jd; of k_je it is g_ijd m_ije, with g the derivative of o_id by the score_ij, and
    # m_ije = q_ie k_je, the part of k_je in that score; of q_ie it is d_ide = q_ie sum_j g_ijd k_je. The contributions
    # of keys are too many to be stored: a product is positive where its factors have one sign, so that their sums are
    # products of the positive and negative parts of m (`above`, `below`) and of g (`rise`, `fall`).
    m = q[..., :, None, :] * k[..., None, :, :]  # contribution of k_je to score_ij: [batch, heads, i, j, e]
    above, below = m.clamp(min=0).sum(-1), m.clamp(max=0).sum(-1)
    slope = 1 - ((above + below) / cap).tanh() ** 2  # of capped scores
    # d o_id / d score_ij: [batch, heads, i, j, d]
    g = (a * slope)[..., None] * (v[..., None, :, :] - o[..., :, None, :])
    rise, fall = g.clamp(min=0), g.clamp(max=0)
    e = g.transpose(-1, -2) @ k[..., None, :, :]  # d o_id / d q_ie
    d = q[..., None, :] * e
    positive = a @ v.clamp(min=0) + _over(above, rise) + _over(below, fall) + d.clamp(min=0).sum(-1)
    negative = a @ v.clamp(max=0) + _over(below, rise) + _over(above, fall) + d.clamp(max=0).sum(-1)
    s, t = _split(r, positive, negative)
    if_above, if_below = rise @ s[..., None] + fall @ t[..., None], fall @ s[..., None] + rise @ t[..., None]
    ck = (q[..., :, None, :] * torch.where(m > 0, if_above, if_below)).sum(-3)
    cq = (e * torch.where(d > 0, s[..., None], t[..., None])).sum(-2)
    cv = torch.where(v > 0, a.transpose(-1, -2) @ s, a.transpose(-1, -2) @ t)
    return cq, ck, cv


def _over(weights: Tensor, values: Tensor) -> Tensor:
    """Sum over keys of [.., i, j] times [.., i, j, d]."""
    return (weights[..., None, :] @ values).squeeze(-2)


def _split(r: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    """Return half of R divided by the positive and by the negative sum of contributions, 0 where there are none."""
    s, t = (torch.where(z == 0, 0.0, 0.5 * r / torch.where(z == 0, 1.0, z)) for z in (positive, negative))
    return s, t


def _scale(outputs: Tensor, inputs: Tensor) -> Tensor:
    """Return the factor that rescales the relevance of a row of inputs to its outputs': [..., 1]."""
    return _ratio(outputs.abs().sum(-1, keepdim=True), inputs.abs().sum(-1, keepdim=True))


def _ratio(whole: Tensor, part: Tensor) -> Tensor:
    return torch.where(part == 0, 0.0, whole / torch.where(part == 0, 1.0, part))
