"""Attention hooks: callbacks on a model's own eager attention, through transformers' attention interface."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import eager_mask

from headroles._changes import Changes
from headroles.models.sites import Site

NAME, IN_PARTS = "headroles", "headroles-in-parts"
SMALL = 2**12  # numbers in a buffer, such as the factors of rotary positions
HEAD_MASKS = ("head_mask", "decoder_head_mask", "cross_attn_head_mask")
PartCallback = Callable[[Site, Tensor, int, Tensor | None], None]


class Implementation(str):
    """The name of an attention implementation within a block; a copy of the config gets the name from before."""

    before: str | None = None

    def __deepcopy__(self, _: dict[int, Any]) -> str | None:
        return self.before


class AttentionCall(NamedTuple):
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


Handler = Callable[[AttentionCall], Tensor | None]


class _OpenBlock(NamedTuple):
    """The handler of an open block, for the attention calls of some modules."""

    handler: Handler
    cells: int | None
    modules: frozenset[nn.Module]


_open_blocks: dict[int, _OpenBlock] = {}


def attending(model: PreTrainedModel, handler: Handler) -> Changes:
    """Call `handler` at every attention call within the block (`observe_attention`)."""
    return Changes(model, lambda changes: observe_attention(changes, handler))


def observe_attention(changes: Changes, handler: Handler, *, cells: int | None = None) -> None:
    """Call `handler` at every attention call of the changed model, which then attends by its own eager function.

    A tensor that `handler` returns replaces the outputs of the call. A call of more than `cells` attention weights is
    split into parts of some queries, if the caller knows that the model allows it. `output_attentions` returns no
    weights. Other models are not affected.
    """
    block = _OpenBlock(handler, cells, frozenset(changes.model.modules()))
    changes.undos.append(partial(_open_blocks.pop, id(block), None))
    _open_blocks[id(block)] = block
    configs = configs_of(changes.model.modules())
    changes.undos.append(partial(restore_names, configs, id(block)))
    set_names(configs, id(block), NAME if cells is None else IN_PARTS)


# id -> config, its own implementation, implementations of open blocks
_names: dict[int, tuple[PreTrainedConfig, str | None, dict[int, Implementation]]] = {}


def set_names(configs: list[PreTrainedConfig], key: int, name: str) -> None:
    """Set the attention implementation of configs until `restore_names` is called with the same key.

    Models may share a config: it gets its own implementation back when the last block is left, in whatever order.
    """
    for config in configs:
        _, before, names = _names.setdefault(id(config), (config, config._attn_implementation, {}))
        names[key] = Implementation(name)
        names[key].before = before
        config._attn_implementation_internal = names[key]


def restore_names(configs: list[PreTrainedConfig], key: int) -> None:
    """Undo `set_names` with this key: configs get the implementation of the latest other call, or the original one."""
    for config in (config for config in configs if id(config) in _names):
        _, before, names = _names[id(config)]
        names.pop(key, None)
        config._attn_implementation_internal = [before, *names.values()][-1]
        if not names:
            del _names[id(config)]


def capture(changes: Changes, sites: list[Site], callback: PartCallback, cells: int | None = None) -> None:
    """Call `callback(site, weights, first, mask)` at every attention of known sites, of at most `cells` weights each.

    `mask` is the model's additive mask, [batch, heads or 1, query, key]; None without one, or where it is unknown.
    """
    by_module: dict[nn.Module, list[Site]] = {}
    for site in sorted(sites, key=lambda site: site.call_index):
        by_module.setdefault(site.module, []).append(site)
    counter = CallCounter(changes, by_module)

    def pass_on(module: nn.Module, weights: Tensor, first: int = 0, mask: Tensor | None = None) -> None:
        if module in by_module:
            site = counter.site(module, first)
            callback(site, site.join(weights), first, site.join_mask(mask))

    no_head_masks(changes)
    observe_attention(changes, lambda call: pass_on(call.module, call.weights, call.first, call.mask), cells=cells)
    for module in [module for module, shared in by_module.items() if shared[0].outside]:
        ask_for_weights(changes, module, pass_on)


class CallCounter:
    """Assigns calls to sites: the n-th call of a module in a forward is its n-th site (ALBERT's layers are one)."""

    def __init__(self, changes: Changes, sites: Mapping[nn.Module, list[Site]]) -> None:
        self.sites, self.calls = sites, Counter[nn.Module]()  # calls in this forward
        if any(len(shared) > 1 for shared in sites.values()):
            each_forward(changes, self.calls.clear)

    def site(self, module: nn.Module, first: int = 0) -> Site:
        """Return the site of this call of a module; parts with `first` > 0 continue a call."""
        self.calls[module] += first == 0
        return self.sites[module][(self.calls[module] - 1) % len(self.sites[module])]


def no_head_masks(changes: Changes) -> None:
    """Raise TypeError if the changed model is called with a head mask: transformers 5 ignores them."""

    def refuse(model: nn.Module, _: object, kwargs: dict[str, object]) -> None:
        if names := [name for name in HEAD_MASKS if kwargs.get(name) is not None]:
            raise TypeError(
                f"{type(model).__name__} was called with {', '.join(names)}: transformers 5 accepts head masks and "
                f"ignores them, so no head would be masked; use headroles.mask_heads(model, gates) instead"
            )

    changes.hook(changes.model, refuse, with_kwargs=True)


def ask_for_weights(changes: Changes, module: nn.Module, handler: Callable[[nn.Module, Tensor], None]) -> None:
    """Let an attention module outside the interface pass its weights to `handler` only."""
    first: list[bool] = []  # blocks nest: the outermost requests the weights first and removes them last

    def request(
        module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        bound = arguments(module, args, kwargs)
        first.append(not bound.arguments.get("output_attentions"))
        bound.arguments["output_attentions"] = True
        return bound.args, bound.kwargs

    def take(module: nn.Module, _: object, output: tuple[Any, ...]) -> tuple[Any, ...] | None:
        handler(module, output[1])
        return type(output)([output[0], None, *output[2:]]) if first.pop() else None

    changes.hook(module, request, with_kwargs=True)
    changes.hook(module, take, after=True, prepend=True)


def each_forward(changes: Changes, begin: Callable[[], None], end: Callable[[], None] = lambda: None) -> None:
    """Call `begin` before and `end` after every forward of the changed model, also after one that fails.

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

    changes.undos.append(stop)
    model = changes.model  # is called by itself, its body, and, by `generate`, its encoder and decoder
    modules: list[nn.Module] = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    modules += [getattr(model, name)() for name in ("get_encoder", "get_decoder") if hasattr(model, name)]
    for module in (module for module in dict.fromkeys(modules) if isinstance(module, nn.Module)):
        changes.hook(module, before, prepend=True)
        changes.hook(module, after, after=True, always_call=True)


def configs_of(modules: nn.Module | Iterable[nn.Module]) -> list[PreTrainedConfig]:
    """Return the configs of all modules of a model, or of some modules, without duplicates."""
    listed = modules.modules() if isinstance(modules, nn.Module) else modules
    configs = [getattr(module, "config", None) for module in listed]
    return list({id(config): config for config in configs if isinstance(config, PreTrainedConfig)}.values())


def evaluating(model: PreTrainedModel) -> Changes:
    """Set `model` to eval mode within the block, and restore the mode of each module afterwards."""
    return Changes(model, set_eval)


# A forward may change its model: BigBird replaces its attention modules at the first short text, rotary positions keep
# the factors of the longest text, or write those of the last text into their buffer. So the attributes, submodules and
# buffers of every module are put back, and what was in small buffers that no checkpoint has.
def set_eval(changes: Changes) -> None:
    """Set the changed model to eval mode; at the end of the block its modules are as they were before."""
    written = [
        (buffer, buffer.clone())
        for module in changes.model.modules()
        for buffer in map(module._buffers.get, module._non_persistent_buffers_set)
        if buffer is not None and not buffer.is_meta and buffer.numel() <= SMALL
    ]
    before = [
        (module, {**vars(module)}, [(part, {**part}) for part in (module._modules, module._buffers)])
        for module in changes.model.modules()
    ]

    def undo() -> None:
        for module, attributes, parts in before:
            now = vars(module)
            for name in [name for name in now if name not in attributes]:
                del now[name]
            now.update(attributes)
            for part, content in parts:
                if [*map(id, part.values())] != [*map(id, content.values())]:
                    part.clear()
                    part.update(content)  # type: ignore[arg-type]
        for buffer, values in written:
            if not torch.equal(buffer, values):
                buffer.copy_(values)

    changes.undos.append(undo)
    changes.model.eval()


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
    """An attention mask built for some queries at a time: the full mask is quadratic in the length."""

    def __init__(self, **options: Any) -> None:
        self.options, self.ends = options, dict[tuple[int, int], int]()

    def end(self, rows: slice, mask: Tensor) -> int:
        """Return the number of keys up to the last that any of these queries sees, the same in all layers."""
        key = rows.start, rows.stop
        if key not in self.ends:
            seen = (mask > torch.finfo(mask.dtype).min).flatten(0, -2).any(0).nonzero()
            self.ends[key] = int(seen[-1]) + 1 if len(seen) else mask.shape[-1]
        return self.ends[key]


# Every config has this function as its attention within a block, also for modules that no block observes, since models
# may share a config. It calls the eager function of the file of the model; handlers see its weights. For long texts it
# does so for some queries at a time: the smallest number of cells that an open block allows gives the size of a part,
# so that memory is linear in the length. A softmax is over keys, so parts of queries are independent of each other. Of
# keys after the last that a part sees, by a causal mask half of all, the weight is 0 without a product.
def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | _Mask | None = None,  # by place or, in some families, by name
    **kwargs: Any,
) -> tuple[Tensor, None]:
    blocks = [block for block in list(_open_blocks.values()) if module in block.modules]
    scaling = kwargs.get("scaling")
    scaling = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    parts = []
    for rows in _spans(query, key, [block.cells for block in blocks if block.cells is not None]):
        queries, mask = query[:, :, rows], _rows_of(attention_mask, rows, query)
        end = attention_mask.end(rows, mask) if isinstance(attention_mask, _Mask) and mask is not None else None
        read = None if mask is None else mask[..., :end]
        out, weights = eager(module)(module, queries, key[:, :, :end], value[:, :, :end], read, **kwargs)
        if end is not None and end < key.shape[2]:
            weights = F.pad(weights, (0, key.shape[2] - end))
        for block in blocks:
            call = AttentionCall(module, queries, key, value, mask, out, weights, scaling, rows.start, kwargs)
            replaced = block.handler(call)
            out = out if replaced is None else replaced
        parts.append(out)
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1), None


def _spans(query: Tensor, key: Tensor, cells: list[int]) -> list[slice]:
    """Return the queries of each part: as many as the limits of cells allow, at least one; all without a limit."""
    length = query.shape[2]
    step = min([length, *(max(1, limit // (query.shape[0] * query.shape[1] * key.shape[2])) for limit in cells)])
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _rows_of(mask: Tensor | _Mask | None, rows: slice, query: Tensor) -> Tensor | None:
    """Return the mask of some queries: [batch, 1, query, key]."""
    if isinstance(mask, _Mask):
        part = {"q_length": rows.stop - rows.start, "q_offset": mask.options["q_offset"] + rows.start}
        values: Tensor | None = eager_mask(**mask.options | part)
        return None if values is None else values.to(query.device)  # where this layer is
    return mask if mask is None or mask.shape[-2] != query.shape[2] else mask[..., rows, :]


AttentionInterface.register(NAME, _attend)
AttentionInterface.register(IN_PARTS, _attend)
AttentionMaskInterface.register(NAME, eager_mask)  # an attention name without a mask function gets no mask at all
AttentionMaskInterface.register(IN_PARTS, _Mask)


def without_cache(model: nn.Module) -> dict[str, bool]:
    """Return `use_cache=False` if the forward of `model` accepts it: FSMT's decoder is causal only then."""
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
