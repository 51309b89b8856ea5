"""Objectives: the target value of each example and step, computed from a model's output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from headroles.models.attention_hooks import without_cache
from headroles.models.batching import Batch
from headroles.scores import outputs
from headroles.scores.outputs import Output

Name = Literal["top", "reference", "class", "similarity", "loss", "agreement"]


class Explained(NamedTuple):
    """Target values of a batch."""

    values: Tensor  # of each example and step: [batch, step]
    counted: Tensor  # bool [batch, step]: steps that count, neither padding nor after the end
    chosen: Tensor | None = None  # [batch, step]: tokens or classes that the model chose; None if the corpus has them


Groups = Callable[[], Iterable[Batch]]  # all batches of a corpus, from the start at every call
Explain = Callable[[Output, Batch], Explained]  # (model output, batch) -> targets


class Objective(ABC):
    """Base class of objectives. A step is a token if `by_token`, otherwise there is one step per example."""

    name: ClassVar[str]
    by_token: ClassVar[bool] = True

    @abstractmethod
    def explain(self, model: PreTrainedModel, groups: Groups, /) -> Explain:
        """Return the function that computes targets; ValueError where the model or the corpus lacks such targets."""


@dataclass(frozen=True)
class Top(Objective):
    """Largest logit of each step (Voita et al. 2019, section 4); on the model's own output, the logit of its tokens."""

    name: ClassVar[Name] = "top"

    def explain(self, model: PreTrainedModel, _: Groups, /) -> Explain:
        """Return the targets: logits over the vocabulary without padding."""
        _needs_vocabulary(model, self.name)
        padding = getattr(model.config, "pad_token_id", None)

        def top(output: Output, batch: Batch) -> Explained:
            logits = output.logits
            chosen = logits.detach().argmax(-1)  # [batch, token]
            if padding is not None and (chosen == padding).any():
                free = logits.detach().clone()
                free[..., padding] = -torch.inf
                chosen = free.argmax(-1)
            if batch.own and batch.labels is not None:  # generation forces some tokens with smaller logits
                chosen = torch.where(batch.labels >= 0, batch.labels, chosen)
            return Explained(outputs.picked(logits, chosen), outputs.steps(model, batch), chosen)

        return top


@dataclass(frozen=True)
class Reference(Objective):
    """Logit of the next token: in the reference, or in the text that a decoder reads."""

    name: ClassVar[Name] = "reference"

    def explain(self, model: PreTrainedModel, _: Groups, /) -> Explain:
        """Return the targets: logits of the correct tokens."""
        _needs_vocabulary(model, self.name)

        def reference(output: Output, batch: Batch) -> Explained:
            labels = outputs.labels(model, batch)
            return Explained(outputs.picked(output.logits, labels.clamp(min=0)), labels >= 0)

        return reference


@dataclass(frozen=True)
class ClassLogit(Objective):
    """Logit of the class that a classifier predicts, or of the sentence's label.

    Args:
        of: "top" for the predicted class, "label" for the label.
    """

    name: ClassVar[Name] = "class"
    by_token: ClassVar[bool] = False
    of: Literal["top", "label"] = "top"

    def __post_init__(self) -> None:
        if self.of not in ("top", "label"):
            raise ValueError(f"unknown class of a class logit: got of={self.of!r}; expected 'top' or 'label'")

    def explain(self, model: PreTrainedModel, _: Groups, /) -> Explain:
        """Return the targets: one logit per sentence."""
        _needs_classes(model, self.name)

        def of_class(output: Output, batch: Batch) -> Explained:
            chosen = outputs.classes(model, batch) if self.of == "label" else output.logits.detach().argmax(-1)
            if self.of == "top" and batch.own and batch.labels is not None:
                chosen = batch.labels[:, 0]
            return _single(outputs.picked(output.logits, chosen))._replace(chosen=chosen[:, None])

        return of_class


@dataclass(frozen=True)
class Similarity(Objective):
    """Product of a sentence's mean state and the unit mean state of its nearest sentence in the corpus."""

    name: ClassVar[Name] = "similarity"
    by_token: ClassVar[bool] = False

    def explain(self, model: PreTrainedModel, groups: Groups, /) -> Explain:
        """Return the targets, one per sentence, after embedding the whole corpus."""
        numbers: list[int] = []
        embedded: list[Tensor] = []
        with torch.no_grad():
            for batch in groups():
                state = outputs.mean_state(model(**batch.inputs, **without_cache(model)), batch, model)
                embedded.append(F.normalize(state.float(), dim=-1))
                numbers += batch.numbers
        if len(numbers) < 2:
            raise ValueError(
                f"objective 'similarity' compares sentences: got a corpus of {len(numbers)}; expected 2 or more; try "
                f"another objective"
            )
        units = torch.cat(embedded)  # [sentence, width]
        place = {number: row for row, number in enumerate(numbers)}

        def similarity(output: Output, batch: Batch) -> Explained:
            rows = torch.tensor([place[number] for number in batch.numbers], device=units.device)
            near = units[rows] @ units.T  # [batch, sentence]
            near[torch.arange(len(rows)), rows] = -torch.inf
            return _single(outputs.weighted(outputs.mean_state(output, batch, model), units[near.argmax(-1)]))

        return similarity


