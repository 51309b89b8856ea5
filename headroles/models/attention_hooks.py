"""Attention hooks: callbacks on a model's own eager attention, through transformers' attention interface."""

from __future__ import annotations

import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import eager_mask

NAME, IN_PARTS = "headroles", "headroles-in-parts"

log = logging.getLogger(__name__)


class Hook:
    """A hook that a copy of the model does not take along: `copy.deepcopy` inside a block gives an intact model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __deepcopy__(self, _: dict[int, Any]) -> Hook:
        return Hook(_nothing)

    def __reduce__(self) -> tuple[type[Hook], tuple[Callable[..., None]]]:
        return Hook, (_nothing,)


def _nothing(*_: object, **__: object) -> None:
    """Leave inputs and outputs as they are."""


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


_observers: list[_Observer] = []  # of all open blocks


@contextmanager
def attending(model: PreTrainedModel, handler: Handler, *, cells: int | None = None) -> Iterator[None]:
    """Call `handler` at every attention call, which is eager within the block.

    A tensor that `handler` returns replaces `Call.out`. A call of more than `cells` attention weights is split into
    parts of some queries each (at least one); the caller checks that the model allows this (`heads.divisible`).

    Blocks nest; those of other threads wait (`exclusive`). Leaving the block, also by an exception, restores the
    attention implementation of every config. Other models are not affected. Weights are dropped after the callback, so
    `output_attentions` returns none.
    """
    observer = _Observer(handler, cells, frozenset(model.modules()))
    with exclusive(model), _implementation(configs_of(model), NAME if cells is None else IN_PARTS):
        _observers.append(observer)
        try:
            yield
        finally:
            _observers[:] = [entry for entry in _observers if entry is not observer]


# id -> config, its own implementation, those of open blocks
_names: dict[int, tuple[PreTrainedConfig, str | None, list[str]]] = {}
_names_lock = threading.Lock()


@contextmanager
def _implementation(configs: list[PreTrainedConfig], name: str) -> Iterator[None]:
    """Set the attention implementation of configs within the block.

    Two models may share a config, and two threads may use one model each: the config gets its own implementation back
    when the last block is left, in whatever order.
    """
    with _names_lock:
        for config in configs:
            *_, names = _names.setdefault(id(config), (config, config._attn_implementation, []))
            names.append(name)
            config._attn_implementation_internal = Implementation(name, _names[id(config)][1])
    try:
        yield
    finally:
        with _names_lock:
            for config in configs:
                _, before, names = _names[id(config)]
                names.remove(name)
                config._attn_implementation_internal = Implementation(names[-1], before) if names else before
                if not names:
                    del _names[id(config)]


@contextmanager
def each_forward(
    model: PreTrainedModel, begin: Callable[[], None], end: Callable[[], None] = lambda: None
) -> Iterator[None]:
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

    with ExitStack() as stack:
        stack.callback(lambda: end() if running else None)
        for module in entrances(model):
            stack.callback(module.register_forward_pre_hook(Hook(before), prepend=True).remove)
            stack.callback(module.register_forward_hook(Hook(after), always_call=True).remove)
        yield


def entrances(model: PreTrainedModel) -> list[nn.Module]:
    """Return the modules by which a model is called: itself, its body, and, by `generate`, its encoder and decoder."""
    modules: list[nn.Module] = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    modules += [getattr(model, name)() for name in ("get_encoder", "get_decoder") if hasattr(model, name)]
    return [module for module in dict.fromkeys(modules) if isinstance(module, nn.Module)]


def configs_of(model: nn.Module) -> list[PreTrainedConfig]:
    """Return the configs of all modules of a model, without duplicates."""
    configs = [getattr(module, "config", None) for module in model.modules()]
    return list({id(config): config for config in configs if isinstance(config, PreTrainedConfig)}.values())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set `model` to eval mode within the block, and restore the mode of each module afterwards."""
    with exclusive(model):
        before = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            yield
        finally:
            for module, training in before:
                module.training = training


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
    observers = [entry for entry in _observers if module in entry.modules]
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


class _Claim:
    """The claim of a thread on modules, until all its blocks are left."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self.thread, self.blocks, self.modules = threading.get_ident(), 0, modules
        self.hooks: list[RemovableHandle] = []


_changed = threading.Condition()
_eager: list[Any] = []  # compiled modules run as they are written while any block is open
_claims: WeakKeyDictionary[nn.Module, _Claim] = WeakKeyDictionary()


@contextmanager
def exclusive(model: nn.Module) -> Iterator[None]:
    """Let other threads wait with `model`, or a part of it, until the block ends.

    A forward by another thread within the block raises RuntimeError, because the changes of this block would apply to
    it. One that had begun before is not noticed. Blocks of one thread on `model` nest.
    """
    with _changed:
        claims = _claim(model)
        if not _eager:
            _eager.append(torch.compiler.set_stance("force_eager"))
    try:
        yield
    finally:
        with _changed:
            for claim in claims:
                claim.blocks -= 1
                if not claim.blocks:
                    for hook in claim.hooks:
                        hook.remove()
                    for module in claim.modules:
                        del _claims[module]
            if not _claims:
                _eager.pop().__exit__(None, None, None)
            _changed.notify_all()


def _claim(model: nn.Module) -> list[_Claim]:
    """The claims of this thread on all modules of a model, once no other thread has any."""
    mine = _claims.get(model)
    if mine is not None and mine.thread == threading.get_ident():  # it claims all parts of the model, too
        mine.blocks += 1
        return [mine]
    modules = list(model.modules())
    if any(map(_is_foreign, modules)):
        log.info("%s waits for another thread, which masks or observes this model", type(model).__name__)
        _changed.wait_for(lambda: not any(map(_is_foreign, modules)))
    claims = list({id(claim): claim for module in modules if (claim := _claims.get(module))}.values())
    new = _Claim([module for module in modules if module not in _claims])
    for module in new.modules:
        _claims[module] = new
        if isinstance(module, PreTrainedModel) or module is model:
            new.hooks.append(module.register_forward_pre_hook(Hook(_refuse_thread)))
    for claim in (*claims, new):
        claim.blocks += 1
    return [*claims, new]


def _is_foreign(module: nn.Module) -> bool:
    """Whether another thread claims the module."""
    claim = _claims.get(module)
    return claim is not None and claim.thread != threading.get_ident()


def _refuse_thread(module: nn.Module, _: object) -> None:
    if _is_foreign(module):
        raise RuntimeError(
            f"{type(module).__name__} was called by one thread while another thread masks or observes it "
            f"(headroles.mask_heads, score, ablate ...); call it in that thread or afterwards, or give each thread a "
            f"model of its own"
        )


def without_cache(model: nn.Module) -> dict[str, bool]:
    """Return `use_cache=False` if the forward of `model` accepts it: FSMT's decoder is causal only then."""
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
