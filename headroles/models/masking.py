"""Gates: one number per head that multiplies its output, z -> g z + (1 - g) fill, in the model's own forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd import Function
from transformers import PreTrainedModel

from headroles.models import attention_hooks, dummy_inputs
from headroles.models import heads as families
from headroles.models.attention_hooks import exclusive
from headroles.models.batching import Batch
from headroles.models.dummy_inputs import without_cache
from headroles.models.sites import Site
from headroles.tables.frame import KINDS, Kind

Fill = Literal["zero", "other", "uniform"]
FILLS: tuple[Fill, ...] = ("zero", "other", "uniform")
Head = tuple[Kind, int, int]  # kind, layer, head
Replacement = Callable[[Site, Tensor], Tensor]  # of a site and its z, [batch, query, heads, size]: what to put in place


class Gate(Function):
    """z times its gate, one operation that no rule set (`headroles.scores.lrp`) takes apart.

    What flows back to a gate, the sum of z times what flows back to z, is added up in the gate's precision: it is the
    relevance of the head where rules stand in for gradients. z is [batch, query, heads, size], its gates [heads, 1] or
    [batch, 1, heads, 1].
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, gate: Tensor) -> Tensor:  # noqa: D102
        ctx.save_for_backward(z, gate)
        return z * gate.to(z)

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, Tensor | None]:  # noqa: D102
        z, gate = ctx.saved_tensors
        to_z, to_gate = ctx.needs_input_grad
        back = c * gate.to(z) if to_z else None
        if not to_gate:
            return back, None
        felt = c.to(gate.dtype) * z.to(gate.dtype)  # [batch, query, heads, size]
        if gate.ndim == 4:
            return back, felt.sum(-1, keepdim=True).sum(-3, keepdim=True).to(gate.device)
        return back, felt.flatten(0, -3).sum(0).sum(-1, keepdim=True).to(gate.device)  # whole rows add up fastest


@contextmanager
def mask_heads(
    model: PreTrainedModel,
    gates: Tensor | Callable[[], Tensor],
    replacement: Fill | Mapping[tuple[Kind, int], Tensor] | Replacement | None = None,
) -> Iterator[None]:
    """Within the block every head's output z is `g z + (1 - g) fill`; other models are not touched.

    `gates` has one number per head in the order of the table's rows (`families.index`): [heads], or [batch, heads] to
    give each example its own; a batch widened by beams takes each example's gates for all its beams. Gates may require
    gradients, or be a function that is asked for them at each layer. `fill` is what a closed head puts in its place:
    None or "zero"; "other", the output for the next example of the batch, token by token, those of its padding too
    (`ablate` draws partners from the whole corpus instead); "uniform", the mean of the values it may attend to; a
    mapping (kind, layer) -> [heads, size] such as `mean` makes; or a function of the site and its z. Raises ValueError
    for a wrong number of gates or heads that cannot be gated.
    """
    found = families.attention_sites(model)
    ask = gates if callable(gates) else lambda: gates
    _check(model, found, ask(), replacement)
    own, uniform = _Parts(found), dict[nn.Module, Tensor]()

    def gate(site: Site, z: Tensor) -> Tensor:
        return _mix(z, own.of(site, ask()), instead(site, z))

    def instead(site: Site, z: Tensor) -> Tensor | None:
        if replacement is None or replacement == "zero":
            return None
        if replacement == "other":
            return _next_example(z, ask())
        if callable(replacement):
            return replacement(site, z)
        return uniform.pop(site.module) if replacement == "uniform" else replacement[site.key].to(z)

    def remember(call: attention_hooks.Call) -> None:
        uniform[call.module] = _uniform(call)

    with ExitStack() as stack:
        stack.enter_context(exclusive(model))
        stack.enter_context(attention_hooks.no_head_masks(model))
        if replacement == "uniform":
            stack.enter_context(attention_hooks.attending(model, remember))
        read_heads(stack, model, found, gate)
        yield


def head_mask(model: PreTrainedModel, heads: Iterable[Head]) -> Tensor:
    """Gates of one, and of zero at `heads`: [heads]. Raises ValueError for a head the model does not have."""
    found = families.attention_sites(model)
    numbered = [(*site.key, number) for site in found for number in site.numbers]
    places: dict[Any, int] = {head: place for place, head in enumerate(numbered)}
    gates = torch.ones(len(numbered), device=model.device)
    for head in heads:
        if tuple(head) not in places:
            families.check_head(model, head)
        gates[places[tuple(head)]] = 0.0
    return gates


def mean(model: PreTrainedModel, batches: Iterable[Batch]) -> dict[tuple[Kind, int], Tensor]:
    """The mean output of every head over all tokens of `batches`, padding left out: (kind, layer) -> [heads, size]."""
    found = families.attention_sites(model)
    sums = {site.key: torch.zeros(site.heads, site.size, dtype=torch.float64) for site in found}
    counts = dict.fromkeys(sums, 0)
    present: dict[Kind, Tensor] = {}

    def add(site: Site, z: Tensor) -> None:
        here = present[site.kind].to(z.device)
        sums[site.key] += z[here].double().sum(0).cpu()  # z[here]: [present tokens, heads, size]
        counts[site.key] += int(here.sum())

    with torch.no_grad(), ExitStack() as stack:
        stack.enter_context(exclusive(model))
        read_heads(stack, model, found, add)
        for batch in batches:
            present.update({kind: batch.queries(kind).attention_mask for kind in KINDS})
            model(**batch.inputs, **without_cache(model))
    return {key: (total / counts[key]).to(model.device, model.dtype) for key, total in sums.items()}


