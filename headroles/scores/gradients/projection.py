"""The vocabulary projection under gradient scores: its inputs, and a backward pass for few logits."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Function

from headroles._restoration import Changes, block
from headroles.models.head_model import HeadModel
from headroles.models.masking import Context
from headroles.models.weights.sharded import is_elsewhere


class Projection:
    """The inputs of the vocabulary projection in a forward pass, and the kind of its backward pass.

    Attributes:
        inputs: input of each call, [batch, token, width].
        sparse: whether backward passes read only the weights of logits with a gradient. Set it to False before batched
            gradients (`is_grads_batched`), which cannot depend on values.
    """

    def __init__(self, *, sparse: bool) -> None:
        self.inputs: list[Tensor] = []
        self.sparse = sparse

    def __call__(self, module: nn.Module, args: tuple[object, ...], logits: Tensor) -> Tensor | None:
        """Keep the input of a call (a forward hook), and replace the gradient of a linear map."""
        if not (args and isinstance(args[0], Tensor) and args[0].requires_grad):
            return None
        self.inputs.append(args[0])
        if not self.sparse or type(module) is not nn.Linear or is_elsewhere(module.weight):
            return None
        replaced: Tensor = FewLogits.apply(args[0], logits.detach(), module.weight.detach(), self)
        return replaced


class FewContext(Context, Protocol):
    """What the projection hands on to its `backward`."""

    projection: Projection


class FewLogits(Function):
    """The gradient of logits = x W^T + b with respect to x, where few logits have a gradient.

    Of one logit per token it is one row of W; a product with the whole of W would cost as much as several layers.
    """

    @staticmethod
    def forward(ctx: FewContext, x: Tensor, logits: Tensor, weight: Tensor, projection: Projection) -> Tensor:  # noqa: ARG004, D102
        ctx.save_for_backward(weight)
        ctx.projection = projection
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: FewContext, c: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: D102
        (weight,) = ctx.saved_tensors
        if not ctx.projection.sparse or int(c.count_nonzero()) > c.shape[:-1].numel():
            return c @ weight, None, None, None
        tokens = c.flatten(0, -2)  # [tokens, vocabulary]
        rows, columns = tokens.nonzero(as_tuple=True)
        back = torch.zeros(len(tokens), weight.shape[1], dtype=c.dtype, device=c.device)
        back.index_add_(0, rows, tokens[rows, columns, None] * weight[columns])
        return back.view(*c.shape[:-1], -1), None, None, None


@block
def observed(changes: Changes, model: HeadModel, *, sparse: bool) -> Projection:
    """Observe the vocabulary projection of `model` within the block, if it has one."""
    projection, module = Projection(sparse=sparse), model.model.get_output_embeddings()
    if module is not None:
        changes.hook(module, projection, after=True)
    return projection
