"""Masks and gates: one number g per head in the model's own forward, z -> g z + (1 - g) replacement."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd import Function
from transformers import PreTrainedModel

from headroles._changes import Changes
from headroles.models import dummy_inputs
from headroles.models.attention_hooks import CallCounter, no_head_masks, without_cache
from headroles.models.batching import Batch
from headroles.models.heads import attention_sites, uncompiled
from headroles.models.replacements import ReplacementLike, Values, as_replacement, capture_values
from headroles.models.sites import Head as Head
from headroles.models.sites import Site, Sites
from headroles.tables.frame import KINDS, Kind

NO_VALUES = Values(torch.empty(0), None, None, {})  # of a replacement that needs none


class Gate(Function):
    """The product of z and its gate, one operation for `headroles.scores.lrp`.

    The gradient with respect to a gate, sum(z * grad_z), is accumulated in the gate's dtype. Where LRP rules replace
    gradients it is the relevance of the head. z is [batch, query, heads, size], gates are [heads, 1] or
    [batch, 1, heads, 1]; z of an image may have queries in two dimensions, and gates then too.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, gate: Tensor) -> Tensor:  # noqa: D102
        ctx.save_for_backward(z, gate)
        return z * gate.to(z)

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, Tensor | None]:  # noqa: D102
        z, gate = ctx.saved_tensors
        to_z, to_gate = ctx.needs_input_grad
        back = (c * gate.to(z)).sum_to_size(z.shape) if to_z else None  # z may be one mean of all examples
        if not to_gate:
            return back, None
        products = c.to(gate.dtype) * z.to(gate.dtype)  # [batch, query, heads, size]
        if gate.ndim > 2:
            return back, products.sum(-1, keepdim=True).sum_to_size(gate.shape).to(gate.device)
        products = products.reshape(products.shape[:-2].numel(), *products.shape[-2:])  # -1 fits all without heads
        return back, products.sum(0).sum(-1, keepdim=True).to(gate.device)  # rows first: fastest


def mask_heads(
    model: PreTrainedModel, gates: Tensor | npt.ArrayLike | Callable[[], Tensor], replacement: ReplacementLike = None
) -> Changes:
    """Replace every head's output z by g z + (1 - g) replacement within the block.

    A mask of ones gives bit-identical logits; where the replacement is attention (a pattern, "uniform"), the model
    attends by its eager function, and logits of fused attention differ by rounding. Other models are not affected.

    Args:
        model: A transformers model.
        gates: One number g per head, in the order of the rows of a table (`hr.models.head_index`): Tensor[heads], or
            Tensor[batch, heads] for gates of each example; lists and arrays are converted. In beam search the gates of
            an example apply to all its beams; functions of headroles that read their own batches refuse them.
            They may require gradients. A function is called for the gates at each layer.
        replacement: The output of a masked head. None or "zero"; "uniform", the mean of the values the head may attend
            to; a mapping (kind, layer) -> Tensor[heads, size], such as the result of `mean`; a pattern, such as
            `headroles.patterns.Offset(-1)`: the output if the head attended exactly so; (kind, layer, head) -> pattern;
            or a function of the site and its z, Tensor[batch, query, heads, size].

    Returns:
        A context manager.

    Raises:
        ValueError: The number of gates is wrong, the replacement is unknown, or heads of the model cannot be masked.

    Example:
        >>> with hr.mask_heads(model, hr.head_mask(model, [("enc-self", 0, 2)])):
        ...     logits = model(**inputs).logits
    """  # noqa: DOC502
    return masked(uncompiled(model), attention_sites(model), gates, replacement)


def masked(
    model: PreTrainedModel,
    sites: list[Site],
    gates: Tensor | npt.ArrayLike | Callable[[], Tensor],
    replacement: ReplacementLike,
) -> Changes:
    """Mask the heads of known sites within the block, as `mask_heads`."""
    fixed = None if callable(gates) else gates if isinstance(gates, Tensor) else torch.tensor(gates)  # a copy
    chosen, ends = as_replacement(model, replacement), [*accumulate((site.heads for site in sites), initial=0)]
    places = {site.key: slice(start, end) for site, (start, end) in zip(sites, pairwise(ends), strict=True)}

    def current() -> Tensor:
        return fixed if fixed is not None else torch.as_tensor(gates())  # type: ignore[operator]

    def begin(changes: Changes) -> None:
        changes.by_example = current().ndim == 2
        no_head_masks(changes)
        captured = capture_values(changes, sites, current(), chosen) if "values" in chosen.needs else None

        def replace(site: Site, z: Tensor) -> Tensor:
            part = current()[..., places[site.key]]
            return _mix(z, part, captured(site, z, part) if captured else chosen.outputs(site, z, NO_VALUES, part))

        read_heads(changes, sites, replace)

    if (shape := list(current().shape))[-1:] != ends[-1:] or len(shape) > 2:
        raise ValueError(
            f"gates must have shape [{ends[-1]}] or [batch, {ends[-1]}] for {type(model).__name__}, which has "
            f"{Sites(sites).sizes}, got {shape}"
        )
    if chosen.needs:  # others replace the outputs of any site
        is_masked = (current() != 1).reshape(-1, ends[-1]).any(0).tolist()
        for site in sites:
            if any(is_masked[places[site.key]]):
                chosen.check(site)
    return Changes(model, begin)


