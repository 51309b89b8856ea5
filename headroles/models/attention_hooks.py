"""The seam: a model's own eager attention, seen from outside through transformers' attention interface."""

from __future__ import annotations

import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import eager_mask

NAME, IN_PARTS = "headroles", "headroles-in-parts"
HEAD_MASKS = ("head_mask", "decoder_head_mask", "cross_attn_head_mask")


class Call(NamedTuple):
    """One attention call, or its part for some of the queries: tensors as the model's own eager function had them."""

    module: nn.Module
    query: Tensor  # [batch, heads, query, size]
    key: Tensor  # [batch, key-value heads, key, size]
    value: Tensor  # [batch, key-value heads, key, size]
    mask: Tensor | None  # additive, [batch, 1, query, key]
    out: Tensor  # [batch, query, heads, size]
    weights: Tensor  # [batch, heads, query, key]
    scaling: float  # of query times key
    first: int = 0  # the place of its first query


Handler = Callable[[Call], Tensor | None]
_handlers: WeakKeyDictionary[nn.Module, list[tuple[Handler, int | None]]] = WeakKeyDictionary()


@contextmanager
def attending(model: PreTrainedModel, handler: Handler, *, cells: int | None = None) -> Iterator[None]:
    """Within the block `model` attends by its own eager function and `handler` sees every call; masks are kept.

    With `cells` a call that has more weights than that is made in parts, one for some of the queries after the other,
    each with no more weights, or those of one query. Where a model cannot be divided so is told by `parts.divisible`.

    What `handler` returns, if anything, takes the place of `call.out`. Weights are dropped after `handler` returns, so
    `output_attentions` gives none. Blocks nest, those of other threads wait (`exclusive`); on leaving, also by an
    exception, the attention implementation of every (sub-)config is what it was. Other models are not touched.
    """
    with exclusive(model), _named(configs_of(model), NAME if cells is None else IN_PARTS):
        modules, own = list(model.modules()), (handler, cells)
        for module in modules:
            _handlers.setdefault(module, []).append(own)
        try:
            yield
        finally:
            for module in modules:
                _handlers[module].remove(own)
                if not _handlers[module]:
                    del _handlers[module]


_names: dict[int, tuple[Any, str | None, list[str]]] = {}  # id -> config, its own name, and those of open blocks
_naming = threading.Lock()


@contextmanager
def _named(configs: list[Any], name: str) -> Iterator[None]:
    """Within the block the attention of these configs is called so.

    Two models may have one config, and two threads one model each of them: the config has its own name again when the
    last block of either is left, in whatever order.
    """
    with _naming:
        for config in configs:
            *_, names = _names.setdefault(id(config), (config, config._attn_implementation, []))
            names.append(name)
            config._attn_implementation_internal = name
    try:
        yield
    finally:
        with _naming:
            for config in configs:
                _, before, names = _names[id(config)]
                names.remove(name)
                config._attn_implementation_internal = names[-1] if names else before
                if not names:
                    del _names[id(config)]


