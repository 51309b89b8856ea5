"""Context in which a model's backward pass follows LRP rules, and the tables of rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from headroles._changes import Changes
from headroles.models import attention_hooks
from headroles.models.head_model import HeadModel, Model
from headroles.scores.lrp import rules as lrp
from headroles.scores.lrp.alphabeta import alphabeta
from headroles.scores.lrp.rules import Operation, Rule, plain
from headroles.tables.arguments import one_of

Rules = Literal["cp", "cp-gate", "attn", "voita", "gradient"]
RULES: tuple[Rules, ...] = get_args(Rules)
Table = Mapping[Operation, Rule]

_NAMES = ("gelu", "silu", "swish", "relu", "mish", "tanh")  # in class names of activations by other authors
_NOT_ELEMENTWISE = ("Softmax", "LogSoftmax", "Softmin", "Softmax2d", "MultiheadAttention", "GLU", "Sigmoid", "Softplus")

_modes: list[_Mode] = []  # of all open blocks


def lrp_rules(model: Model, rules: Rules = "cp") -> Changes:
    """Propagate relevance instead of gradients through a model.

    Within the block, the gradient with respect to a mask of ones is the relevance of its head. Forward values are those
    of eager attention, and parameters take no gradient. Other models are not affected.

    Args:
        model: the model, in eval mode.
        rules: name of the rule set (`headroles.scores.lrp.context.table`).

    Returns:
        A context manager; on entry it raises ValueError for a model in train mode or with quantised weights, and for
        attention that the rules cannot decompose.

    Example:
        >>> mask = torch.ones(batch, heads, requires_grad=True)
        >>> with hr.lrp_rules(model, "cp"), hr.mask_heads(model, mask):
        ...     target = model(**inputs).logits[:, -1].amax(-1)
        >>> (relevance,) = torch.autograd.grad(target.sum(), mask)  # [batch, heads]
    """
    handle = HeadModel.of(model, allow_sharded=rules == "gradient")
    return applied(handle, table(rules))


def applied(model: HeadModel, rules: Table) -> Changes:
    """Apply a table of rules to `model` within the block."""
    return Changes(model.model, lambda changes: _apply(changes, model, rules))


def _apply(changes: Changes, model: HeadModel, rules: Table) -> None:
    _check(model, rules)
    for parameter in [p for p in model.model.parameters() if p.requires_grad]:
        changes.undos.append(partial(parameter.requires_grad_, True))
        parameter.requires_grad_(False)
    if not rules:
        return
    # without a rule for attention, the rules of softmax and products apply inside the model's eager attention
    attention_hooks.observe_attention(changes, rules.get("attention", lambda _: None))
    if (rule := rules.get("activation")) is not None:
        for module in filter(is_activation, model.model.modules()):
            changes.hook(module, partial(_activated, rule), after=True)
    mode = _Mode(rules, model.model)
    changes.undos.append(mode.end)
    _modes.append(mode)
    attention_hooks.each_forward(changes, mode.on, mode.off)


def inside(model: HeadModel) -> Changes:
    """Apply the model's rules to operations on its output within the block."""

    def begin(changes: Changes) -> None:
        for mode in [mode for mode in _modes if mode.model is model.model][-1:]:
            changes.undos.append(mode.off)
            mode.on()

    return Changes(model.model, begin)


class _Mode(TorchFunctionMode):
    """Torch function mode that replaces every function with a rule, while the model runs."""

    def __init__(self, rules: Table, model: nn.Module | None = None) -> None:
        super().__init__()
        self.rules, self.model, self.has_ended = rules, model, False

    def on(self) -> None:
        """Enter the mode before a forward pass."""
        self.off()  # an interrupt may have left it on
        self.__enter__()

    def off(self) -> None:
        """Exit the mode after a forward pass."""
        above: list[TorchFunctionMode] = []  # modes entered later
        while self in _get_current_function_mode_stack():
            above.append(_pop_mode())
        for mode in reversed([mode for mode in above if mode is not self]):
            _push_mode(mode)

    def end(self) -> None:
        """Exit the mode for good, and clear its rules in case torch brings it back after an interrupt."""
        self.rules, self.has_ended = {}, True
        self.off()
        _modes[:] = [mode for mode in _modes if mode is not self]

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        return self.rules.get(func, plain)(func, *args, **(kwargs or {}))


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


