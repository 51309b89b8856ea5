"""Attention hooks: callbacks on a model's own eager attention, through transformers' attention interface."""

from __future__ import annotations

import inspect
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import eager_mask

from headroles._restoration import Changes, block, heal, lock, opened

NAME, IN_PARTS = "headroles", "headroles-in-parts"

log = logging.getLogger(__name__)


class Implementation(str):
    """The name of an attention implementation within a block; a copy of the config has the one from before."""

    __slots__ = ("before",)

    def __new__(cls, name: str, before: str | None) -> Self:
        """Return the name, with the implementation that a copy gets."""
        implementation = super().__new__(cls, name)
        implementation.before = before  # type: ignore[attr-defined]
        return implementation

    def __deepcopy__(self, _: dict[int, Any]) -> str | None:
        return self.before  # type: ignore[attr-defined,no-any-return]


class Call(NamedTuple):
    """One attention call, or its part for some of the queries: the tensors of the model's own eager function."""

    module: nn.Module
    query: Tensor  # [batch, heads, query, size]
    key: Tensor  # [batch, key-value heads, key, size]
    value: Tensor  # [batch, key-value heads, key, size]
    mask: Tensor | None  # additive, [batch, 1, query, key]
    out: Tensor  # [batch, query, heads, size]
    weights: Tensor  # [batch, heads, query, key]
    scaling: float  # of query times key
    first: int = 0  # the position of its first query
    options: Mapping[str, object] = {}  # further arguments of the eager function


Handler = Callable[[Call], Tensor | None]


class _Observer(NamedTuple):
    """The handler of an open block, for the attention calls of some modules."""

    handler: Handler
    cells: int | None
    modules: frozenset[nn.Module]


_observers: dict[int, _Observer] = {}  # of all open blocks


@block
def attending(changes: Changes, model: PreTrainedModel, handler: Handler, *, cells: int | None = None) -> None:
    """Call `handler` at every attention call, which is eager within the block.

    A tensor that `handler` returns replaces `Call.out`. A call of more than `cells` attention weights is split into
    parts of some queries each (at least one); the caller checks that the model allows this (`heads.divisible`).

    Blocks nest; those of other threads wait (`exclusive`). Leaving the block, also by an exception, restores the
    attention implementation of every config. Other models are not affected. Weights are dropped after the callback, so
    `output_attentions` returns none.
    """
    observer = _Observer(handler, cells, frozenset(model.modules()))
    changes.enter(exclusive(model))
    changes.add(partial(_observers.pop, id(observer), None))
    _observers[id(observer)] = observer
    configs = configs_of(model.modules())
    changes.add(partial(restore_names, configs, id(observer)))
    set_names(configs, id(observer), NAME if observer.cells is None else IN_PARTS)


# id -> config, its own implementation, those of open blocks
_names: dict[int, tuple[PreTrainedConfig, str | None, dict[int, str]]] = {}


def set_names(configs: list[PreTrainedConfig], key: int, name: str) -> None:
    """Set the attention implementation of configs until `restore_names` is called with the same key.

    Two models may share a config, and two threads may use one model each: the config gets its own implementation back
    when the last block is left, in whatever order.
    """
    with lock:
        for config in configs:
            _, before, names = _names.setdefault(id(config), (config, config._attn_implementation, {}))
            names[key] = name
            config._attn_implementation_internal = Implementation(name, before)


def restore_names(configs: list[PreTrainedConfig], key: int) -> None:
    """Give configs the implementation from before `set_names` with this key, or of another one since."""
    with lock:
        for config in (config for config in configs if id(config) in _names):
            _, before, names = _names[id(config)]
            names.pop(key, None)
            last = Implementation([*names.values()][-1], before) if names else before
            config._attn_implementation_internal = last
            if not names:
                del _names[id(config)]