@dataclass(frozen=True)
class Loss(Objective):
    """Cross-entropy in nats of each token of the reference (or the text), or of a sentence's label."""

    name: ClassVar[Name] = "loss"

    def explain(self, model: PreTrainedModel, _: Groups, /) -> Explain:
        """Return the targets: one per token if the model has a vocabulary, otherwise one per sentence."""
        if not outputs.has_vocabulary(model):
            _needs_classes(model, self.name)

        def loss(output: Output, batch: Batch) -> Explained:
            if not outputs.has_vocabulary(model):
                return _single(F.cross_entropy(output.logits.float(), outputs.classes(model, batch), reduction="none"))
            labels = outputs.labels(model, batch)
            flat = output.logits.float().flatten(0, 1), labels.flatten()  # twice as fast as with classes in the middle
            return Explained(F.cross_entropy(*flat, reduction="none").view(labels.shape), labels >= 0)

        return loss


@dataclass(frozen=True)
class Agreement(Objective):
    """Whether the prediction equals the intact model's, or for an encoder the cosine with its intact mean state.

    A metric only: predictions have no gradient.
    """

    name: ClassVar[Name] = "agreement"

    def explain(self, model: PreTrainedModel, groups: Groups, /) -> Explain:
        """Return the targets, one per token, class or state, after a pass of the intact model over the corpus."""
        intact: dict[int, Tensor] = {}
        with torch.no_grad():
            for batch in groups():
                output = model(**batch.inputs, **without_cache(model))
                for number, choice in zip(batch.numbers, outputs.choices(output, batch, model), strict=True):
                    intact[number] = choice.reshape(-1)

        def agreement(output: Output, batch: Batch) -> Explained:
            now = outputs.choices(output, batch, model)
            before = torch.nn.utils.rnn.pad_sequence([intact[number] for number in batch.numbers], batch_first=True)
            if not outputs.has_vocabulary(model) and not outputs.has_classes(model):
                return _single(F.cosine_similarity(now, before, dim=-1))
            if not outputs.has_vocabulary(model):
                return _single((now == before[:, 0]).float())
            return Explained((now == before[:, : now.shape[1]]).float(), outputs.steps(model, batch))

        return agreement


OBJECTIVES: dict[str, type[Objective]] = {
    cls.name: cls for cls in (Top, Reference, ClassLogit, Similarity, Loss, Agreement)
}


def objective(name: Name | Objective | None, model: PreTrainedModel) -> Objective:
    """Return the objective of a name; for None "top", "class" or "similarity", as the model has a head."""
    if isinstance(name, Objective):
        return name
    if name is None:
        return Top() if outputs.has_vocabulary(model) else ClassLogit() if outputs.has_classes(model) else Similarity()
    if name not in OBJECTIVES:
        raise ValueError(f"unknown objective {name!r}; known: {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]()


def held(model: PreTrainedModel, explain: Explain, batch: Batch) -> Batch:
    """Return the batch with the intact model's choices as labels, so that targets stay the same under masks."""
    with torch.no_grad():
        explained = explain(model(**batch.inputs, **without_cache(model)), batch)
    if explained.chosen is None:
        return batch
    return replace(batch, labels=torch.where(explained.counted, explained.chosen, -100), own=True)


def reads_labels(objective: Objective, model: PreTrainedModel) -> bool:
    """Return whether an objective needs the labels of a classifier's sentences."""
    of_label = isinstance(objective, ClassLogit) and objective.of == "label"
    return outputs.has_classes(model) and (isinstance(objective, Loss) or of_label)


def _needs_vocabulary(model: PreTrainedModel, name: str) -> None:
    if not outputs.has_vocabulary(model):
        raise ValueError(
            f"objective {name!r} needs logits over a vocabulary: {type(model).__name__} has none; "
            f"try {'class' if outputs.has_classes(model) else 'similarity'!r}, or load the model with its head"
        )


def _needs_classes(model: PreTrainedModel, name: str) -> None:
    if outputs.has_vocabulary(model):
        raise ValueError(f"objective {name!r} needs a classifier: {type(model).__name__} predicts tokens; try 'top'")
    if not outputs.has_classes(model):
        raise ValueError(
            f"objective {name!r} needs a model that classifies or predicts tokens: {type(model).__name__} has hidden "
            f"states only; try 'similarity', or load the model with its head"
        )


def _single(values: Tensor) -> Explained:
    return Explained(values[:, None], torch.ones_like(values[:, None], dtype=torch.bool))
