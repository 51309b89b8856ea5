"""Closing every head by itself: `hr.ablate`, and a full forward for each head in others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pandas as pd
import torch
from setting import Job, Setting, Tool, lens, lens_inputs, loss
from torch import Tensor

import headroles as hr
from headroles.models.masking import head_mask, mask_heads

TOGETHER = 8  # variants in one forward pass, as `hr.ablate` has them
Close = Callable[[str, int, int], Iterable[Tensor]]  # of a head: the logits of each batch


def ours(of: Setting) -> Callable[[], pd.DataFrame]:
    def run() -> pd.DataFrame:
        given = {"metric": "loss", "n_resamples": 0, "max_tokens": of.max_tokens}
        if of.few is None:
            return hr.ablate(of.model, of.tokenizer, of.corpus, **given)[["ablation[loss]"]]
        sets = {str(head): [head] for head in of.closing}
        found = hr.ablate(of.model, of.tokenizer, of.corpus, sets=sets, **given)
        return found[["ablation[loss]"]].set_axis(of.closing)

    return run


def loop(of: Setting) -> Callable[[], pd.DataFrame]:
    """A full forward for each head, its gate closed."""

    def logits(*head) -> Iterable[Tensor]:
        with mask_heads(of.model, head_mask(of.model, [head])):
            return [of.model(**of.inputs(batch)).logits for batch in of.batches]

    def intact() -> list[Tensor]:
        return [of.model(**of.inputs(batch)).logits for batch in of.batches]

    return lambda: _effects(of, intact, logits)


def transformer_lens(of: Setting) -> Callable[[], pd.DataFrame]:
    """A hook on the heads' outputs."""
    bridge = lens(of)

    def logits(kind: str, layer: int, head: int) -> Iterable[Tensor]:
        def close(z: Tensor, hook) -> Tensor:  # noqa: ARG001
            z = z.clone()
            z[:, :, head] = 0
            return z

        return hooked([(f"{of.place(kind, layer)[0]}.hook_z", close)])

    def hooked(hooks: list) -> list[Tensor]:
        called = [lens_inputs(batch) for batch in of.batches]
        return [bridge.run_with_hooks(*ids, fwd_hooks=hooks, **rest) for ids, rest in called]

    return lambda: _effects(of, lambda: hooked([]), logits)


def nnsight(of: Setting) -> Callable[[], pd.DataFrame]:
    """A trace for each head."""
    from nnsight import NNsight

    net = NNsight(of.own())
    size = of.model.config.hidden_size // of.heads

    def logits(kind: str, layer: int, head: int) -> Iterable[Tensor]:
        found = []
        out = net.get(of.place(kind, layer)[2])
        for batch in of.batches:
            with net.trace(**of.inputs(batch)):
                z = out.input.clone()
                z[..., head * size : (head + 1) * size] = 0
                out.input = z
                logits = net.lm_head.output.save()
            found.append(logits)
        return found

    def intact() -> list[Tensor]:
        found = []
        for batch in of.batches:
            with net.trace(**of.inputs(batch)):
                logits = net.lm_head.output.save()
            found.append(logits)
        return found

    return lambda: _effects(of, intact, logits)


def captum(of: Setting) -> Callable[[], pd.DataFrame]:
    """FeatureAblation with our gates as its input, several heads at a time."""
    from captum.attr import FeatureAblation

    places = [of.index.get_loc(head) for head in of.closing]

    def measured(rows: Tensor) -> Tensor:
        gates = torch.ones(len(rows), len(of.index), device=rows.device)
        gates[:, places] = rows
        return sum(_each(of, number, gates) for number in range(len(of.batches)))

    def run() -> pd.DataFrame:
        with torch.inference_mode():
            ones = torch.ones(1, len(places), device=of.model.device)
            effect = -FeatureAblation(measured).attribute(ones, perturbations_per_eval=TOGETHER)
        return of.table("ablation[loss]", effect[0] / _tokens(of))

    return run


def _each(of: Setting, number: int, gates: Tensor) -> Tensor:
    """The loss of one batch under each row of gates."""
    batch, many, size = of.batches[number], len(gates), len(of.batches[number].numbers)
    wide = batch.take(torch.arange(size).repeat(many))
    with mask_heads(of.model, gates.repeat_interleave(size, 0)):
        logits = of.model(**of.inputs(wide)).logits
    each = logits.unflatten(0, (many, size))
    return torch.stack([loss(one, of.labels[number]) for one in each])


def _effects(of: Setting, intact: Callable[[], Iterable[Tensor]], logits: Close) -> pd.DataFrame:
    def total(found: Iterable[Tensor]) -> float:
        return float(sum(loss(one, labels) for one, labels in zip(found, of.labels, strict=True)))

    with torch.inference_mode():
        before = total(intact())
        effects = [(total(logits(*head)) - before) / _tokens(of) for head in of.closing]
    return of.table("ablation[loss]", effects)


def _tokens(of: Setting) -> int:
    return sum(int((labels >= 0).sum()) for labels in of.labels)


JOB = Job(
    "ablating every head",
    {
        "ablate": Tool(ours),
        "naive loop": Tool(loop, "ablate", "our gates, a full forward for each head"),
        "TransformerLens": Tool(transformer_lens, "ablate", "a hook, a full forward for each head"),
        "nnsight": Tool(nnsight, "ablate", "a trace for each head"),
        "captum FeatureAblation": Tool(captum, "ablate", f"on our gates, {TOGETHER} heads at a time"),
    },
    {
        "bertviz": "another job: it draws attention, and changes nothing in a model",
        "inseq": "another job: attribution to input tokens; heads are not closed",
    },
    size=(8, 24),
)