def _check(model: HeadModel, rules: Table) -> None:
    sites, name = model.sites, model.name
    model.check_gradients(all_floating=True)
    if torch.is_autocast_enabled(model.device.type):
        raise ValueError(f"rules must run in the precision of the weights of {name}, got autocast")
    if model.model.training:
        raise ValueError(f"rules need {name} in eval mode, got train mode; try model.eval() first")
    outside = next((site.name for site in sites if site.outside), None)
    if "attention" in rules and outside:
        raise ValueError(
            f"rules 'voita' need query, key and value of every head, got {outside}, which attends outside "
            f"transformers' interface; try 'cp' or 'attn'"
        )


def table(rules: Rules) -> Table:
    """Return the table of a rule set.

    Args:
        rules: name of the rule set.

            - "cp": LRP-0 with constant attention weights; conservative (Voita et al. 2019, read as a weighted sum of
              values; Ali et al. 2022).
            - "cp-gate": "cp" with the gates of gated units constant too.
            - "attn": AttnLRP, relevance through the softmax (Achtibat et al. 2024).
            - "voita": alpha = beta = 0.5, the rule of Voita's released code, factored.
            - "gradient": no rules.

    Returns:
        Rules by operation.
    """
    # Operations without a rule keep their gradient. All rule sets share `_common`: norms have a constant deviation,
    # factors of a product take half each, activations pass all of it. They differ in attention: "cp" takes its weights
    # for constants, "attn" leaves the softmax its gradient, and "voita" shares relevance by alpha-beta among the inputs
    # of linear maps, of sums, and of attention as a whole.
    one_of("rules", rules, RULES)
    if rules == "gradient":
        return {}
    if rules == "voita":
        return _common() | alphabeta()
    composite = _common()
    if rules != "attn":
        composite |= dict.fromkeys(lrp.SOFTMAX, lrp.constant)
    if rules == "cp-gate":
        composite |= dict.fromkeys(lrp.MULTIPLY, lrp.signal)
    return composite


def start(values: Tensor, rules: Rules) -> Tensor:
    """Return the first cotangent: 1, so that the target's relevance is its value; voita's relevance starts at 1."""
    if rules != "voita":
        return torch.ones_like(values)
    return 1 / torch.where(values == 0, 1.0, values)


def check_reached(explained: Tensor) -> None:
    """Raise ValueError if the target has no gradient."""
    if not explained.requires_grad:
        raise ValueError("no gradient reaches the heads: the target depends on none of them; try another objective")


def _common() -> dict[Operation, Rule]:
    """Return the rules that all rule sets but "gradient" share."""
    return {
        **dict.fromkeys((*lrp.MULTIPLY, *lrp.MATMUL), lrp.halves),
        torch.einsum: lrp.shares,
        **dict.fromkeys((torch.baddbmm, Tensor.baddbmm), lrp.summands),
        **dict.fromkeys(lrp.DIVIDE, lrp.numerator),
        torch.linalg.solve_triangular: lrp.solved,
        **dict.fromkeys(lrp.NORM, lrp.norm),
        **dict.fromkeys(lrp.GROUP_NORM, lrp.group_norm),
        **dict.fromkeys((*lrp.ROOT, *lrp.RECIPROCAL, *lrp.GATE), lrp.constant),
        **dict.fromkeys(lrp.POWER, lrp.power),
        **dict.fromkeys((*lrp.ACTIVATION, *lrp.RMS_NORM), lrp.whole),
        **dict.fromkeys(lrp.FUSED, lrp.fused),
        F.glu: lrp.gated_unit,
        "activation": lrp.whole,
    }