@contextmanager
def each_forward(
    model: PreTrainedModel, begin: Callable[[], None], end: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Within the block `begin` is called before every forward of `model`, `end` after it, also where it fails.

    A forward is the outermost call of the model, its body, encoder or decoder. One that was interrupted, which torch
    tells no hook of, is ended when the next begins, or with the block.
    """
    running: list[nn.Module] = []

    def before(module: nn.Module, _: Any) -> None:
        if module in running:  # was interrupted: no model calls itself
            running.clear()
            end()
        if not running:
            begin()
        running.append(module)

    def after(module: nn.Module, *_: Any) -> None:
        if module in running:
            del running[running.index(module) :]
            if not running:
                end()

    with ExitStack() as stack:
        stack.callback(lambda: end() if running else None)
        for module in entrances(model):
            stack.callback(module.register_forward_pre_hook(before, prepend=True).remove)
            stack.callback(module.register_forward_hook(after, always_call=True).remove)
        yield


def entrances(model: PreTrainedModel) -> list[nn.Module]:
    """The modules by which a model is called: itself, its body, and, by `generate`, its encoder and decoder."""
    found: list[Any] = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    found += [getattr(model, name)() for name in ("get_encoder", "get_decoder") if hasattr(model, name)]
    return [module for module in dict.fromkeys(found) if isinstance(module, nn.Module)]


def configs_of(model: nn.Module) -> list[Any]:
    """The configs of all modules of a model, each once."""
    found = [getattr(module, "config", None) for module in model.modules()]
    return list({id(one): one for one in found if isinstance(one, PreTrainedConfig)}.values())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within the block `model` is in eval mode; on leaving, each of its modules is in the mode it was in."""
    with exclusive(model):
        before = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            yield
        finally:
            for module, training in before:
                module.training = training


@contextmanager
def no_head_masks(model: PreTrainedModel) -> Iterator[None]:
    """Within the block a forward of `model` that is given a head mask raises TypeError: transformers 5 ignores them."""
    hook = model.register_forward_pre_hook(_refuse, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def eager(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """The eager attention function of the file that defines `module` (families differ: T5's bias, Gemma's softcap)."""
    for cls in type(module).__mro__:
        function = getattr(sys.modules[cls.__module__], "eager_attention_forward", None)
        if function is not None:
            return function  # type: ignore[no-any-return]
    raise ValueError(f"{type(module).__name__} has no eager attention function in {type(module).__module__}")


def arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """What a call of `module` passes, by name."""
    return inspect.signature(module.forward).bind(*args, **kwargs)


class _Mask:
    """A mask that is made for some queries at a time: whole, it grows with the square of the length."""

    def __init__(self, **told: Any) -> None:
        self.told = told

    def of(self, rows: slice) -> Tensor | None:
        """Of some queries: [batch, 1, query, key]."""
        part = {"q_length": rows.stop - rows.start, "q_offset": self.told["q_offset"] + rows.start}
        return eager_mask(**self.told | part)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | _Mask | None = None,  # by place or, in some families, by name
    **kwargs: Any,
) -> tuple[Tensor, None]:
    handlers = tuple(_handlers.get(module, ()))
    scaling = kwargs.get("scaling")
    scaling = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    parts = []
    for rows in _spans(query, key, [cells for _, cells in handlers if cells is not None]):
        asking, mask = query[:, :, rows], _rows_of(attention_mask, rows, query)
        out, weights = eager(module)(module, asking, key, value, mask, **kwargs)
        for handler, _ in handlers:
            instead = handler(Call(module, asking, key, value, mask, out, weights, scaling, rows.start))
            out = out if instead is None else instead
        parts.append(out)
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1), None


def _spans(query: Tensor, key: Tensor, cells: list[int]) -> list[slice]:
    """The queries of each part: all at once where no handler asks for parts."""
    length = query.shape[2]
    step = min([length, *(max(1, one // (query.shape[0] * query.shape[1] * key.shape[2])) for one in cells)])
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _rows_of(mask: Tensor | _Mask | None, rows: slice, query: Tensor) -> Tensor | None:
    """The mask of some queries."""
    if isinstance(mask, _Mask):
        made = mask.of(rows)
        return None if made is None else made.to(query.device)  # of several devices, that of this layer
    return mask if mask is None or mask.shape[-2] != query.shape[2] else mask[..., rows, :]


def _refuse(model: nn.Module, _: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = [name for name in HEAD_MASKS if kwargs.get(name) is not None]
    if given:
        raise TypeError(
            f"{type(model).__name__} was called with {', '.join(given)}: transformers 5 accepts head masks and ignores "
            f"them, so no head would be masked; use headroles.gated(model, gates) instead"
        )


AttentionInterface.register(NAME, _attend)
AttentionInterface.register(IN_PARTS, _attend)
AttentionMaskInterface.register(NAME, eager_mask)  # an attention name without a mask function gets no mask at all
AttentionMaskInterface.register(IN_PARTS, _Mask)


log = logging.getLogger(__name__)


class _Claim:
    """A thread's claim on modules, for as long as `blocks` of its blocks are open."""

    def __init__(self) -> None:
        self.thread, self.blocks = threading.get_ident(), 0
        self.modules: list[nn.Module] = []
        self.hooks: list[Any] = []


_changed = threading.Condition()
_claims: WeakKeyDictionary[nn.Module, _Claim] = WeakKeyDictionary()


@contextmanager
def exclusive(model: nn.Module) -> Iterator[None]:
    """Within the block other threads' blocks of `model`, or of a part of it, wait until this one ends.

    A forward of the model by another thread raises RuntimeError meanwhile: it would be changed, and be seen, by what is
    not meant for it. One that had begun before is not noticed. Blocks of one thread nest.
    """
    with _changed:
        claims = _claimed(model)
    try:
        yield
    finally:
        with _changed:
            for claim in claims:
                claim.blocks -= 1
                if not claim.blocks:
                    _release(claim)
            _changed.notify_all()


def _claimed(model: nn.Module) -> list[_Claim]:
    """The claims of this thread on all modules of a model, once no other thread has any."""
    mine = _claims.get(model)
    if mine is not None and mine.thread == threading.get_ident():  # which is on all its parts too
        mine.blocks += 1
        return [mine]
    modules = list(model.modules())
    if _others(modules):
        log.info("%s waits for another thread, whose block of this model is open", type(model).__name__)
        _changed.wait_for(lambda: not _others(modules))
    claims = list({id(claim): claim for module in modules if (claim := _claims.get(module))}.values())
    new = _Claim()
    new.modules = [module for module in modules if module not in _claims]
    for module in new.modules:
        _claims[module] = new
        if isinstance(module, PreTrainedModel) or module is model:
            new.hooks.append(module.register_forward_pre_hook(_refuse_thread))
    for claim in (*claims, new):
        claim.blocks += 1
    return [*claims, new]


def _others(modules: list[nn.Module]) -> bool:
    me = threading.get_ident()
    return any((claim := _claims.get(module)) is not None and claim.thread != me for module in modules)


def _release(claim: _Claim) -> None:
    for hook in claim.hooks:
        hook.remove()
    for module in claim.modules:
        del _claims[module]


def _refuse_thread(module: nn.Module, _: Any) -> None:
    claim = _claims.get(module)
    if claim is not None and claim.thread != threading.get_ident():
        raise RuntimeError(
            f"{type(module).__name__} was called by a thread while a block of another thread changes or watches it "
            f"(headroles.gated, score, ablate ...); call it in that thread, or after the block, or give each thread a "
            f"model of its own"
        )