class _Parts:
    """The gates of each site, split once for all sites while they are the same tensor."""

    def __init__(self, found: list[Site]) -> None:
        self.sizes, self.places = [site.heads for site in found], {site.key: i for i, site in enumerate(found)}
        self.split: tuple[Tensor | None, bool] = None, False  # what was split, and whether gradients were recorded
        self.parts: tuple[Tensor, ...] = ()

    def of(self, site: Site, gates: Tensor) -> Tensor:
        """Those of one site, of all gates."""
        if gates is not self.split[0] or torch.is_grad_enabled() != self.split[1]:
            self.split, self.parts = (gates, torch.is_grad_enabled()), torch.split(gates, self.sizes, dim=-1)
        return self.parts[self.places[site.key]]


def read_heads(
    stack: ExitStack, model: PreTrainedModel, found: list[Site], read: Callable[[Site, Tensor], Tensor | None]
) -> None:
    """Until `stack` is closed `read` sees what the heads of every site put out, and may give something instead."""
    readers = {out: _Reader(mine, read) for out, mine in by_projection(model, found).items()}
    for out, reader in readers.items():
        stack.callback(out.register_forward_pre_hook(reader).remove)

    def start() -> None:
        for reader in readers.values():
            reader.calls = 0

    if any(len(reader.sites) > 1 for reader in readers.values()):
        stack.enter_context(attention_hooks.each_forward(model, start))


class _Reader:
    """The hook on one output projection that shows the heads' outputs, [batch, query, heads, size], at each call.

    A projection that is called several times in a forward (ALBERT's, once a layer) is one site after the other.
    """

    def __init__(self, sites: list[Site], read: Callable[[Site, Tensor], Tensor | None]) -> None:
        self.sites, self.read, self.calls = sites, read, 0  # calls in this forward

    def __call__(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        site = self.sites[self.calls % len(self.sites)]
        self.calls += 1
        z = args[0].unflatten(-1, (site.heads, site.size))
        swap = site.outside is not None and site.outside.time_major
        new = self.read(site, z.transpose(0, 1) if swap else z)
        if new is None:
            return None
        return (new.transpose(0, 1) if swap else new).flatten(-2), *args[1:]


def _mix(z: Tensor, g: Tensor, instead: Tensor | None) -> Tensor:
    """g z + (1 - g) instead, for z [batch, query, heads, size] and g [heads] or [batch, heads]."""
    if g.ndim == 2:
        if z.shape[0] % g.shape[0]:
            raise ValueError(f"gates for {g.shape[0]} examples do not fit a batch of {z.shape[0]}")
        g = g.repeat_interleave(z.shape[0] // g.shape[0], dim=0)[:, None]  # beams of an example stand side by side
    g = g[..., None]
    mixed: Tensor = Gate.apply(z, g)
    return mixed if instead is None else mixed + Gate.apply(instead, 1 - g)


def _next_example(z: Tensor, gates: Tensor) -> Tensor:
    beams = z.shape[0] // gates.shape[0] if gates.ndim == 2 else 1  # of an example, side by side
    if z.shape[0] < 2 * beams:
        raise ValueError("fill 'other' takes the output for the next example of the batch; this batch has only one")
    return z.roll(-beams, 0)


def _uniform(call: attention_hooks.Call) -> Tensor:
    """What a head puts out that attends equally to all it may see: [batch, query, heads, size]."""
    groups = call.query.shape[1] // call.value.shape[1]
    value = call.value.repeat_interleave(groups, dim=1)  # [batch, heads, key, size]
    seen = torch.ones_like(call.weights[:, :1]) if call.mask is None else (call.mask == 0).to(value.dtype)
    seen = seen / seen.sum(-1, keepdim=True).clamp(min=1)
    return (seen @ value).transpose(1, 2)


def by_projection(model: PreTrainedModel, found: list[Site]) -> dict[nn.Module, list[Site]]:
    """The sites of each output projection, in the order of their calls. Raises ValueError where one has none."""
    by: dict[nn.Module, list[Site]] = {}
    for site in sorted(found, key=lambda site: site.turn):
        if site.out is None:
            dummy_inputs.check(model)
            raise ValueError(
                f"the heads of {site.name} in {type(model).__name__} cannot be gated: something stands between them "
                f"and the output projection"
            )
        by.setdefault(site.out, []).append(site)
    return by


def _check(model: PreTrainedModel, found: list[Site], gates: Tensor, replacement: Any) -> None:
    heads = sum(site.heads for site in found)
    if gates.ndim not in (1, 2) or gates.shape[-1] != heads:
        raise ValueError(
            f"expected gates of shape [{heads}] or [batch, {heads}] for {type(model).__name__}, which has "
            f"{families.sizes(found)}; got {list(gates.shape)}"
        )
    if isinstance(replacement, str) and replacement not in FILLS:
        raise ValueError(
            f"unknown fill {replacement!r}; known: {', '.join(FILLS)}, or a mapping (kind, layer) -> [heads, size]"
        )
    outside = next((site.name for site in found if site.outside), None)
    if replacement == "uniform" and outside:
        raise ValueError(f"fill 'uniform' needs the values of {outside}, which is outside transformers' interface")
