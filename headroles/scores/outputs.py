"""What a model's output says, and what it should have said: logits, choices, labels, states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from headroles.models import loading
from headroles.models.batching import Batch
from headroles.scores.labels import LABELLED


def has_vocabulary(model: PreTrainedModel) -> bool:
    """Whether a model puts out logits over a vocabulary."""
    return model.get_output_embeddings() is not None


def has_classes(model: PreTrainedModel) -> bool:
    """Whether a model gives each example one class."""
    return type(model).__name__.endswith(("SequenceClassification", "ImageClassification", "AudioClassification"))


def labels(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The token each step should give, -100 where none: [batch, token]. A masked model's is the token itself."""
    if batch.labels is not None:
        return batch.labels
    side = batch.source
    if not loading.causal(model):
        return torch.where(side.content, side.ids, -100)
    after = torch.where(side.attention_mask, side.ids, -100).roll(-1, dims=1)
    after[:, -1] = -100
    return after


def steps(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The steps that count: [batch, token]."""
    return labels(model, batch) >= 0


def classes(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The class of each sentence's label: [batch]."""
    given = [None if sentence is None else sentence.label for sentence in batch.source.sentences]
    return torch.tensor(numbered(model, given), device=batch.source.ids.device)


def numbered(model: PreTrainedModel, given: Sequence[str | None]) -> list[int]:
    """The classes of labels, by the names the model has for them or by number. Raises ValueError for another."""
    config: Any = model.config
    known = {str(name): int(number) for name, number in (config.label2id or {}).items()}
    known |= {str(number): number for number in range(config.num_labels) if str(number) not in known}
    for label in given:
        if label is None:
            raise ValueError(f"a sentence has no label; {LABELLED}")
        if label not in known:
            raise ValueError(f"label {label!r} is none of the classes of {type(model).__name__}: {', '.join(known)}")
    return [known[str(label)] for label in given]


def mean_state(output: Any, batch: Batch, model: PreTrainedModel) -> Tensor:
    """The mean over a sentence's tokens, special ones included, of the last states: [batch, width]."""
    states = getattr(output, "last_hidden_state", None)
    if states is None:
        raise ValueError(
            f"objective 'similarity' needs states, and {type(model).__name__} puts out logits; use its body"
        )
    side = batch.source if batch.target is None else batch.target
    attention_mask = side.attention_mask.to(states.dtype)
    return weighted(states.transpose(1, 2), attention_mask / attention_mask.sum(-1, keepdim=True))


def weighted(values: Tensor, weights: Tensor) -> Tensor:
    """Each example's values [batch, ..., n] summed by weights of its own [batch, n]: [batch, ...].

    A linear map of all examples, of which each takes its part, so that rule sets know it for one.
    """
    return F.linear(values, weights).diagonal(dim1=0, dim2=-1).movedim(-1, 0)


def picked(logits: Tensor, chosen: Tensor) -> Tensor:
    """The logits, [...], of the tokens or classes chosen."""
    return logits.gather(-1, chosen[..., None]).squeeze(-1)


def choices(output: Any, batch: Batch, model: PreTrainedModel) -> Tensor:
    """The largest logit of each step [batch, token] or sentence [batch], or the mean state [batch, width]."""
    if has_vocabulary(model) or has_classes(model):
        return output.logits.argmax(-1)  # type: ignore[no-any-return]
    return mean_state(output, batch, model)
