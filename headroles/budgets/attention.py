"""Streaming attention by the model's own attention function: groups that see only the first and the latest tokens.

`headroles.patterns.Streaming` masks and renormalises the weights of eager attention, which is quadratic in memory. The
same numbers come from a softmax under one more mask, by transformers' fused attention: long texts fit, with gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from headroles._changes import Changes
from headroles.models.attention_hooks import configs_of, eager, restore_names, set_names
from headroles.models.sites import Site
from headroles.patterns import Streaming

Attention = Callable[..., tuple[Tensor, Tensor | None]]  # a function of transformers' attention interface
NAMES = {"eager": "headroles-budget-eager", "sdpa": "headroles-budget-sdpa"}  # implementation -> that with budgets


UnderMask = Callable[[Tensor], Tensor]  # the outputs of heads under another attention mask
_listeners: dict[nn.Module, Callable[[nn.Module, UnderMask, Tensor, Tensor | None, Attention], None]] = {}


def implementation(model: PreTrainedModel) -> str:
    """Return which attention a model has with budgets: fused if it has fused attention now, otherwise eager."""
    name = getattr(model.config._attn_implementation, "before", None) or model.config._attn_implementation
    return NAMES.get(name, NAMES["eager"])


def first_tokens(mask: Tensor | None, batch: int, device: torch.device) -> Tensor:
    """Return the place of the first token of each text that is not padding, by the mask of the last query: [batch]."""
    if mask is None:
        return torch.zeros(batch, dtype=torch.long, device=device)
    last = mask[:, 0, -1]  # [batch or 1, key]
    seen = last if last.dtype == torch.bool else last > torch.finfo(last.dtype).min / 2
    return seen.int().argmax(-1).expand(batch)


def stream(places: Tensor, keys: Tensor, first: Tensor, pattern: Streaming) -> Tensor:
    """Return which keys a streaming query sees, [batch, 1, query, key].

    Given are the places of queries, [query], of keys, [batch or 1, key], and of the first token of each text, [batch].
    """
    apart = places[:, None] - keys[:, None]  # [batch, query, key]
    recent = (apart >= 0) & (apart < pattern.recent)
    sink = (apart >= 0) & (keys[:, None] - first[:, None, None] < pattern.sink)
    return (recent | sink)[:, None]


def masked(mask: Tensor | None, kept: Tensor, attention: Attention, dtype: torch.dtype) -> Tensor:
    """Return a mask without the keys that are not kept, in the form that an attention function takes."""
    is_fused = attention is ALL_ATTENTION_FUNCTIONS["sdpa"]
    if mask is None:
        return kept if is_fused else torch.zeros((), dtype=dtype).where(kept, torch.finfo(dtype).min)
    return mask & kept if mask.dtype == torch.bool else mask.masked_fill(~kept, torch.finfo(mask.dtype).min)


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask in additive form, which fused attention would otherwise build in each layer."""
    return mask if mask.dtype != torch.bool else torch.zeros((), dtype=dtype).where(mask, -torch.inf)


def _attend(
    name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend as the model does; to the keys of a budgeted cache as its layer does."""
    attention: Attention = eager(module) if name == "eager" else ALL_ATTENTION_FUNCTIONS["sdpa"]
    if (layer := getattr(key, "layer", None)) is not None:  # the keys of a budgeted cache
        return layer.attend(attention, module, query, attention_mask, **options)  # type: ignore[no-any-return]
    if module in _listeners:

        def under_mask(mask: Tensor) -> Tensor:
            return attention(module, query, key, value, mask, **options)[0]

        _listeners[module](module, under_mask, query, attention_mask, attention)
    return attention(module, query, key, value, attention_mask, **options)


for _name, _ours in NAMES.items():
    AttentionInterface.register(_ours, partial(_attend, _name))
    AttentionMaskInterface.register(_ours, eager_mask if _name == "eager" else sdpa_mask)


def streams(changes: Changes, sites: list[Site], pattern: Streaming) -> Callable[[Site, Tensor], Tensor]:
    """Return a replacement for `mask_heads`: the outputs of heads that stream.

    The decoder reads whole texts within the block of `changes`, without a cache. Heads of other sites are replaced by
    themselves.
    """  # noqa: DOC201
    calls: dict[nn.Module, Callable[[], Tensor]] = {}
    last: list[Any] = []  # the model's mask, sizes and type, and the mask for them: layers share it and its memory

    def keep(module: nn.Module, run: UnderMask, query: Tensor, mask: Tensor | None, attention: Attention) -> None:
        form = (query.shape[2], query.device, query.dtype)
        if not last or last[0] is not mask or last[1] != form:
            places = torch.arange(query.shape[2], device=query.device)
            seen = stream(places, places[None], first_tokens(mask, len(query), query.device), pattern)
            last[:] = mask, form, _added(masked(mask, seen, attention, query.dtype), query.dtype)
        calls[module] = partial(run, last[2])

    def outputs(site: Site, z: Tensor) -> Tensor:
        if site.module not in calls:
            return z
        streamed = calls.pop(site.module)()  # [batch, query, heads of this process, size]
        return site.join(streamed, 2).reshape(z.shape)

    for site in sites:
        changes.undos.append(partial(_listeners.pop, site.module, None))
        _listeners[site.module] = keep
    configs = configs_of(changes.model.modules())
    changes.undos.append(partial(restore_names, configs, id(calls)))
    set_names(configs, id(calls), implementation(changes.model))
    return outputs
