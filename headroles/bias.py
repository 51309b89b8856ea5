"""The bias per head that T5, MPNet and BLOOM add to attention scores, once some heads are gone."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from headroles import seam

# arguments of attention modules: [batch or 1, head, query, key], and [batch x head, 1, key]
NAMES = ("position_bias", "alibi")
_LEFT = "bias_of_heads"  # where an attention module keeps which


def narrow(module: nn.Module, keep: Sequence[int], of: int) -> None:
    """From now on the attention module reads only the biases of the heads `keep` of the `of` that others speak of."""
    if not set(NAMES) & set(inspect.signature(module.forward).parameters):
        return
    if _LEFT not in module.__dict__:
        hook = _Bias()
        module.register_forward_pre_hook(hook.before, with_kwargs=True)
        module.register_forward_hook(hook.after)
        if isinstance(table := getattr(module, "relative_attention_bias", None), nn.Module):
            table.register_forward_hook(hook.made)
    module.__dict__[_LEFT] = list(keep), of


class _Bias:
    """Takes the biases of the heads that are left, and hands all of them on to the layers above (T5's are shared)."""

    keep: list[int]
    of: int
    full: Tensor | None = None  # [batch or 1, head, query, key], within one call

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        bound = seam.arguments(module, args, kwargs)
        self.full, (self.keep, self.of) = None, module.__dict__[_LEFT]
        for name in NAMES:
            value = bound.arguments.get(name)
            if isinstance(value, Tensor) and value.ndim == 4:
                self.full, bound.arguments[name] = value, value[:, self.keep]
            elif isinstance(value, Tensor):
                bound.arguments[name] = value.unflatten(0, (-1, self.of))[:, self.keep].flatten(0, 1)
        return bound.args, bound.kwargs

    def made(self, _: nn.Module, __: Any, values: Tensor) -> Tensor:
        """The first layer of a T5 makes the bias of all, [query, key, head]."""
        self.full = values.permute(2, 0, 1)[None]
        return values[..., self.keep]

    def after(self, module: nn.Module, _: Any, output: Any) -> Any:
        """What a T5 hands on: the bias of all heads; that of cross-attention is zero."""
        full, self.full = self.full, None
        if not hasattr(module, "has_relative_attention_bias"):
            return output
        full = output[1].new_zeros(1, self.of, *output[1].shape[2:]) if full is None else full
        return (output[0], full, *output[2:])
