"""Laws of pruning: what is chosen, what is cut out, what comes back from disk."""

from __future__ import annotations

import tempfile

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headroles.conformance import by_hand
from headroles.conformance.case import Case, NotAsked, apart
from headroles.gates import closed
from headroles.pruning.cutting import shrink
from headroles.pruning.run import prune
from headroles.resize import resized


def cut(case: Case) -> float:
    """Heads cut out do what they do closed, and so does what is loaded from where the rest was saved."""
    expected = case.under(closed(case.model, case.some))
    smaller = shrink(case.copy(), case.some)
    if not torch.equal(_again(case, case.model), case.plain):
        raise NotAsked(f"transformers does not bring back {type(case.model).__name__} as it was, with all heads too")
    return max(apart(case.output(smaller), expected), apart(_again(case, smaller), expected))


def chosen(case: Case) -> float:
    """`hr.prune` keeps the half of the heads whose gates have the largest slopes, told a sentence at a time.

    How many heads are another choice.
    """
    slopes = by_hand.importance(case)
    keep = case.heads // 2
    alive = prune(case.copy(), case.tokenizer, case.corpus, "importance", keep=keep)
    kept = set((alive.iloc[:, 0].to_numpy() == 1).nonzero()[0].tolist())
    return float(len(kept ^ set(slopes.argsort(descending=True)[:keep].tolist())))


def _again(case: Case, model: PreTrainedModel) -> Tensor:
    """What a model puts out when it is loaded from where it was saved."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return case.output(resized(type(model)).from_pretrained(folder).eval())
