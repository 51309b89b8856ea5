"""Slow reference results for the checks: plain loops, one sentence at a time."""

from __future__ import annotations

import inspect
import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from headroles.data.corpus import Sentence
from headroles.models.attention_hooks import without_cache
from headroles.models.batching import shifted
from headroles.models.dummy_inputs import reads_source_twice, words
from headroles.models.masking import mask_heads
from headroles.models.tokens.vocabulary import special
from headroles.tables.frame import Kind
from headroles.testing.case import Case, NotAsked, Weights, difference, first

NOISE = 1e-5  # relative, of float32


def read(case: Case, sentence: Sentence) -> dict[str, Tensor]:
    """Return the inputs of a sentence."""
    ids = case.ids(sentence)
    if reads_source_twice(case.model):
        return {"input_ids": ids, "decoder_input_ids": _shown(case, ids)}
    if sentence.target is None:
        return {"input_ids": ids}
    return {"input_ids": ids, "decoder_input_ids": shifted(case.model, case.ids(sentence.target, target=True))}


def predicted(case: Case, sentence: Sentence) -> Tensor:
    """Return the token that each step predicts: [1, token], -100 for none."""
    if sentence.target is not None:
        return case.ids(sentence.target, target=True)
    ids = case.ids(sentence)
    return F.pad(ids[:, 1:], (0, 1), value=-100) if _predicts_next(case, ids) else _of_words(case, ids)


def _of_words(case: Case, ids: Tensor) -> Tensor:
    """Return the token ids with -100 for special tokens, which masked models do not have to predict."""
    return torch.where(torch.isin(ids, torch.tensor(sorted(special(case.tokenizer, case.model)))), -100, ids)


def _shown(case: Case, ids: Tensor) -> Tensor:
    """Return the decoder inputs of a model that makes them itself."""
    shown: list[Tensor] = []
    hook = case.model.get_decoder().register_forward_pre_hook(
        lambda _, __, kwargs: shown.append(kwargs["input_ids"]), with_kwargs=True
    )
    case.output(case.model, {"input_ids": ids})
    hook.remove()
    return shown[0]


def _reads_ahead(case: Case, ids: Tensor) -> bool:
    """Return whether the logits of a text before its last token change with that token."""
    known = torch.tensor(words(case.model))
    texts = [torch.cat([ids[:, :-1], last.view(1, 1)], dim=1) for last in (known[0], known[-1])]
    before, after = (case.output(case.model, {"input_ids": text})[:, :-1] for text in texts)
    return difference(before, after) > NOISE


def model_loss(case: Case, sentence: Sentence) -> Tensor:
    """Return the loss that the model itself computes of a sentence: a number with a gradient."""
    inputs, labels = {"input_ids": case.ids(sentence)}, case.label(sentence)
    if labels is None and case.model.get_output_embeddings() is None:
        raise NotAsked(f"{type(case.model).__name__} has neither classes nor tokens to predict, so it has no loss")
    if labels is None:
        labels = case.ids(sentence.target, target=True) if sentence.target else inputs["input_ids"]
        if sentence.target is None and not _predicts_next(case, labels):
            labels = _of_words(case, labels)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some models warn of how their loss was computed once
            value: Tensor | None = case.model(**inputs, labels=labels, **without_cache(case.model)).loss
    except (ValueError, RuntimeError) as error:
        raise NotAsked(f"{type(case.model).__name__} computes no loss of a text and its labels alone") from error
    if value is None:
        raise NotAsked(f"{type(case.model).__name__} has no loss of these labels alone")
    ids = inputs["input_ids"]
    if case.label(sentence) is None and sentence.target is None and not _reads_ahead(case, ids):
        of_same, _ = _own_losses(case, ids)
        if of_same <= NOISE:
            raise NotAsked(f"{type(case.model).__name__} does not read ahead, and its own loss is of the same token")
    return value


def _predicts_next(case: Case, ids: Tensor) -> bool:
    """Return whether the next token is predicted: without reading ahead, or because the class shifts its labels."""
    if not _reads_ahead(case, ids):
        return True
    if "labels" not in inspect.signature(case.model.forward).parameters:
        return False
    of_same, of_next = _own_losses(case, ids)
    return of_next < of_same


def _own_losses(case: Case, ids: Tensor) -> tuple[float, float]:
    """Return how far the model's loss is from that of the same tokens and from that of the next ones."""
    with torch.no_grad():
        output = case.model(input_ids=ids, labels=ids, **without_cache(case.model))
    if output.loss is None or output.logits is None:  # of two tasks
        return 0.0, math.inf
    rows = output.logits[0]
    same, following = F.cross_entropy(rows, ids[0]), F.cross_entropy(rows[:-1], ids[0, 1:])
    return difference(output.loss, same), difference(output.loss, following)


def losses(case: Case, gates: Tensor) -> list[Tensor]:
    """Return the losses of each sentence: one vector per sentence, of its tokens, or of its class alone."""
    rows = []
    with mask_heads(case.model, gates):
        if case.model.get_output_embeddings() is None:
            return [model_loss(case, sentence)[None] for sentence in case.corpus]
        for sentence in case.corpus:
            logits = first(case.model(**read(case, sentence), **without_cache(case.model)))
            labels = predicted(case, sentence)
            counted = labels[0] >= 0  # [token]
            rows.append(F.cross_entropy(logits[0][counted], labels[0][counted], reduction="none"))
    return rows


def loss(case: Case, gates: Tensor) -> float:
    """Return the mean loss over all tokens, or over all sentences of a classifier."""
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
    for inputs in (read(case, sentence) for sentence in case.corpus):
        attention: Weights = case.returned_for(inputs)
        for key, weights in attention.items():
            source, target = (_content(case, inputs.get(name)) for name in ("input_ids", "decoder_input_ids"))
            if target is not None:
                target[0] = False  # the decoder's start, whatever else its id stands for
            queries = source if key[0] == "enc-self" or target is None else target
            keys = source if key[0] != "dec-self" or target is None else target
            best.setdefault(key, []).append(weights[0][:, queries][..., keys].amax(-1))  # [head, query]
    return torch.cat([torch.cat(best[site.key], -1).mean(-1) for site in case.sites if site.heads])


def _content(case: Case, ids: Tensor | None) -> Tensor | None:
    """Return the mask of the content tokens of a sentence: bool [token]."""
    return None if ids is None else ~torch.isin(ids[0], torch.tensor(sorted(special(case.tokenizer, case.model))))
