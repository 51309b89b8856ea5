"""What flows back to every head: gradient x output in all tools, relevance by rules and integrated gradients beside."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import torch
from setting import Job, Setting, Tool, lens, lens_inputs
from torch import Tensor

from headroles.models.masking import mask_heads
from headroles.scores.gradients.base import head_gradients
from headroles.scores.objectives import Reference

STEPS = 5


def ours(of: Setting, rules: str = "gradient") -> Callable[[], pd.DataFrame]:
    """The sum over the corpus of what flows back to each gate, one pass for all heads."""
    target = Reference().fit(of.handle, of.batches)

    def run() -> pd.DataFrame:
        found = [head_gradients(of.handle, target, batch, rules=rules, steps="sum") for batch in of.batches]  # type: ignore[arg-type]
        return of.table("flow", sum(each.gradients.double().sum((0, 1)) for each in found))

    return run


def transformer_lens(of: Setting) -> Callable[[], pd.DataFrame]:
    """The outputs of heads kept by hooks, one backward pass: attribution patching towards zero."""
    bridge = lens(of)
    bridge.requires_grad_(False)

    def run() -> pd.DataFrame:
        total = 0
        for number, batch in enumerate(of.batches):
            kept: dict[str, Tensor] = {}

            def keep(z: Tensor, hook, name: str, kept=kept) -> Tensor:  # noqa: ARG001
                kept[name] = z if z.requires_grad else z.detach().requires_grad_()
                return kept[name]

            names = [f"{of.place(*site)[0]}.hook_z" for site in of.sites()]
            hooks = [(name, lambda z, hook, name=name, keep=keep: keep(z, hook, name)) for name in names]
            ids, rest = lens_inputs(batch)
            with torch.enable_grad():
                value = _value(of, number, bridge.run_with_hooks(*ids, fwd_hooks=hooks, **rest))
            total = total + _flow(value, [kept[name] for name in names], of)
        return of.table("flow", total)

    return run


def nnsight(of: Setting) -> Callable[[], pd.DataFrame]:
    """The outputs of heads saved in a trace, one backward pass after it."""
    from nnsight import NNsight

    net = NNsight(of.own())
    outs = [net.get(of.place(*site)[2]) for site in of.calls()]
    order = [of.calls().index(site) for site in of.sites()]

    def run() -> pd.DataFrame:
        total = 0
        for number, batch in enumerate(of.batches):
            with net.trace(**of.inputs(batch)):
                kept = [out.input for out in outs].save()
                logits = net.lm_head.output.save()
            total = total + _flow(_value(of, number, logits), [kept[place] for place in order], of)
        return of.table("flow", total)

    return run


def captum_layers(of: Setting) -> Callable[[], pd.DataFrame]:
    """LayerGradientXActivation of the inputs of all output projections."""
    from captum.attr import LayerGradientXActivation

    def run() -> pd.DataFrame:
        total = 0
        for number, batch in enumerate(of.batches):
            rest = {name: value for name, value in of.inputs(batch).items() if name != "input_ids"}

            def value(ids: Tensor, number=number, rest=rest) -> Tensor:
                return _value(of, number, of.model(input_ids=ids, **rest).logits)[None]

            method = LayerGradientXActivation(value, of.projections())
            found = method.attribute(batch.inputs["input_ids"], attribute_to_layer_input=True)
            total = total + _by_head([each[0] if isinstance(each, tuple) else each for each in found], of)
        return of.table("flow", total)

    return run


def captum_integrated(of: Setting) -> Callable[[], pd.DataFrame]:
    """IntegratedGradients with our gates as its input."""
    from captum.attr import IntegratedGradients

    def run() -> pd.DataFrame:
        total = 0
        for number, batch in enumerate(of.batches):

            def value(gates: Tensor, number=number, batch=batch) -> Tensor:
                with mask_heads(of.model, gates):
                    return _value(of, number, of.model(**of.inputs(batch)).logits)[None]

            ones = torch.ones(1, len(of.index), device=of.model.device)
            total = total + IntegratedGradients(value).attribute(ones, n_steps=STEPS, internal_batch_size=1)[0]
        return of.table("flow", total)

    return run


def captum_lrp(of: Setting) -> Callable[[], pd.DataFrame]:
    """Its own relevance propagation, which has rules for some classes of modules."""
    from captum.attr import LRP

    method = LRP(of.model)
    ids = of.batches[0].inputs["input_ids"]
    return lambda: of.table("flow", method.attribute(ids, target=(0, 0)))


def _value(of: Setting, number: int, logits: Tensor) -> Tensor:
    """What is explained: the sum of the logits of what should be written."""
    labels = of.labels[number]
    picked = logits.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return (picked * (labels >= 0)).sum()


def _flow(value: Tensor, kept: list[Tensor], of: Setting) -> Tensor:
    back = torch.autograd.grad(value, kept)
    return _by_head([z * one for z, one in zip(kept, back, strict=True)], of)


def _by_head(found: list[Tensor], of: Setting) -> Tensor:
    """Sums over examples, tokens and places of each head: [heads of all sites]."""
    split = [each.detach().unflatten(-1, (of.heads, -1)) if each.ndim == 3 else each.detach() for each in found]
    return torch.cat([each.sum((0, 1, 3)) for each in split]).double()


SAME = "gradient x output"
JOB = Job(
    "relevance of every head",
    {
        SAME: Tool(ours),
        "relevance, cp": Tool(lambda of: ours(of, "cp"), None, "LRP: another rule, which no other tool has for heads"),
        "TransformerLens": Tool(transformer_lens, SAME, "gradient x output by hooks; it has no LRP"),
        "nnsight": Tool(nnsight, SAME, "gradient x output from a trace; it has no LRP"),
        "captum LayerGradientXActivation": Tool(captum_layers, SAME, "gradient x output of output projections"),
        "captum IntegratedGradients": Tool(captum_integrated, None, f"another rule: on our gates, {STEPS} steps"),
        "captum LRP": Tool(captum_lrp, None, "another rule"),
    },
    {
        "bertviz": "another job: it draws attention, and attributes nothing",
        "inseq": "another job: it attributes what is generated to input tokens, not to heads",
    },
    repeats=3,
)
