"""The place where rules meet a model: within a block, its backward pass follows a rule set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from headroles.models import attention_hooks, heads
from headroles.models.attention_hooks import exclusive
from headroles.scores.lrp import composites
from headroles.scores.lrp.composites import Rules, Table
from headroles.scores.lrp.rules import Rule

# classes of activation modules beside those of torch and transformers.activations, which write them out in many steps
_NAMES = ("gelu", "silu", "swish", "relu", "mish", "tanh")
_NOT_ELEMENTWISE = ("Softmax", "LogSoftmax", "Softmin", "Softmax2d", "MultiheadAttention", "GLU", "Sigmoid", "Softplus")


_switches: WeakKeyDictionary[nn.Module, list[_Switch]] = WeakKeyDictionary()


@contextmanager
def lrp_rules(model: PreTrainedModel, rules: Rules = "cp", *, epsilon: float = 0.0) -> Iterator[None]:
    """Within the block what flows back through `model` follows `rules`; forward values are those of eager attention.

    The gradient of a unit gate (`headroles.gated`) is then the relevance of its head:

        gates = torch.ones(batch, heads, requires_grad=True)
        with ruled(model, "cp"), gated(model, gates):
            explained = model(**inputs).logits[:, -1].amax(-1)
        relevance, = torch.autograd.grad(explained.sum(), gates)  # [batch, heads]

    Parameters take no gradient within the block. On leaving, also by an exception, all is as it was; other models are
    not touched, even if called within the block. Rule sets: `headroles.scores.lrp.composites.table`. Raises ValueError for an
    unknown rule set, a model in train mode, with gradient checkpointing or quantised weights, and for attention that
    cannot be taken apart.
    """
    with ExitStack() as stack:
        enter(stack, model, composites.table(rules, epsilon))
        yield


def enter(stack: ExitStack, model: PreTrainedModel, table: Table) -> None:
    """Put `table` on `model` until `stack` is closed."""
    stack.enter_context(exclusive(model))
    _check(model, table)
    for parameter in [p for p in model.parameters() if p.requires_grad]:
        stack.callback(parameter.requires_grad_, True)
        parameter.requires_grad_(False)
    if not table:
        return
    stack.enter_context(attention_hooks.attending(model, table.get("attention", _as_it_is)))
    hook = partial(_activated, table.get("activation"))
    for module in model.modules():
        if "activation" in table and is_activation(module):
            stack.callback(module.register_forward_hook(hook).remove)
    switch = _Switch(table)
    _switches.setdefault(model, []).append(switch)
    stack.callback(_switches[model].remove, switch)
    stack.enter_context(attention_hooks.each_forward(model, switch.on, switch.off))


@contextmanager
def inside(model: PreTrainedModel) -> Iterator[None]:
    """Within the block what is computed from the model's output follows its rules too."""
    switches = _switches.get(model, [])
    for switch in switches[-1:]:
        switch.on()
    try:
        yield
    finally:
        for switch in switches[-1:]:
            switch.off()


class _Mode(TorchFunctionMode):
    """Replaces every torch function that has a rule."""

    def __init__(self, table: Mapping[Any, Rule]) -> None:
        super().__init__()
        self.table = table

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = self.table.get(func)
        return func(*args, **(kwargs or {})) if rule is None else rule(func, *args, **(kwargs or {}))


class _Switch:
    """Puts the mode on while the model runs, and off between its forwards."""

    def __init__(self, table: Mapping[Any, Rule]) -> None:
        self.table, self.on_now = table, list[_Mode]()

    def on(self) -> None:
        """Before a forward."""
        mode = _Mode(self.table)
        mode.__enter__()
        self.on_now.append(mode)

    def off(self) -> None:
        """After a forward, also one that failed."""
        self.on_now.pop().__exit__(None, None, None)


def is_activation(module: nn.Module) -> bool:
    """Whether a module is an activation, element by element."""
    name, home = type(module).__name__, type(module).__module__
    if name in _NOT_ELEMENTWISE or any(True for _ in module.children()):
        return False
    if home in ("torch.nn.modules.activation", "transformers.activations"):
        return True
    return any(part in name.lower() for part in _NAMES) and not any(True for _ in module.parameters())


def _activated(rule: Any, _: nn.Module, args: tuple[Any, ...], y: Tensor) -> Any:
    return rule(lambda _: y.detach(), args[0]) if args[0].requires_grad else y


def _as_it_is(_: attention_hooks.Call) -> None:
    """The rules of softmax and products, inside the model's own eager attention, are all there is."""


def _check(model: PreTrainedModel, table: Table) -> None:
    sites, name = heads.attention_sites(model), type(model).__name__
    if model.training:
        raise ValueError(f"{name} is in train mode, and dropout would blur every relevance; call model.eval() first")
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise ValueError(
            f"{name} has gradient checkpointing on, which runs layers again without rules; "
            f"call model.gradient_checkpointing_disable() first"
        )
    weights = [p for p in model.parameters() if not p.is_floating_point()]
    if getattr(model, "is_quantized", False) or weights:
        raise ValueError(f"{name} has quantised weights, which pass no gradient; load it without quantization_config")
    outside = next((site.name for site in sites if site.outside), None)
    if "attention" in table and outside:
        raise ValueError(
            f"rules 'voita' need query, key and value of every head, and {outside} attends outside transformers' "
            f"interface, where they cannot be taken apart; use 'cp' or 'attn'"
        )
