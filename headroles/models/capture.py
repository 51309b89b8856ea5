"""Capture of attention weights: a callback per attention site in every forward, nothing stored."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles.models.attention_hooks import attending, each_forward, evaluating, exclusive
from headroles.models.dummy_inputs import examples, without_cache
from headroles.models.heads import attention_sites, no_head_masks, outside_attending
from headroles.models.sites import Site
from headroles.tables.frame import Kind

log = logging.getLogger(__name__)

AttentionCallback = Callable[[Site, Tensor], None]
PartCallback = Callable[[Site, Tensor, int], None]
CELLS = 2**25  # weights of a part: 128 MiB in float32


@contextmanager
def capture_attention(model: PreTrainedModel, look: AttentionCallback) -> Iterator[None]:
    """Call `look(site, weights)` at every attention of a model within the block.

    The model attends by its own eager attention. Weights are dropped after each call: no more than those of one layer
    are in memory. Use eval mode, because dropout applies to the weights.

    Args:
        model: A transformers model.
        look: Called with the `Site` and its weights, Tensor[batch, heads, query, key]. Rows of padded queries are
            included.

    Example:
        >>> with hr.capture_attention(model, lambda site, weights: print(site.key, weights.shape)):
        ...     model(**inputs)
    """
    with _capture(model, lambda site, weights, _: look(site, weights), None):
        yield


@contextmanager
def capture_attention_in_parts(model: PreTrainedModel, look: PartCallback, *, cells: int = CELLS) -> Iterator[None]:
    """Call `look(site, weights, first)` for some queries at a time (long texts).

    Memory is linear in the length of a text, not quadratic. Attention is captured whole where a call has no more than
    `cells` weights, and in models that do not allow parts (`divisible`).

    Args:
        model: A transformers model.
        look: Called with the `Site`, its weights for some queries, Tensor[batch, heads, query, key], and the position
            of the first of these queries.
        cells: Most weights of a call; those of one query may be more.
    """
    with _capture(model, look, cells if divisible(model) else None):
        yield


def divisible(model: PreTrainedModel) -> bool:
    """Return whether attention in parts equals full attention for a model.

    Tested once on dummy inputs; a warning is logged if not. It differs where a model adds biases to the weights by
    position (T5), or attends outside transformers' attention interface.

    Args:
        model: A transformers model.

    Returns:
        Whether `capture_attention_in_parts` can split a call.
    """
    if model not in _divisible:
        _divisible[model] = all(site.outside is None for site in attention_sites(model)) and _same_in_parts(model)
        if not _divisible[model]:
            name = type(model).__name__
            log.warning("%s attends to long texts as a whole: memory grows with the square of their length", name)
    return _divisible[model]


_divisible: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


def _same_in_parts(model: PreTrainedModel) -> bool:
    try:
        whole, parts = (_all_weights(model, cells) for cells in (None, 1))  # all queries at once, and one by one
    except Exception:  # noqa: BLE001 - the model's code gets a mask that is no tensor
        return False
    atol = 1e-5 if model.dtype.itemsize >= 4 else 1e-2
    return all(torch.allclose(weights, parts[key], atol=atol) for key, weights in whole.items())


def _all_weights(model: PreTrainedModel, cells: int | None) -> dict[tuple[Kind, int], Tensor]:
    """The attention of every site in a small forward, parts concatenated."""
    parts: dict[tuple[Kind, int], list[Tensor]] = {}

    def keep(site: Site, weights: Tensor, _: int) -> None:
        parts.setdefault(site.key, []).append(weights.float())

    with torch.inference_mode(), evaluating(model), _capture(model, keep, cells):
        model(**examples(model), **without_cache(model))
    return {key: torch.cat(weights, 2) for key, weights in parts.items()}


@contextmanager
def _capture(model: PreTrainedModel, look: PartCallback, cells: int | None) -> Iterator[None]:
    sites = attention_sites(model)
    counter = _CallCounter(sites)

    def pass_on(module: nn.Module, weights: Tensor, first: int = 0) -> None:
        site = counter.site(module, first)
        if site is not None:
            look(site, weights, first)

    with ExitStack() as stack:
        stack.enter_context(exclusive(model))
        stack.enter_context(no_head_masks(model))
        if counter.shared:
            stack.enter_context(each_forward(model, counter.calls.clear))
        stack.enter_context(attending(model, lambda call: pass_on(call.module, call.weights, call.first), cells=cells))
        stack.enter_context(outside_attending(sites, pass_on))
        yield


class _CallCounter:
    """Assigns each call of an attention module to a site: the n-th call in a forward is the module's n-th site."""

    def __init__(self, sites: list[Site]) -> None:
        self.sites: dict[nn.Module, list[Site]] = {}
        for site in sorted(sites, key=lambda site: site.turn):
            self.sites.setdefault(site.module, []).append(site)
        self.calls: Counter[nn.Module] = Counter()  # in this forward
        self.shared = any(len(sites) > 1 for sites in self.sites.values())

    def site(self, module: nn.Module, first: int) -> Site | None:
        """The site of this call of `module`, None if it is not a site; parts with `first` > 0 continue a call."""
        sites = self.sites.get(module)
        if sites is None:
            return None
        self.calls[module] += first == 0
        return sites[(self.calls[module] - 1) % len(sites)]
