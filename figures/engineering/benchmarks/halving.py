"""A forward without half of the heads: cut out by `hr.remove_heads`, and zeroed in others, which cannot cut."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pandas as pd
import torch
from setting import Job, Setting, Tool, lens, lens_inputs
from torch import Tensor

import headroles as hr
from headroles.models.masking import head_mask, mask_heads


def ours(of: Setting) -> Callable[[], pd.DataFrame]:
    """The model, smaller."""
    small = hr.remove_heads(of.own(), half(of))
    return lambda: _logits(of, lambda batch: small(**of.inputs(batch)).logits)


def closing(of: Setting) -> Callable[[], pd.DataFrame]:
    """Our gates at zero."""
    gates = head_mask(of.model, half(of))

    def logits(batch) -> Tensor:
        with mask_heads(of.model, gates):
            return of.model(**of.inputs(batch)).logits

    return lambda: _logits(of, logits)


def whole(of: Setting) -> Callable[[], pd.DataFrame]:
    return lambda: _logits(of, lambda batch: of.model(**of.inputs(batch)).logits)


def transformer_lens(of: Setting) -> Callable[[], pd.DataFrame]:
    """A hook at each site that zeroes its heads."""
    bridge, hooks = lens(of), []
    for kind, layer in of.sites():
        gone = [head for *site, head in half(of) if tuple(site) == (kind, layer)]

        def close(z: Tensor, hook, gone=gone) -> Tensor:  # noqa: ARG001
            z = z.clone()
            z[:, :, gone] = 0
            return z

        hooks.append((f"{of.place(kind, layer)[0]}.hook_z", close))

    def logits(batch) -> Tensor:
        ids, rest = lens_inputs(batch)
        return bridge.run_with_hooks(*ids, fwd_hooks=hooks, **rest)

    return lambda: _logits(of, logits)


def nnsight(of: Setting) -> Callable[[], pd.DataFrame]:
    """A trace that zeroes the heads of each site."""
    from nnsight import NNsight

    net = NNsight(of.own())
    outs = [net.get(of.place(*site)[2]) for site in of.calls()]
    gates = head_mask(of.model, half(of)).view(len(outs), of.heads)
    masks = gates[[of.sites().index(site) for site in of.calls()]].repeat_interleave(
        of.model.config.hidden_size // of.heads, -1
    )

    def logits(batch) -> Tensor:
        with net.trace(**of.inputs(batch)):
            for out, mask in zip(outs, masks, strict=True):
                out.input = out.input * mask
            found = net.lm_head.output.save()
        return found  # noqa: RET504 - nnsight gives the value to the name when the trace ends

    return lambda: _logits(of, logits)


def half(of: Setting) -> list[tuple[str, int, int]]:
    """Every second head."""
    return list(of.index)[::2]


def parameters(of: Setting) -> dict[str, float]:
    """The share of parameters that the smaller model has, of all and of those of attention."""
    small = hr.remove_heads(deepcopy(of.model), half(of))
    sizes = {
        "all": (small.num_parameters(), of.model.num_parameters()),
        "attention": tuple(_attention(model, of) for model in (small, of.model)),
    }
    return {name: round(one / other, 3) for name, (one, other) in sizes.items()}


def _attention(model, of: Setting) -> int:
    modules = [model.get_submodule(of.place(*site)[1]) for site in of.sites()]
    return sum(each.numel() for module in modules for each in module.parameters())


def _logits(of: Setting, logits: Callable[..., Tensor]) -> pd.DataFrame:
    with torch.inference_mode():
        return pd.DataFrame(torch.cat([logits(batch).flatten(0, 1) for batch in of.batches]).numpy())


JOB = Job(
    "pruning to half",
    {
        "shrink": Tool(ours, None, "half of the heads cut out"),
        "gates at zero": Tool(closing, "shrink", "nothing is cut"),
        "TransformerLens": Tool(transformer_lens, "shrink", "zeroed by hooks: it cannot cut"),
        "nnsight": Tool(nnsight, "shrink", "zeroed in a trace: it cannot cut"),
        "whole model": Tool(whole, None, "all heads open: other logits"),
    },
    {
        "captum": "another job: it attributes, and leaves the model as it is",
        "bertviz": "another job: it draws attention, and changes nothing in a model",
        "inseq": "another job: attribution to input tokens",
    },
    repeats=10,
)
