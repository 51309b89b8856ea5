"""Context manager under which a model's backward pass follows LRP rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from headroles._restoration import Block, Changes, block, healers
from headroles.models import attention_hooks
from headroles.models.attention_hooks import exclusive
from headroles.models.head_model import HeadModel, Model
from headroles.scores.lrp import composites
from headroles.scores.lrp.composites import Rules, Table
from headroles.scores.lrp.rules import Rule, plain

# parts of class names of activation modules outside torch and transformers.activations, written in several operations
_NAMES = ("gelu", "silu", "swish", "relu", "mish", "tanh")
_NOT_ELEMENTWISE = ("Softmax", "LogSoftmax", "Softmin", "Softmax2d", "MultiheadAttention", "GLU", "Sigmoid", "Softplus")

_modes: list[_Mode] = []  # of all open blocks


def lrp_rules(model: Model, rules: Rules = "cp", *, epsilon: float = 0.0) -> Block[Changes]:
    """Propagate relevance instead of gradients through a model.

    Within the block, the gradient with respect to a mask of ones is the relevance of its head. Forward values are those
    of eager attention, and parameters take no gradient. On leaving, also by an exception, everything is restored. Other
    models are not affected, even if called within the block. ValueError is raised for an unknown rule set, a model in
    train mode, with gradient checkpointing or quantised weights, and for attention that rules cannot decompose.

    Args:
        model: the model, in eval mode.
        rules: name of the rule set (`headroles.scores.lrp.composites.table`).
        epsilon: strength of the epsilon rule on linear maps; 0 for none.

    Returns:
        A context manager.

    Example:
        >>> mask = torch.ones(batch, heads, requires_grad=True)
        >>> with hr.lrp_rules(model, "cp"), hr.model.mask(mask):
        ...     target = model(**inputs).logits[:, -1].amax(-1)
        >>> (relevance,) = torch.autograd.grad(target.sum(), mask)  # [batch, heads]
    """
    handle = HeadModel.of(model, allow_sharded=rules == "gradient")
    return applied(handle, composites.table(rules, epsilon))


@block
def applied(changes: Changes, model: HeadModel, table: Table) -> Changes:
    """Apply a table of rules to `model` within the block."""
    changes.enter(exclusive(model.model))
    _check(model, table)
    for parameter in [p for p in model.model.parameters() if p.requires_grad]:
        changes.add(partial(parameter.requires_grad_, True))
        parameter.requires_grad_(False)
    if not table:
        return changes
    # without a rule for attention, those of softmax and products apply inside the model's own eager attention
    changes.enter(attention_hooks.attending(model.model, table.get("attention", lambda _: None)))
    if (rule := table.get("activation")) is not None:
        for module in filter(is_activation, model.model.modules()):
            changes.hook(module, partial(_activated, rule), after=True)
    mode = _Mode(table, model.model)
    changes.add(mode.end, in_thread=True)
    _modes.append(mode)
    changes.enter(attention_hooks.each_forward(model.model, mode.on, mode.off))
    return changes


@block
def inside(changes: Changes, model: HeadModel) -> None:
    """Apply the model's rules to operations on its output within the block."""
    for mode in [mode for mode in _modes if mode.model is model.model][-1:]:
        changes.add(mode.off, in_thread=True)
        mode.on()


class _Mode(TorchFunctionMode):
    """Torch function mode that replaces every function that has a rule: on while the model runs, off in between."""

    def __init__(self, table: Table, model: nn.Module | None = None) -> None:
        super().__init__()
        self.table, self.model = table, model

    def on(self) -> None:
        """Enter the mode before a forward pass."""
        self.off()  # where an interrupt left it on
        self.__enter__()

    def off(self) -> None:
        """Exit the mode after a forward pass, also a failed one."""
        above: list[TorchFunctionMode] = []  # of others
        while self in _get_current_function_mode_stack():
            above.append(_pop_mode())
        for mode in reversed([mode for mode in above if mode is not self]):
            _push_mode(mode)

    def end(self) -> None:
        """Exit the mode for good. Without rules it does nothing: torch may bring back a mode after an interrupt."""
        self.table = {}
        self.off()
        _modes[:] = [mode for mode in _modes if mode is not self]

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        rule, every = self.table.get(func, plain), self.table.get("every")
        call = rule if every is None else partial(every, rule)
        return call(func, *args, **(kwargs or {}))


def _remove_ended() -> None:
    for mode in _get_current_function_mode_stack():
        if isinstance(mode, _Mode) and not mode.table:
            mode.off()


healers.append(_remove_ended)


def is_activation(module: nn.Module) -> bool:
    """Return whether a module is an element-wise activation."""
    name, home = type(module).__name__, type(module).__module__
    if name in _NOT_ELEMENTWISE or any(True for _ in module.children()):
        return False
    if home in ("torch.nn.modules.activation", "transformers.activations"):
        return True
    return any(part in name.lower() for part in _NAMES) and not any(True for _ in module.parameters())


def _activated(rule: Rule, _: nn.Module, args: tuple[Tensor, ...], y: Tensor) -> Tensor:
    return rule(lambda _: y.detach(), args[0]) if args[0].requires_grad else y


def _check(model: HeadModel, table: Table) -> None:
    sites, name = model.sites, model.name
    model.check_gradients(all_floating=True)
    if torch.is_autocast_enabled(model.device.type):
        raise ValueError(f"rules need the precision of the weights of {name}: got autocast; try without it")
    if model.model.training:
        raise ValueError(f"{name} is in train mode: dropout would change the relevance; try model.eval() first")
    if any(getattr(module, "gradient_checkpointing", False) for module in model.model.modules()):
        raise ValueError(
            f"{name} has gradient checkpointing on, which recomputes layers without rules; "
            f"try model.gradient_checkpointing_disable() first"
        )
    outside = next((site.name for site in sites if site.outside), None)
    if "attention" in table and outside:
        raise ValueError(
            f"rules 'voita' need query, key and value of every head, and {outside} attends outside transformers' "
            f"interface, where they cannot be taken apart; use 'cp' or 'attn'"
        )
