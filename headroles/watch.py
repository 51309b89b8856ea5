"""Watching: every attention weight of a forward, one layer at a time, none kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles import families, seam
from headroles.site import Site

Look = Callable[[Site, Tensor], None]


@contextmanager
def watched(model: PreTrainedModel, look: Look) -> Iterator[None]:
    """Within the block `look(site, weights)` is called at every attention of `model`.

    The weights, [batch, heads, query, key], are those of the model's own eager attention and are dropped when `look`
    returns: no more than one layer's are in memory. Rows of padded queries are there too. Measure in eval mode:
    dropout acts on the weights.
    """
    found = families.sites(model)
    turns = _Turns(found)

    def pass_on(module: nn.Module, weights: Tensor) -> None:
        site = turns.next(module)
        if site is not None:
            look(site, weights)

    with ExitStack() as stack:
        stack.enter_context(seam.no_head_masks(model))
        stack.enter_context(seam.attending(model, lambda call: pass_on(call.module, call.weights)))
        stack.enter_context(families.outside_attending(found, pass_on))
        yield


class _Turns:
    """Tells which site a call of an attention module is: its turn among the calls of that module in one forward."""

    def __init__(self, sites: list[Site]) -> None:
        self.sites: dict[nn.Module, list[Site]] = {}
        for site in sorted(sites, key=lambda site: site.turn):
            self.sites.setdefault(site.module, []).append(site)
        self.calls: Counter[nn.Module] = Counter()

    def next(self, module: nn.Module) -> Site | None:
        """The site of the call of `module` that is being made, or None where it is none of the sites."""
        mine = self.sites.get(module)
        if mine is None:
            return None
        self.calls[module] += 1
        return mine[(self.calls[module] - 1) % len(mine)]