@block
def each_forward(
    changes: Changes, model: PreTrainedModel, begin: Callable[[], None], end: Callable[[], None] = lambda: None
) -> None:
    """Call `begin` before and `end` after every forward within the block, also after one that fails.

    A forward is the outermost call of the model, its body, encoder or decoder. torch calls no hook after an interrupted
    forward: it ends when the next one begins, or with the block.
    """
    running: list[nn.Module] = []

    def before(module: nn.Module, _: object) -> None:
        if module in running:  # was interrupted: no model calls itself
            running.clear()
            end()
        if not running:
            begin()
        running.append(module)

    def after(module: nn.Module, *_: object) -> None:
        if module in running:
            del running[running.index(module) :]
            if not running:
                end()

    def stop() -> None:
        if running:
            end()
            running.clear()

    changes.add(stop, in_thread=True)
    for module in entrances(model):
        changes.hook(module, before, prepend=True)
        changes.hook(module, after, after=True, always_call=True)


def entrances(model: PreTrainedModel) -> list[nn.Module]:
    """Return the modules by which a model is called: itself, its body, and, by `generate`, its encoder and decoder."""
    modules: list[nn.Module] = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    modules += [getattr(model, name)() for name in ("get_encoder", "get_decoder") if hasattr(model, name)]
    return [module for module in dict.fromkeys(modules) if isinstance(module, nn.Module)]


def configs_of(modules: nn.Module | Iterable[nn.Module]) -> list[PreTrainedConfig]:
    """Return the configs of all modules of a model, or of some modules, without duplicates."""
    listed = modules.modules() if isinstance(modules, nn.Module) else modules
    configs = [getattr(module, "config", None) for module in listed]
    return list({id(config): config for config in configs if isinstance(config, PreTrainedConfig)}.values())


@block
def evaluating(changes: Changes, model: nn.Module) -> Changes:
    """Set `model` to eval mode within the block, and restore the mode of each module afterwards."""
    changes.enter(exclusive(model))
    before = [(module, module.training) for module in model.modules()]

    def undo() -> None:
        for module, training in before:
            module.training = training

    changes.add(undo)
    model.eval()
    return changes