def head_mask(model: PreTrainedModel, heads: Iterable[Head | str] | str) -> Tensor:
    """Return a mask that ablates some heads.

    Args:
        model: A transformers model.
        heads: (kind, layer, head) of each head to ablate, or "L0H2" where there is one kind, or "enc-self:0:2". A head
            that `model` does not have raises ValueError.

    Returns:
        Tensor[heads]: 0 for `heads` and 1 for all others, in the order of the rows of a table; also of heads that
            were removed and are kept as zeroed, which are in no table.
    """
    sites = attention_sites(model)
    masked = {*sites.named(heads, zeroed=True)}
    gates = [float((*site.key, number) not in masked) for site in sites for number in site.numbers]
    return torch.tensor(gates, device=model.device)


def mean(model: PreTrainedModel, batches: Iterable[Batch]) -> dict[tuple[Kind, int], Tensor]:
    """Return the mean output of every head over all tokens but padding: (kind, layer) -> Tensor[heads, size]."""
    sites = attention_sites(model)
    sums: dict[tuple[Kind, int], Tensor] = {}
    counts = dict.fromkeys([site.key for site in sites], 0)
    tokens: dict[Kind, Tensor] = {}  # of a batch, the places of all but padding in [batch x query]

    def add(site: Site, z: Tensor) -> None:
        rows = tokens[site.kind].to(z.device)
        total = z.flatten(0, 1)[rows].double().sum(0)  # [tokens, heads, size] -> [heads, size]
        sums[site.key] = sums[site.key] + total if site.key in sums else total
        counts[site.key] += len(rows)

    with Changes(model) as changes, torch.no_grad():
        read_heads(changes, sites, add)
        for batch in batches:
            masks = {kind: batch.queries(kind).attention_mask for kind in KINDS}
            tokens.update({kind: mask.flatten().nonzero().flatten() for kind, mask in masks.items()})
            model(**batch.inputs, **without_cache(model))
    return {key: (total / counts[key]).to(model.device, model.dtype) for key, total in sums.items()}


def read_heads(changes: Changes, sites: list[Site], read: Callable[[Site, Tensor], Tensor | None]) -> None:
    """Call `read(site, z)` at every output of heads, [batch, query, heads, size]; a tensor it returns replaces z."""
    by_out = by_projection(changes.model, sites)
    counter = CallCounter(changes, by_out)

    def at_projection(out: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        site = counter.site(out)
        new = read(site, site.read(args[0]))
        return None if new is None else (site.write(new), *args[1:])

    for out in by_out:
        changes.hook(out, at_projection)


def _mix(z: Tensor, g: Tensor, replaced: Tensor | None) -> Tensor:
    """Compute g z + (1 - g) replaced, for z [batch, query, heads, size] and g [heads] or [batch, heads]."""
    if g.ndim == 2:
        if z.shape[0] % g.shape[0]:
            raise ValueError(f"gates for {g.shape[0]} examples do not fit a batch of {z.shape[0]}")
        g = g.repeat_interleave(z.shape[0] // g.shape[0], dim=0)  # the beams, or windows, of an example are adjacent
        g = g[(slice(None), *[None] * (z.ndim - 3))]  # [batch, 1, heads]; queries of images may have two dimensions
    g = g[..., None]
    mixed: Tensor = Gate.apply(z, g)
    return mixed if replaced is None else mixed + Gate.apply(replaced, 1 - g)


def by_projection(model: PreTrainedModel, sites: list[Site]) -> dict[nn.Module, list[Site]]:
    """Return the sites of each output projection in call order; raise ValueError for a site without one."""
    shared: dict[nn.Module, list[Site]] = {}
    for site in sorted(sites, key=lambda site: site.call_index):
        if site.out is None:
            dummy_inputs.check_finite(model)
            raise ValueError(
                f"the heads of {site.name} in {type(model).__name__} cannot be masked: another operation stands "
                f"between them and the output projection"
            )
        shared.setdefault(site.out, []).append(site)
    return shared
