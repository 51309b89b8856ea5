"""Discovery: where a model attends, told by one spy forward through transformers' attention interface."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles.models import attention_hooks
from headroles.models.attention_hooks import exclusive
from headroles.models.dummy_inputs import body, without_cache
from headroles.models.sites import OUTSIDE, Outside, Site, class_name, width
from headroles.models.submodels import hint
from headroles.tables.frame import KINDS, Kind


@dataclass
class _ObservedCall:
    """What the spy saw of one attention call."""

    module: nn.Module
    weights: Tensor  # [batch, heads, query, key]
    flat: Tensor | None  # the heads side by side, to be recognised at the input of the output projection
    kv_heads: int | None
    outside: Outside | None
    out: nn.Module | None = None
    later: list[tuple[nn.Module, Tensor]] = field(default_factory=list)  # maps after it that take in as many numbers

    @property
    def kind(self) -> Kind:
        """Cross-attention looks at another length than its own; a decoder's first query sees no later key."""
        if self.weights.shape[-2] != self.weights.shape[-1]:
            return "cross"
        return "dec-self" if not self.weights[..., 0, 1:].any() else "enc-self"


def discover_sites(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[Site]:  # noqa: C901
    """The sites that one forward on `inputs` shows, by kind and layer."""
    seen: list[_ObservedCall] = []
    modules = list(model.modules())
    outside = {module: row for module in model.modules() if (row := OUTSIDE.get(class_name(module)))}

    def from_interface(call: attention_hooks.Call) -> None:
        seen.append(_ObservedCall(call.module, call.weights, call.out.flatten(), call.key.shape[1], None))

    def from_outside(module: nn.Module, weights: Tensor) -> None:
        row = outside[module]
        kv_heads = getattr(module, row.kv_heads) if row.kv_heads else None
        seen.append(_ObservedCall(module, weights, None, kv_heads, row, _relative(model, module, row.out)))

    def at_projection(module: nn.Module, args: tuple[Any, ...]) -> None:
        last = seen[-1] if seen else None
        if not (last and last.flat is not None and args and _as_many(args[0], last.flat)):
            return
        if torch.equal(args[0].flatten(), last.flat):
            last.out, last.flat = module, None
        else:
            last.later.append((module, args[0].clone()))

    with ExitStack() as stack:
        stack.enter_context(exclusive(model))
        for module in outside:
            for hook in ask_for_weights(module, from_outside):
                stack.callback(hook.remove)
        for module in model.modules():
            if getattr(getattr(module, "weight", None), "ndim", 0) == 2:
                stack.callback(module.register_forward_pre_hook(at_projection).remove)
        stack.enter_context(attention_hooks.attending(model, from_interface))
        stack.enter_context(attention_hooks.evaluating(model))
        _run(model, inputs)
    if modules != list(model.modules()):  # BigBird puts other attention into itself where a text is short
        return discover_sites(model, inputs)
    for number, one in enumerate(seen):
        if one.out is None:
            one.out = _behind(model, inputs, number - sum(each.outside is not None for each in seen[:number]), one)
    _check_once(model, seen)
    _check_keys(model, seen)
    return _numbered(model, seen)


def _run(model: PreTrainedModel, inputs: dict[str, Tensor]) -> None:
    try:
        with torch.no_grad():
            body(model)(**inputs, **without_cache(body(model)))
    except (TypeError, ValueError, AttributeError, RuntimeError, LookupError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{type(model).__name__} does not run on {' and '.join(inputs)} alone ({reason}); give "
            f"sites(model, inputs) the arguments of one small forward{hint(model)}"
        ) from error


def _behind(model: PreTrainedModel, inputs: dict[str, Tensor], number: int, one: _ObservedCall) -> nn.Module | None:
    """The output projection where each head is multiplied by something before it (a gate of the family's own).

    It is the map in whose input only the numbers of head 0 change when what head 0 puts out does.
    """
    calls, now = [0], list[tuple[nn.Module, Tensor]]()

    def changed(call: attention_hooks.Call) -> Tensor | None:
        calls[0] += 1
        if calls[0] != number + 1:
            return None
        out = call.out.clone()
        out[..., 0, :] += 1  # [batch, query, heads, size]
        return out

    with ExitStack() as stack:
        stack.enter_context(exclusive(model))
        for module in {module for module, _ in one.later}:
            hook = module.register_forward_pre_hook(lambda module, args: now.append((module, args[0])))
            stack.callback(hook.remove)
        stack.enter_context(attention_hooks.attending(model, changed))
        stack.enter_context(attention_hooks.evaluating(model))
        _run(model, inputs)
    for module, before in one.later:
        for after in (given for each, given in now if each is module and given.shape == before.shape):
            parts = (before != after).unflatten(-1, (one.weights.shape[1], -1))
            differs = parts.any(-1).flatten(0, -2).any(0)  # [head]
            if differs[0] and not differs[1:].any():
                return module
    return None


def _check_once(model: PreTrainedModel, seen: list[_ObservedCall]) -> None:
    """Raises ValueError for attention whose heads are mixed before they reach a projection."""
    lost = Counter(one.module for one in seen if one.out is None)
    for module, times in lost.items():
        if times > 1:
            raise ValueError(
                f"{_name(model, module)} in {type(model).__name__} attends {times} times before its output projection, "
                f"so that what a head puts out cannot be told from the others"
            )


def _numbered(model: PreTrainedModel, seen: list[_ObservedCall]) -> list[Site]:
    names = {module: name for name, module in model.named_modules()}
    layers: Counter[str] = Counter()
    turns: Counter[nn.Module] = Counter()
    found = []
    for one in seen:
        heads = one.weights.shape[1]
        found.append(
            Site(
                kind=one.kind,
                layer=layers[one.kind],
                heads=heads,
                kv_heads=one.kv_heads or heads,
                size=width(one.out) // heads,
                name=names[one.module],
                module=one.module,
                out_name=names.get(one.out) if one.out is not None else None,
                out=one.out,
                turn=turns[one.module],
                numbers=tuple(range(heads)),
                of=heads,
                outside=one.outside,
            )
        )
        layers[one.kind] += 1
        turns[one.module] += 1
    return sorted(found, key=lambda site: (KINDS.index(site.kind), site.layer))


def _check_keys(model: PreTrainedModel, seen: list[_ObservedCall]) -> None:
    """Raises ValueError for attention to one's own tokens and to others at once."""
    for one in seen:
        queries, keys = one.weights.shape[-2:]
        if keys > queries > 1 and not one.weights[..., 0, 1:queries].any():
            raise ValueError(
                f"{_name(model, one.module)} in {type(model).__name__} attends from {queries} tokens to {keys} at "
                f"once, their own and others: such heads are of no one kind"
            )


def _name(model: nn.Module, module: nn.Module) -> str:
    found: str = next(name for name, each in model.named_modules() if each is module)
    return found


def ask_for_weights(module: nn.Module, handler: Callable[[nn.Module, Tensor], None]) -> list[Any]:
    """Hooks that make an attention module outside the interface give its weights to `handler` and to nobody else."""
    first: list[bool] = []  # blocks nest: the outermost is the first to ask for the weights and the last to take them

    def ask(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        bound = attention_hooks.arguments(module, args, kwargs)
        first.append(not bound.arguments.get("output_attentions"))
        bound.arguments["output_attentions"] = True
        return bound.args, bound.kwargs

    def take(module: nn.Module, _: Any, output: tuple[Any, ...]) -> tuple[Any, ...] | None:
        handler(module, output[1])
        return type(output)([output[0], None, *output[2:]]) if first.pop() else None

    return [module.register_forward_pre_hook(ask, with_kwargs=True), module.register_forward_hook(take, prepend=True)]


def _as_many(given: Any, flat: Tensor) -> bool:
    return isinstance(given, Tensor) and given.numel() == flat.numel()


def _relative(model: nn.Module, module: nn.Module, path: str) -> nn.Module:
    name = _name(model, module)
    if path.startswith(".."):
        return model.get_submodule(f"{name.rpartition('.')[0]}.{path[2:]}")
    return module.get_submodule(path)
