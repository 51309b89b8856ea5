"""By hand: what laws compare with, the same told again by plain loops, a sentence at a time."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headroles.data.corpus import Sentence
from headroles.models.dummy_inputs import without_cache
from headroles.models.loading import causal, shifted, special
from headroles.models.masking import mask_heads
from headroles.testing.case import Case, NotAsked, Weights


def read(case: Case, sentence: Sentence) -> tuple[dict[str, Tensor], Tensor]:
    """The arguments of a sentence and the token that each step should give, -100 for none."""
    ids = _ids(sentence)
    if sentence.target is not None:
        labels = _ids(sentence.target)
        return {"input_ids": ids, "decoder_input_ids": shifted(case.model, labels)}, labels
    if not causal(case.model):
        return {"input_ids": ids}, ids
    return {"input_ids": ids}, F.pad(ids[:, 1:], (0, 1), value=-100)


def losses(case: Case, gates: Tensor) -> list[Tensor]:
    """The cross-entropy of every token of each sentence: a vector for each."""
    if case.model.get_output_embeddings() is None:
        raise NotAsked(f"{type(case.model).__name__} predicts no tokens, so that it has no loss")
    found = []
    for inputs, labels in (read(case, sentence) for sentence in case.corpus):
        with mask_heads(case.model, gates):
            logits: Any = case.model(**inputs, **without_cache(case.model)).logits
        there = labels[0] >= 0
        found.append(F.cross_entropy(logits[0][there], labels[0][there], reduction="none"))
    return found


def loss(case: Case, gates: Tensor) -> float:
    """The mean over all tokens."""
    with torch.no_grad():
        return float(torch.cat(losses(case, gates)).mean())


def importance(case: Case) -> Tensor:
    """The mean over sentences of the size of the gradient of each gate: [heads]."""
    ones = torch.ones(case.heads, requires_grad=True)
    with torch.enable_grad():
        slopes = [torch.autograd.grad(one.mean(), ones)[0] for one in losses(case, ones)]
    return torch.stack(slopes).abs().mean(0)


def confidence(case: Case) -> Tensor:
    """The mean over real tokens of the largest weight on a real token, as the model gives them out: [heads]."""
    best: dict[Any, list[Tensor]] = {}
    for inputs, _ in (read(case, sentence) for sentence in case.corpus):
        weights: Weights = case.given_out(inputs)
        for key, one in weights.items():
            source, target = (_real(case, inputs.get(name)) for name in ("input_ids", "decoder_input_ids"))
            if target is not None:
                target[0] = False  # the decoder's start, whatever else its id stands for
            queries = source if key[0] == "enc-self" or target is None else target
            keys = source if key[0] != "dec-self" or target is None else target
            best.setdefault(key, []).append(one[0][:, queries][..., keys].amax(-1))  # [head, query]
    return torch.cat([torch.cat(best[site.key], -1).mean(-1) for site in case.sites])


def _ids(sentence: Sentence) -> Tensor:
    return torch.tensor([[int(word) for word in sentence.text.split()]])


def _real(case: Case, ids: Tensor | None) -> Tensor | None:
    """Which tokens of a sentence are text: bool [token]."""
    return None if ids is None else ~torch.isin(ids[0], torch.tensor(sorted(special(case.tokenizer, case.model))))
