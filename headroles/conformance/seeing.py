"""Laws of seeing: sites, rows of attention, masks, scores."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from headroles.conformance import by_hand
from headroles.conformance.case import Case, NotAsked, apart
from headroles.heads import Kind
from headroles.scores import score
from headroles.watch import watched


def sites(case: Case) -> float:
    """There are as many sites of as many heads as the model gives out attention weights by itself.

    Where it gives out none, as many as its config says. How many there are too many or too few.
    """
    found = Counter((site.kind, site.heads) for site in case.sites)
    try:
        said = Counter((kind, weights.shape[1]) for (kind, _), weights in case.own.items())
    except NotAsked:
        said = _configured(case)
    return float(((found - said) + (said - found)).total())


def rows(case: Case) -> float:
    """What is watched is what the model gives out by itself, layer by layer."""
    if case.own.keys() != case.watched.keys():
        return float("inf")
    return max(float((case.own[key] - weights).abs().max()) for key, weights in case.watched.items())


def sums(case: Case) -> float:
    """A row of attention sums to one, or with a sink to less; no weight is negative. How far off the worst one is."""
    weights = [one.double() for one in case.watched.values()]
    return max(max(float((one.sum(-1) - 1).max()), float(-one.min())) for one in weights)


def masks(case: Case) -> float:
    """Watched, the model puts out what it does by itself, whatever its attention, on texts of which one is padded.

    What looks at padding, or ahead, puts out something else.
    """
    with watched(case.model, lambda *_: None):
        found = case.output(case.model)
    return apart(_there(case, found), _there(case, case.plain))


def confidence(case: Case) -> float:
    """`hr.score`'s confidence is the mean over tokens of the largest weight that the model itself gives out."""
    corpus = case.corpus
    found = score(case.model, case.tokenizer, corpus, ["confidence"], resamples=0)["confidence"]
    return float((torch.tensor(found.to_numpy()) - by_hand.confidence(case)).abs().max())


def _configured(case: Case) -> Counter[tuple[Kind, int]]:
    """Numbers of heads by the config."""
    config: Any = case.model.config
    layers, heads = (getattr(config, name, None) for name in ("num_hidden_layers", "num_attention_heads"))
    if not (isinstance(layers, int) and isinstance(heads, int)) or case.writes:
        raise NotAsked("neither its output nor its config says where it attends")
    return Counter({(case.sites[0].kind, heads): layers})


def _there(case: Case, output: Tensor) -> Tensor:
    """The part of an output at places that are not padding."""
    mask = case.inputs.get("decoder_attention_mask" if case.writes else "attention_mask")
    return output[mask.bool()] if mask is not None and output.shape[:2] == mask.shape else output
