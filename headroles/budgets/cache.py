"""A cache of keys and values in which some key-value heads keep the whole text, and others its start and its end."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any
from weakref import WeakKeyDictionary

import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from headroles.budgets.attention import NAMES, Attention, first_tokens, masked, stream
from headroles.budgets.calibration import GROUP_LEVELS, global_sites, group_index
from headroles.models.attention_hooks import configs_of
from headroles.models.head_model import HeadModel
from headroles.models.sites import Site
from headroles.patterns import Streaming
from headroles.tables import frame

PLAIN = {ours: name for name, ours in NAMES.items()}
_accepted: WeakKeyDictionary[PreTrainedModel, set[str]] = WeakKeyDictionary()  # digests of weights of tables


class BudgetedCache(Cache):
    """A cache in which the groups of a budget keep all keys and values, and the others stream.

    transformers takes it as any cache: in a forward, and in `generate`, greedy, sampling and with beams.
    It gives the logits of the model with these groups masked, `hr.mask_heads(..., replacement=Streaming(sink,
    recent))`, to rounding: keys keep their positions. A cache is for this model, and for one text or batch of texts;
    `copy.deepcopy` makes another one, such as of a prefix. It cannot be shortened, as assisted generation does. Another
    model, and attention that is observed or replaced (`hr.capture_attention`), raise RuntimeError.

    Args:
        model: A transformers decoder, with eager or fused (sdpa) attention.
        table: A table of `hr.cache_budget` for this model.

    Raises:
        ValueError: If the model cannot have a budget, or the table is of another model.

    Example:
        >>> table = hr.cache_budget(model, tokenizer, hr.hidden_facts(tokenizer, 16))
        >>> model.generate(**inputs, cache=hr.BudgetedCache(model, table))  # past_key_values= before transformers 5.24
    """  # noqa: DOC502

    def __init__(self, model: PreTrainedModel, table: pd.DataFrame) -> None:
        handle = HeadModel(model)
        pattern, streaming = budget_of(table)
        sites = global_sites(handle, pattern)
        _check_table(handle, table, sites)
        name = handle.model.config._attn_implementation
        if PLAIN.get(name, getattr(name, "before", name)) not in NAMES:
            raise ValueError(
                f"a cache with a budget needs {' or '.join(NAMES)} attention, got {name!r}; try "
                f"model.set_attn_implementation('sdpa')"
            )
        configs = configs_of(handle.model.modules())
        layers: list[Any] = DynamicCache(config=handle.model.config).layers
        for site in sites:
            if groups := [group for group in range(len(site.groups)) if (*site.key, group) in streaming]:
                layers[handle.sites.index(site)] = _Layer(groups, len(site.groups), pattern, configs)
        super().__init__(layers=layers)

    def nbytes(self) -> int:
        """Return the bytes of the keys and values that are held now."""
        return nbytes(self)


def nbytes(cache: Cache) -> int:
    """Return the bytes of the keys and values that a cache holds now, in an encoder-decoder also of the source."""
    halves = {getattr(cache, f"{name}_attention_cache", cache) for name in ("self", "cross")}
    layers = [layer for half in halves for layer in half.layers]
    layers += [layer.streamed for layer in layers if isinstance(layer, _Layer)]
    tensors = (getattr(layer, name, None) for layer in layers for name in ("keys", "values"))
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


class _Keys(Tensor):
    """The keys of the groups that keep all, for attention that knows their layer; any other would take them for all."""

    layer: _Layer

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ARG003
        if func.__name__ == "__get__":  # shape, dtype, device
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs or {})
        for keys in tree_leaves((args, kwargs)):
            if isinstance(keys, cls):
                keys.layer.rename(PLAIN)
        raise RuntimeError(
            "the keys of a cache with a budget must be read by the model it was made for, with eager or sdpa "
            "attention, got another model or attention; try hr.BudgetedCache(model, table) of this model, outside "
            "blocks such as hr.capture_attention"
        )


# The groups of a layer attend in two calls, which the model's own attention functions cannot do. `update` runs just
# before a layer looks up its attention function: it puts another name into the model's configs, `attend` takes it out.
# Nothing is changed between forwards, and whatever else reads the keys raises an error.
class _Layer(DynamicLayer):
    """The cache of one layer: keys and values of the groups that keep all, and of the groups that stream."""

    is_croppable = False
    is_sliding = False

    def __init__(self, streaming: list[int], groups: int, pattern: Streaming, configs: list[PreTrainedConfig]) -> None:
        super().__init__()
        self.configs = configs  # of the model
        self.streaming, self.pattern = streaming, pattern
        self.unstreamed = [group for group in range(groups) if group not in streaming]
        self.length = 0  # tokens that were read
        self.streamed: Any = DynamicLayer()  # [batch, streaming groups, kept, size]
        self.places: Any = None  # of the kept tokens in the text: [batch, kept]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new tokens; return those of the groups that keep all, which name this layer."""
        new = torch.arange(self.length, self.length + key_states.shape[2], device=key_states.device)
        new = new.expand(len(key_states), -1)
        self.length += key_states.shape[2]
        self.streamed.update(key_states[:, self.streaming], value_states[:, self.streaming])
        self.places = new if self.places is None else torch.cat([self.places, new], 1)
        keys, values = super().update(key_states[:, self.unstreamed], value_states[:, self.unstreamed], *args, **kwargs)
        named: _Keys = keys.as_subclass(_Keys)
        named.layer = self
        self.rename(NAMES)
        return named, values

    def rename(self, names: Mapping[str, str]) -> None:
        """Replace the attention implementation of the model's configs."""
        for config in self.configs:
            name = config._attn_implementation
            config._attn_implementation_internal = names.get(name, name)

    def attend(
        self, attention: Attention, module: nn.Module, query: Tensor, mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        """Attend in two calls, for groups that keep all and groups that stream; then drop what no later query sees."""
        self.rename(PLAIN)
        first = first_tokens(mask, len(query), query.device)
        count = len(self.unstreamed) + len(self.streaming)
        groups = query.unflatten(1, (count, -1))  # [batch, group, head, query, size]
        shape = (len(query), query.shape[2], *groups.shape[1:3], self.streamed.values.shape[3])
        out = query.new_empty(shape)  # [batch, query, group, head, size]

        def put(chosen: list[int], keys: Tensor, values: Tensor, mask: Tensor | None) -> None:
            some = attention(module, groups[:, chosen].flatten(1, 2), keys, values, mask, **options)[0]
            out[:, :, chosen] = some.unflatten(2, (len(chosen), -1))

        if self.unstreamed and self.keys is not None and self.values is not None:
            put(self.unstreamed, self.keys, self.values, mask)
        put(self.streaming, self.streamed.keys, self.streamed.values, self._mask(mask, first, attention, query))
        self._drop(first)
        return out.flatten(2, 3), None

    def _mask(self, mask: Tensor | None, first: Tensor, attention: Attention, query: Tensor) -> Tensor:
        """Return the mask of the streaming groups over the kept keys: [batch, 1, query, kept]."""
        places = torch.arange(self.length - query.shape[2], self.length, device=query.device)
        seen = stream(places, self.places, first, self.pattern)
        if mask is not None:
            shape = (len(seen), -1, -1, -1)
            mask = mask.expand(*shape).gather(3, self.places[:, None, None].expand(-1, *mask.shape[1:3], -1))
        return masked(mask, seen, attention, query.dtype)

    def _drop(self, first: Tensor) -> None:
        """Drop what no later query sees: all but the first and the latest tokens of each text."""
        size = self.pattern.sink + self.pattern.recent - 1  # the latest one is still to come
        if self.places.shape[1] <= size:
            return
        since = self.places - first[:, None]
        needed = ((since >= 0) & (since < self.pattern.sink)) | (self.length - self.places < self.pattern.recent)
        order = needed.int().argsort(dim=1, descending=True, stable=True)[:, :size].sort(1).values  # [batch, kept]
        for name in ("keys", "values"):
            tensor = getattr(self.streamed, name)
            index = order[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3])
            setattr(self.streamed, name, tensor.gather(2, index))
        self.places = self.places.gather(1, order)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Layer:
        """Copy what is kept; the configs are those of the model."""
        for config in self.configs:
            memo.setdefault(id(config), config)
        copied: _Layer = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update({name: deepcopy(value, memo) for name, value in self.__dict__.items()})
        return copied

    def get_seq_length(self) -> int:
        """Return how many tokens were read."""
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the texts, as beam search does."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each text."""
        super().batch_repeat_interleave(repeats)
        self.streamed.batch_repeat_interleave(repeats)
        self.places = self.places.repeat_interleave(repeats, 0)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some of the texts, in this order."""
        indices = indices.to(self.places.device)
        super().batch_select_indices(indices)
        self.streamed.batch_select_indices(indices)
        self.places = self.places[indices]

    def crop(self, tokens_to_remove: int) -> None:
        """Raise ValueError: keys that a streaming group has dropped cannot be restored."""
        if tokens_to_remove:
            raise ValueError(f"a cache with a budget cannot be shortened, got crop({tokens_to_remove})")

    def reset(self) -> None:
        """Forget all tokens."""
        super().reset()
        self.streamed.reset()
        self.length, self.places = 0, None


def budget_of(table: pd.DataFrame) -> tuple[Streaming, set[tuple[str, int, int]]]:
    """Return the pattern of a budget and the groups that stream; ValueError for another table."""
    texts = table.attrs.get("signatures", {})
    fields = dict(frame.fields(texts.get("streaming", "")))
    if list(table.index.names) != GROUP_LEVELS or not {"sink", "recent"} <= fields.keys():
        raise ValueError(f"expected a table of hr.cache_budget, got {frame.described(table)}")
    streaming = {(kind, int(layer), int(group)) for kind, layer, group in table.index[table["streaming"] == 1]}
    return Streaming(int(fields["sink"]), int(fields["recent"])), streaming


def _check_table(handle: HeadModel, table: pd.DataFrame, sites: list[Site]) -> None:
    """Raise ValueError if a table is of another model; its weights are read once for each digest."""
    index = group_index(sites)
    if not table.index.equals(index):
        raise ValueError(f"the table must have the {len(index)} groups of {handle.name}, got {len(table)}")
    digest = dict(frame.fields(frame.provenance(table, "streaming"))).get("weights", "")
    accepted = _accepted.setdefault(handle.model, set())
    if digest not in accepted and digest != handle.weights:
        raise ValueError(f"the table must be of the weights {handle.weights} of {handle.name}, got {digest}")
    accepted.add(digest)
