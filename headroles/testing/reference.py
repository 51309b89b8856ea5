"""Slow reference results for the checks: plain loops, one sentence at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headroles.data.corpus import Sentence
from headroles.models.attention_hooks import without_cache
from headroles.models.batching import shifted
from headroles.models.dummy_inputs import words
from headroles.models.masking import mask_heads
from headroles.models.tokens.vocabulary import special
from headroles.tables.frame import Kind
from headroles.testing.case import Case, NotAsked, Weights, difference

NOISE = 1e-5  # relative, of float32


def read(case: Case, sentence: Sentence) -> tuple[dict[str, Tensor], Tensor]:
    """Return the inputs of a sentence, and the token that each step predicts: [1, token], -100 for none."""
    ids = _ids(sentence)
    if sentence.target is not None:
        labels = _ids(sentence.target)
        return {"input_ids": ids, "decoder_input_ids": shifted(case.model, labels)}, labels
    if _reads_ahead(case, ids):
        return {"input_ids": ids}, ids
    return {"input_ids": ids}, F.pad(ids[:, 1:], (0, 1), value=-100)


def _reads_ahead(case: Case, ids: Tensor) -> bool:
    """Return whether the logits of a text before its last token change with that token."""
    known = torch.tensor(words(case.model))
    texts = [torch.cat([ids[:, :-1], last.view(1, 1)], dim=1) for last in (known[0], known[-1])]
    before, after = (case.output(case.model, {"input_ids": text})[:, :-1] for text in texts)
    return difference(before, after) > NOISE


def losses(case: Case, gates: Tensor) -> list[Tensor]:
    """Return the cross-entropies of the tokens of each sentence: one vector per sentence."""
    if case.model.get_output_embeddings() is None:
        raise NotAsked(f"{type(case.model).__name__} predicts no tokens, so it has no loss")
    rows = []
    with mask_heads(case.model, gates):
        for inputs, labels in (read(case, sentence) for sentence in case.corpus):
            logits = case.model(**inputs, **without_cache(case.model)).logits
            counted = labels[0] >= 0  # [token]
            rows.append(F.cross_entropy(logits[0][counted], labels[0][counted], reduction="none"))
    return rows


def loss(case: Case, gates: Tensor) -> float:
    """Return the mean cross-entropy over all tokens."""
    with torch.no_grad():
        return float(torch.cat(losses(case, gates)).mean())


def importance(case: Case) -> Tensor:
    """Return the mean over sentences of the absolute gradient of each gate: [heads]."""
    ones = torch.ones(case.heads, requires_grad=True)
    with torch.enable_grad():
        gradients = [torch.autograd.grad(row.mean(), ones)[0] for row in losses(case, ones)]
    return torch.stack(gradients).abs().mean(0)


def confidence(case: Case) -> Tensor:
    """Return the mean over content queries of the largest weight on a content key: [heads]."""
    best: dict[tuple[Kind, int], list[Tensor]] = {}
    for inputs, _ in (read(case, sentence) for sentence in case.corpus):
        attention: Weights = case.returned_for(inputs)
        for key, weights in attention.items():
            source, target = (_content(case, inputs.get(name)) for name in ("input_ids", "decoder_input_ids"))
            if target is not None:
                target[0] = False  # the decoder's start, whatever else its id stands for
            queries = source if key[0] == "enc-self" or target is None else target
            keys = source if key[0] != "dec-self" or target is None else target
            best.setdefault(key, []).append(weights[0][:, queries][..., keys].amax(-1))  # [head, query]
    return torch.cat([torch.cat(best[site.key], -1).mean(-1) for site in case.sites])


def _ids(sentence: Sentence) -> Tensor:
    return torch.tensor([[int(word) for word in sentence.text.split()]])


def _content(case: Case, ids: Tensor | None) -> Tensor | None:
    """The mask of the content tokens of a sentence: bool [token]."""
    return None if ids is None else ~torch.isin(ids[0], torch.tensor(sorted(special(case.tokenizer, case.model))))