def eager(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the eager attention function of the file that defines `module` (T5's has a bias, Gemma's a softcap)."""
    for cls in type(module).__mro__:
        function = getattr(sys.modules[cls.__module__], "eager_attention_forward", None)
        if function is not None:
            return function  # type: ignore[no-any-return]
    raise ValueError(f"{type(module).__name__} has no eager attention function in {type(module).__module__}")


def arguments(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> inspect.BoundArguments:
    """Return the arguments of a call of `module` by name."""
    return inspect.signature(module.forward).bind(*args, **kwargs)


class _Mask:
    """An attention mask that is built for some queries at a time: the whole is quadratic in the length."""

    def __init__(self, **options: Any) -> None:
        self.options = options


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | _Mask | None = None,  # by place or, in some families, by name
    **kwargs: Any,
) -> tuple[Tensor, None]:
    observers = [entry for entry in list(_observers.values()) if module in entry.modules]
    scaling = kwargs.get("scaling")
    scaling = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    parts = []
    for rows in _spans(query, key, [entry.cells for entry in observers if entry.cells is not None]):
        queries, mask = query[:, :, rows], _rows_of(attention_mask, rows, query)
        out, weights = eager(module)(module, queries, key, value, mask, **kwargs)
        for entry in observers:
            replaced = entry.handler(Call(module, queries, key, value, mask, out, weights, scaling, rows.start, kwargs))
            out = out if replaced is None else replaced
        parts.append(out)
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1), None


def _spans(query: Tensor, key: Tensor, cells: list[int]) -> list[slice]:
    """The queries of each part; one span if no handler limits the cells."""
    length = query.shape[2]
    step = min([length, *(max(1, limit // (query.shape[0] * query.shape[1] * key.shape[2])) for limit in cells)])
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _rows_of(mask: Tensor | _Mask | None, rows: slice, query: Tensor) -> Tensor | None:
    """The mask of some queries: [batch, 1, query, key]."""
    if isinstance(mask, _Mask):
        part = {"q_length": rows.stop - rows.start, "q_offset": mask.options["q_offset"] + rows.start}
        values: Tensor | None = eager_mask(**mask.options | part)
        return None if values is None else values.to(query.device)  # of several devices, that of this layer
    return mask if mask is None or mask.shape[-2] != query.shape[2] else mask[..., rows, :]


AttentionInterface.register(NAME, _attend)
AttentionInterface.register(IN_PARTS, _attend)
AttentionMaskInterface.register(NAME, eager_mask)  # an attention name without a mask function gets no mask at all
AttentionMaskInterface.register(IN_PARTS, _Mask)


PAUSE = 0.002  # seconds between two checks of a thread that waits
_stance: list[Any] = []  # of the compiler, before the first block: compiled modules run as written while one is open


@block
def exclusive(changes: Changes, model: nn.Module) -> Changes:
    """Let other threads wait with `model`, or a part of it, until the block ends.

    A forward by another thread within the block raises RuntimeError, because the changes of this block would apply to
    it. One that had begun before is not noticed. Blocks of one thread on `model` nest.

    Returns:
        The changes of the block, for further ones.
    """
    if model in changes.modules:
        return changes
    mine = [other.modules for other in opened() if other.is_mine() and model in other.modules]
    modules = mine[0] if mine else frozenset(model.modules())
    if not _claim(changes, modules):
        log.info("%s waits for another thread, which masks or observes this model", type(model).__name__)
        while not _claim(changes, modules):
            time.sleep(PAUSE)
    grad = torch.is_grad_enabled()
    changes.add(lambda: torch.set_grad_enabled(grad) if changes.interrupted else None, in_thread=True)
    changes.add(partial(_compile_again, changes))
    _run_as_written()
    for module in (model,) if mine else modules:  # a block around this one has hooks on the parts
        if isinstance(module, PreTrainedModel) or module is model:
            changes.hook(module, _refuse_thread)
    return changes


def _claim(changes: Changes, modules: frozenset[nn.Module]) -> bool:
    """Claim modules unless another thread has claimed some of them; return whether they are claimed."""
    heal()
    with lock:
        if any(not other.is_mine() and not modules.isdisjoint(other.modules) for other in opened()):
            return False
        changes.modules |= modules
        return True


def _run_as_written() -> None:
    from torch._dynamo import eval_frame

    with lock:
        if not _stance:
            _stance.append(eval_frame._stance)
            torch.compiler.set_stance("force_eager")


def _compile_again(changes: Changes) -> None:
    with lock:
        if _stance and not any(other.modules for other in opened() if other is not changes):
            before = _stance[0]
            torch.compiler.set_stance(before.stance, force_backend=before.backend)
            _stance.clear()


def _refuse_thread(module: nn.Module, _: object) -> None:
    if any(not other.is_mine() and module in other.modules for other in opened()):
        raise RuntimeError(
            f"{type(module).__name__} was called by one thread while another thread masks or observes it "
            f"(headroles.mask_heads, score, ablate ...); call it in that thread or afterwards, or give each thread a "
            f"model of its own"
        )


def restore(model: PreTrainedModel) -> PreTrainedModel:
    """Undo every temporary change that headroles has made to a model.

    Blocks (`hr.mask_heads`, `hr.capture_attention`, `hr.lrp_rules` ...) and functions undo their changes when they end,
    also by an error or an interrupt. Call this where one may have been prevented from it, as by two interrupts in a
    row, or where a block is still open that nobody will leave. Blocks of this thread on the model that are open end
    here, too; those of other running threads stay.

    Args:
        model: A transformers model.

    Returns:
        The model, as it was before: without hooks of headroles, with its attention implementation, training mode and
        parameters that take gradients.

    Example:
        >>> logits = hr.restore(model)(**inputs).logits
    """
    heal()
    modules = set(getattr(model, "_orig_mod", model).modules())
    for changes in reversed(opened()):
        if not modules.isdisjoint(changes.modules) and (changes.is_mine() or not changes.thread.is_alive()):
            changes.undo(interrupted=True)
    return model


def without_cache(model: nn.Module) -> dict[str, bool]:
    """Return `use_cache=False` if the forward of `model` accepts it: FSMT's decoder is causal only then."""
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
