"""Watching: every attention weight of a forward, one layer or one part of it at a time, none kept."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles.models import attention_hooks, heads
from headroles.models.attention_hooks import exclusive
from headroles.models.dummy_inputs import examples, without_cache
from headroles.models.sites import Site
from headroles.tables.frame import Kind

log = logging.getLogger(__name__)

AttentionCallback = Callable[[Site, Tensor], None]
PartCallback = Callable[[Site, Tensor, int], None]
CELLS = 2**25  # weights of a part: 128 MiB in float32


@contextmanager
def capture_attention(model: PreTrainedModel, look: AttentionCallback) -> Iterator[None]:
    """Within the block `look(site, weights)` is called at every attention of `model`.

    The weights, [batch, heads, query, key], are those of the model's own eager attention and are dropped when `look`
    returns: no more than one layer's are in memory. Rows of padded queries are there too. Measure in eval mode:
    dropout acts on the weights.
    """
    with _watched(model, lambda site, weights, _: look(site, weights), None):
        yield


@contextmanager
def capture_attention_in_parts(model: PreTrainedModel, look: PartCallback, *, cells: int = CELLS) -> Iterator[None]:
    """As `watched`, for long texts: `look(site, weights, first)` is called for some of the queries at a time.

    The weights are [batch, heads, query, key], at most `cells` of them or those of one query, and `first` is the place
    of the first of these queries. What is held grows with the length of a text, not with its square. A model that
    cannot be divided so (`divisible`) is watched as a whole, as are calls of fewer weights.
    """
    with _watched(model, look, cells if divisible(model) else None):
        yield


def divisible(model: PreTrainedModel) -> bool:
    """Whether attention in parts is the attention of the whole: tried once, on a small forward; no is said in the log.

    Not so where a model adds to the weights, by place, what is made outside its mask (T5), or attends outside
    transformers' attention interface.
    """
    if model not in _divisible:
        _divisible[model] = all(site.outside is None for site in heads.attention_sites(model)) and _same_in_parts(model)
        if not _divisible[model]:
            name = type(model).__name__
            log.warning("%s attends to long texts as a whole: memory grows with the square of their length", name)
    return _divisible[model]


_divisible: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


def _same_in_parts(model: PreTrainedModel) -> bool:
    try:
        whole, parts = (_all_weights(model, cells) for cells in (None, 1))  # all queries at once, and each alone
    except Exception:  # noqa: BLE001 - a model's own code meets a mask that is no tensor
        return False
    near = 1e-5 if model.dtype.itemsize >= 4 else 1e-2
    return all(torch.allclose(weights, parts[key], atol=near) for key, weights in whole.items())


def _all_weights(model: PreTrainedModel, cells: int | None) -> dict[tuple[Kind, int], Tensor]:
    """The attention of every site in a small forward, put together again where it came in parts."""
    seen: dict[tuple[Kind, int], list[Tensor]] = {}

    def keep(site: Site, weights: Tensor, _: int) -> None:
        seen.setdefault(site.key, []).append(weights.float())

    with torch.inference_mode(), attention_hooks.evaluating(model), _watched(model, keep, cells):
        model(**examples(model), **without_cache(model))
    return {key: torch.cat(parts, 2) for key, parts in seen.items()}


@contextmanager
def _watched(model: PreTrainedModel, look: PartCallback, cells: int | None) -> Iterator[None]:
    found = heads.attention_sites(model)
    turns = _Turns(found)

    def pass_on(module: nn.Module, weights: Tensor, first: int = 0) -> None:
        site = turns.of(module, first)
        if site is not None:
            look(site, weights, first)

    with ExitStack() as stack:
        stack.enter_context(exclusive(model))
        stack.enter_context(attention_hooks.no_head_masks(model))
        if turns.shared:
            stack.enter_context(attention_hooks.each_forward(model, turns.calls.clear))
        seeing = attention_hooks.attending(
            model, lambda call: pass_on(call.module, call.weights, call.first), cells=cells
        )
        stack.enter_context(seeing)
        stack.enter_context(heads.outside_attending(found, pass_on))
        yield


class _Turns:
    """Tells which site a call of an attention module is: its turn among the calls of that module in one forward."""

    def __init__(self, sites: list[Site]) -> None:
        self.sites: dict[nn.Module, list[Site]] = {}
        for site in sorted(sites, key=lambda site: site.turn):
            self.sites.setdefault(site.module, []).append(site)
        self.calls: Counter[nn.Module] = Counter()  # in this forward
        self.shared = any(len(mine) > 1 for mine in self.sites.values())

    def of(self, module: nn.Module, first: int) -> Site | None:
        """The site of the call of `module` that is being made, or None where it is none of the sites.

        A call in parts is one call: `first` is the place of the first query of this part.
        """
        mine = self.sites.get(module)
        if mine is None:
            return None
        self.calls[module] += first == 0
        return mine[(self.calls[module] - 1) % len(mine)]
