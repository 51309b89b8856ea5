"""Model outputs and their labels: logits, predictions, classes, hidden states, and the classes of a corpus."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from headroles.data.corpus import Corpus
from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel

LABELLED = "give a table with a column of labels (label= names it) that has a label in each row"
_SHOWN = 5


class Output(Protocol):
    """The output of a model with a head; one without has `last_hidden_state` instead."""

    logits: Tensor


def has_vocabulary(model: HeadModel) -> bool:
    """Return whether a model predicts tokens of a vocabulary."""
    return model.model.get_output_embeddings() is not None


def has_classes(model: HeadModel) -> bool:
    """Return whether a model predicts one class for each example."""
    return model.name.endswith(("SequenceClassification", "ImageClassification", "AudioClassification"))


def labels(model: HeadModel, batch: Batch) -> Tensor:
    """Return the correct token of each step, -100 for none; a masked model's is the token itself: [batch, token]."""
    if batch.labels is not None:
        return batch.labels
    view = batch.source
    if not causal(model):
        return torch.where(view.content, view.ids, -100)
    after = torch.where(view.attention_mask, view.ids, -100).roll(-1, dims=1)
    after[:, -1] = -100
    return after


def steps(model: HeadModel, batch: Batch) -> Tensor:
    """Return which steps have a correct token: bool [batch, token]."""
    return labels(model, batch) >= 0


def classes(model: HeadModel, batch: Batch) -> Tensor:
    """Return the class number of each sentence's label: [batch]."""
    names = [None if sentence is None else sentence.label for sentence in batch.source.sentences]
    return torch.tensor(numbered(model, names), device=batch.source.ids.device)


def numbered(model: HeadModel, names: Sequence[str | None]) -> list[int]:
    """Return the class numbers of labels, given by the model's own names of its classes or by number."""
    config = model.config
    known = {str(name): int(number) for name, number in (config.label2id or {}).items()}
    known |= {str(number): number for number in range(config.num_labels or 0) if str(number) not in known}
    for label in names:
        if label is None:
            raise ValueError(f"a sentence has no label; {LABELLED}")
        if label not in known:
            raise ValueError(f"label {label!r} is not a class of {model.name}; known: {', '.join(known)}")
    return [known[str(label)] for label in names]


def mean_state(output: Output, batch: Batch, model: HeadModel) -> Tensor:
    """Return the mean last hidden state of each sentence, special tokens included: [batch, width]."""
    states = getattr(output, "last_hidden_state", None)
    if states is None:
        raise ValueError(
            f"objective 'similarity' needs hidden states: got the logits of {model.name}; expected a model "
            f"without a head; try model.base_model"
        )
    view = batch.source if batch.target is None else batch.target
    attention_mask = view.attention_mask.to(states.dtype)
    return weighted(states.transpose(1, 2), attention_mask / attention_mask.sum(-1, keepdim=True))


def weighted(values: Tensor, weights: Tensor) -> Tensor:
    """Return the sum of each example's values [batch, ..., n] with its own weights [batch, n]: [batch, ...].

    Computed as a linear map of all examples, of which each takes its part, so that LRP rules apply to it.
    """
    return F.linear(values, weights).diagonal(dim1=0, dim2=-1).movedim(-1, 0)


def picked(logits: Tensor, chosen: Tensor) -> Tensor:
    """Return the logits of the chosen tokens or classes: [...]."""
    return logits.gather(-1, chosen[..., None]).squeeze(-1)


def choices(output: Output, batch: Batch, model: HeadModel) -> Tensor:
    """Return predicted tokens [batch, token], classes [batch], or mean states [batch, width]."""
    if has_vocabulary(model) or has_classes(model):
        return output.logits.argmax(-1)
    return mean_state(output, batch, model)


def check_labels(corpus: Corpus) -> None:
    """Raise ValueError unless every sentence of a corpus has a label."""
    if lacking := sum(not sentence.label for sentence in corpus):
        some = "no labels" if lacking == len(corpus) else f"no label for {lacking} of its {len(corpus)} sentences"
        raise ValueError(f"corpus {corpus.name!r} has {some}; {LABELLED}")


def class_names(corpus: Corpus) -> list[str]:
    """Return the sorted labels of a corpus; ValueError where some are missing, or they are not two or more classes."""
    check_labels(corpus)
    labels = sorted({str(sentence.label) for sentence in corpus})
    listed = f"{', '.join(map(repr, labels[:_SHOWN]))}{', ...' if len(labels) > _SHOWN else ''}"
    subject = f"the labels of corpus {corpus.name!r} are {listed}"
    numbers = [label for label in labels if _is_number(label)]
    if len(labels) < 2:
        raise ValueError(f"{subject}; a classifier needs at least two")
    if 0 < len(numbers) < len(labels):
        raise ValueError(f"{subject}: some are numbers, others words; expected the names of classes, or their numbers")
    if parts := [label for label in numbers if not float(label).is_integer()]:
        raise ValueError(f"{subject}: {parts[0]!r} is a value on a scale; expected classes, by name or whole number")
    if len({label.casefold() for label in labels}) < len(labels):
        raise ValueError(f"{subject}: some differ only in case; write each class in one way")
    return labels


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def causal(model: HeadModel) -> bool:
    """Return whether a model without an encoder predicts the next token: no query of it attends to a later key.

    The attention of one forward says so. A name does not: `FlaubertWithLMHeadModel` predicts masked tokens.
    """
    if model.config.is_encoder_decoder or not model.sites:
        return False
    return all(site.kind != "enc-self" for site in model.sites)
