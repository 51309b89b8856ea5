"""All attention statistics of every head: one `hr.score`, and the same told from attention that others collect."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from setting import Job, Setting, Tool, lens, lens_inputs
from torch import Tensor

import headroles as hr
from headroles.models.batching import Batch, TokenView

SCORES = ["confidence", "position", "entropy", "sink", "distance"]
OFFSETS = {"-2": -2, "-1": -1, "0": 0, "+1": 1, "+2": 2}
Collect = Callable[[Batch], Iterator[tuple[tuple[str, int], Tensor]]]  # of each site the attention on a batch


def ours(of: Setting, n_resamples: int = 0) -> Callable[[], pd.DataFrame]:
    def run() -> pd.DataFrame:
        found = hr.score(of.model, of.tokenizer, of.corpus, SCORES, n_resamples=n_resamples, max_tokens=of.max_tokens)
        kept = [name for name in found if not name.endswith((".low", ".high", "[best]", "[offset]"))]
        return found[kept]

    return run


def transformers(of: Setting) -> Callable[[], pd.DataFrame]:
    """`output_attentions=True`, of the body: the vocabulary is not needed."""
    collect = _bare(of)
    return lambda: _told(of, collect)


def bare(of: Setting) -> Callable[[], pd.DataFrame]:
    """The same forward and nothing told: the floor."""
    collect = _bare(of)

    def run() -> pd.DataFrame:
        for batch in of.batches:
            list(collect(batch))
        return pd.DataFrame(index=of.index)

    return run


def transformer_lens(of: Setting) -> Callable[[], pd.DataFrame]:
    """A cache of all patterns."""
    bridge = lens(of)
    names = {site: f"{of.place(*site)[0]}.hook_pattern" for site in of.sites()}

    def collect(batch: Batch) -> Iterator[tuple[tuple[str, int], Tensor]]:
        ids, rest = lens_inputs(batch)
        with torch.inference_mode():
            _, cache = bridge.run_with_cache(*ids, names_filter=list(names.values()), **rest)
        return ((site, cache[name]) for site, name in names.items())

    return lambda: _told(of, collect)


def nnsight(of: Setting) -> Callable[[], pd.DataFrame]:
    """A trace of the body that saves what each attention module puts out."""
    from nnsight import NNsight

    model = of.own()
    model.set_attn_implementation("eager")
    net = NNsight(model.base_model)
    modules = [net.get(of.place(*site)[1].partition(".")[2]) for site in of.calls()]

    def collect(batch: Batch) -> Iterator[tuple[tuple[str, int], Tensor]]:
        with torch.inference_mode(), net.trace(**of.inputs(batch)):
            weights = [module.output[1] for module in modules].save()
        return zip(of.calls(), weights, strict=True)

    return lambda: _told(of, collect)


def _bare(of: Setting) -> Collect:
    model = of.own()
    model.set_attn_implementation("eager")
    names = {"enc-self": "encoder_attentions", "dec-self": "decoder_attentions", "cross": "cross_attentions"}
    if not model.config.is_encoder_decoder:
        names = dict.fromkeys(names, "attentions")

    def collect(batch: Batch) -> Iterator[tuple[tuple[str, int], Tensor]]:
        with torch.inference_mode():
            output: Any = model.base_model(**of.inputs(batch), output_attentions=True)
        return (((kind, layer), getattr(output, names[kind])[layer]) for kind, layer in of.sites())

    return collect


def _told(of: Setting, collect: Collect) -> pd.DataFrame:
    """The statistics in plain torch: what a user of a tool that collects attention writes himself."""
    sums: dict[tuple[str, int], dict[str, Tensor]] = defaultdict(dict)
    with torch.inference_mode():
        for batch in of.batches:
            for site, weights in collect(batch):
                for name, value in plain(site[0], weights, batch.queries(site[0]), batch.keys(site[0])).items():
                    sums[site][name] = sums[site].get(name, 0) + value
        rows = [_divided(found) for found in (sums[site] for site in of.sites())]
    columns = {name for row in rows for name in row}
    lacking = torch.full((of.heads,), torch.nan, device=of.model.device)
    return pd.DataFrame({name: torch.cat([row.get(name, lacking) for row in rows]) for name in columns}, of.index)


def plain(kind: str, weights: Tensor, queries: TokenView, keys: TokenView) -> dict[str, Tensor]:
    """Sums over the tokens of a batch for each head, and over how many: weights are [batch, head, query, key]."""
    rows = queries.content[:, None]  # [batch, 1, query]
    real = weights * keys.content[:, None, None]
    top, place = real.max(-1)  # [batch, head, query]
    special = keys.attention_mask & ~keys.content
    sums = {
        "confidence": (top * rows).sum((0, 2)),
        "entropy": -(torch.xlogy(weights, weights).sum(-1) * rows).sum((0, 2)),
        "sink[special]": ((weights * special[:, None, None]).sum(-1) * rows).sum((0, 2)),
        "sink[first]": (weights[..., 0] * rows).sum((0, 2)),
        "queries": rows.sum(),
    }
    if kind == "cross":
        return sums
    steps = torch.arange(weights.shape[-1], device=weights.device)
    sums["distance"] = ((real * (steps[:, None] - steps).abs()).sum(-1) * rows).sum((0, 2))
    sums["mass"] = (real.sum(-1) * rows).sum((0, 2))
    for name, d in OFFSETS.items():
        ahead = kind == "dec-self" and d > 0  # where nothing can be looked at
        there = rows & F.pad(queries.content, (-d, d))[:, None] & (not ahead)
        sums[f"position[{name}]"] = ((place - steps == d) & there).sum((0, 2))
        sums[f"there[{name}]"] = there.sum()
    return sums


def _divided(sums: dict[str, Tensor]) -> dict[str, Tensor]:
    def by(name: str) -> Tensor:
        if name == "distance":
            return sums["mass"]
        return sums[name.replace("position", "there")] if name.startswith("position") else sums["queries"]

    counts = ("queries", "mass", "there")
    return {name: value / by(name) for name, value in sums.items() if not name.startswith(counts)}


JOB = Job(
    "attention statistics",
    {
        "score": Tool(ours),
        "score, 1,000 resamples": Tool(lambda of: ours(of, 1000), "score", "with intervals"),
        "transformers": Tool(transformers, "score", "output_attentions=True, statistics in plain torch"),
        "TransformerLens": Tool(transformer_lens, "score", "a cache of patterns, statistics in plain torch"),
        "nnsight": Tool(nnsight, "score", "a trace, statistics in plain torch"),
        "bare forward": Tool(bare, None, "no statistics: the floor of what collects attention"),
    },
    {
        "bertviz": "another job: it draws attention that it is given, of one sentence, and tells no statistic",
        "captum": "another job: it attributes outputs, attention is not among what it tells",
        "inseq": "another job: attribution to input tokens",
    },
    size=(64, 24),
    repeats=3,
)
