"""Objectives: the target value of each example and step, computed from a model's output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel
from headroles.scores import outputs
from headroles.scores.outputs import Output
from headroles.tables.arguments import one_of

ROWS = 1024  # the loss is computed of so many rows of logits at once: it copies them
SIMILARITY = "the objective 'similarity' (objective=)"  # for models without a head
Name = Literal["top", "reference", "class", "similarity", "loss", "agreement"]


@dataclass(frozen=True)
class Explained:
    """Target values of a batch; ValueError unless `values` and `counted` have one shape."""

    values: Tensor  # of each example and step: [batch, step]
    counted: Tensor  # bool [batch, step]: steps that count, neither padding nor after the end
    chosen: Tensor | None = None  # [batch, step]: tokens or classes that the model chose; None if the corpus has them

    def __post_init__(self) -> None:
        shapes = [tuple(part.shape) for part in (self.values, self.counted)]
        if self.values.ndim != 2 or shapes[0] != shapes[1]:
            raise ValueError(
                f"targets must have values and counted of one shape [batch, step], got {shapes[0]} and {shapes[1]}; "
                f"try values[:, None] for one step of each example"
            )


class Targets(Protocol):
    """Protocol of objects that compute targets: a fitted objective, or a wrapper of one."""

    def targets(self, output: Output, batch: Batch, /) -> Explained:
        """Compute the targets of a batch from the model's output."""


class Objective(ABC):
    """Base class of objectives: `fit` binds one to a model and a corpus, `targets` computes the values of a batch.

    A step is a token if `by_token`, otherwise there is one step per example.
    """

    name: ClassVar[str]
    by_token: ClassVar[bool] = True
    reads: ClassVar[Literal["", "vocabulary", "classes"]] = ""  # the head that the model must have
    model: HeadModel  # of a fitted objective
    fitted_on: Any  # what a fitted objective has computed from the corpus

    def fit(self, model: HeadModel, batches: Iterable[Batch], /) -> Self:  # noqa: ARG002
        """Return a copy fitted to a model and the batches of a corpus; ValueError for a model without such targets."""
        if self.reads == "vocabulary":
            outputs.check_vocabulary(model, f"objective {self.name!r}")
        elif self.reads == "classes":
            _check_classes(model, self.name)
        return self.bound(model)

    def bound(self, model: HeadModel, fitted_on: object = None) -> Self:
        """Return a copy for a model, with values computed from the corpus."""
        fitted = copy(self)
        vars(fitted).update(model=model, fitted_on=fitted_on)  # objectives are frozen
        return fitted

    @abstractmethod
    def targets(self, output: Output, batch: Batch, /) -> Explained:
        """Compute the targets of a batch from the model's output."""


@dataclass(frozen=True)
class Top(Objective):
    """Largest logit of each step (Voita et al. 2019, section 4); on the model's own output, the logit of its tokens."""

    name: ClassVar[Name] = "top"
    reads = "vocabulary"

    def targets(self, output: Output, batch: Batch, /) -> Explained:
        """Compute the logits, over the vocabulary without padding."""
        padding = getattr(self.model.model.config, "pad_token_id", None)
        logits = outputs.logits(self.model, output)
        chosen = logits.detach().argmax(-1)  # [batch, token]
        if padding is not None and (chosen == padding).any():
            free = logits.detach().clone()
            free[..., padding] = -torch.inf
            chosen = free.argmax(-1)
        if batch.is_generated and batch.labels is not None:  # generation forces some tokens with smaller logits
            chosen = torch.where(batch.labels >= 0, batch.labels, chosen)
        return Explained(outputs.picked(logits, chosen), outputs.steps(self.model, batch), chosen)


@dataclass(frozen=True)
class Reference(Objective):
    """Logit of the next token: in the reference, or in the text that a decoder reads."""

    name: ClassVar[Name] = "reference"
    reads = "vocabulary"

    def targets(self, output: Output, batch: Batch, /) -> Explained:
        """Compute the logits of the correct tokens."""
        labels = outputs.labels(self.model, batch)
        return Explained(outputs.picked(outputs.logits(self.model, output), labels.clamp(min=0)), labels >= 0)


@dataclass(frozen=True)
class ClassLogit(Objective):
    """Logit of the class that a classifier predicts, with one output its score, or of the sentence's label.

    Args:
        of: "top" for the predicted class, "label" for the label.
    """

    name: ClassVar[Name] = "class"
    by_token: ClassVar[bool] = False
    reads = "classes"
    of: Literal["top", "label"] = "top"

    def __post_init__(self) -> None:
        one_of("of", self.of, ("top", "label"))

    def fit(self, model: HeadModel, batches: Iterable[Batch], /) -> Self:
        """Check that the model is a classifier and, if labels are explained, that each text has one class."""
        fitted = super().fit(model, batches)
        if self.of == "label":
            outputs.check_chooses(model, "the logit of a label")
        return fitted

    def targets(self, output: Output, batch: Batch, /) -> Explained:
        """Compute one logit per sentence, or per word that has a label."""
        chosen = outputs.classes(self.model, batch) if self.of == "label" else output.logits.detach().argmax(-1)
        if self.of == "top" and batch.is_generated and batch.labels is not None:
            chosen = batch.labels.reshape(chosen.shape)
        explained = of_steps(self.model, batch, outputs.picked(output.logits, chosen.clamp(min=0)))
        return replace(explained, chosen=chosen.reshape(explained.values.shape))


@dataclass(frozen=True)
class Similarity(Objective):
    """Product of a sentence's mean state and the unit mean state of its nearest sentence in the corpus."""

    name: ClassVar[Name] = "similarity"
    by_token: ClassVar[bool] = False

    def fit(self, model: HeadModel, batches: Iterable[Batch], /) -> Self:
        """Embed the whole corpus."""
        numbers: list[int] = []
        embedded: list[Tensor] = []
        with torch.no_grad():
            for batch in batches:
                state = outputs.mean_state(model.forward(batch), batch, model)
                embedded.append(F.normalize(state.float(), dim=-1))
                numbers += batch.numbers
        if len(numbers) < 2:
            raise ValueError(f"objective 'similarity' needs 2 sentences or more, got {len(numbers)}")
        rows = {number: row for row, number in enumerate(numbers)}
        return self.bound(model, (torch.cat(embedded), rows))  # [sentence, width]

    def targets(self, output: Output, batch: Batch, /) -> Explained:
        """Compute one product per sentence."""
        units, places = self.fitted_on
        rows = torch.tensor([places[number] for number in batch.numbers], device=units.device)
        near = units[rows] @ units.T  # [batch, sentence]
        near[torch.arange(len(rows)), rows] = -torch.inf
        state = outputs.mean_state(output, batch, self.model)
        return _single(outputs.weighted(state, units[near.argmax(-1)]))


@dataclass(frozen=True)
class Loss(Objective):
    """Cross-entropy in nats of each token of the reference (or the text), or of the label of a sentence or word.

    For a classifier that predicts a score it is the squared error, and with any number of classes per text the mean
    binary cross-entropy.
    """

    name: ClassVar[Name] = "loss"

    def fit(self, model: HeadModel, batches: Iterable[Batch], /) -> Self:
        """Check that the model has logits."""
        check_loss(model)
        return super().fit(model, batches)

    def targets(self, output: Output, batch: Batch, /) -> Explained:
        """Compute the loss of each token if the model has a vocabulary, of each word, or of each sentence."""
        if not outputs.by_token(self.model):
            return _single(outputs.label_loss(self.model, output.logits, batch))
        labels = outputs.labels(self.model, batch)
        rows = zip(outputs.logits(self.model, output), labels, strict=True)
        losses = [torch.cat([*map(_cross_entropy, row.split(ROWS), label.split(ROWS))]) for row, label in rows]
        return Explained(torch.stack(losses), labels >= 0)


@dataclass(frozen=True)
class Agreement(Objective):
    """Whether the prediction equals the intact model's, or for an encoder the cosine with its intact mean state.

    Predictions have no gradient, so that this is a metric only.
    """

    name: ClassVar[Name] = "agreement"

    def fit(self, model: HeadModel, batches: Iterable[Batch], /) -> Self:
        """Keep the predictions of the intact model for the corpus."""
        outputs.check_chooses(model, "agreement")
        intact: dict[int, Tensor] = {}
        with torch.no_grad():
            for batch in batches:
                output = model.forward(batch)
                for number, choice in zip(batch.numbers, outputs.choices(output, batch, model), strict=True):
                    intact[number] = choice.reshape(-1)
        return self.bound(model, intact)

    def targets(self, output: Output, batch: Batch, /) -> Explained:
        """Compare each token, class or state with the intact model's."""
        now = outputs.choices(output, batch, self.model)
        before = torch.nn.utils.rnn.pad_sequence([self.fitted_on[number] for number in batch.numbers], batch_first=True)
        if not outputs.has_vocabulary(self.model) and not outputs.has_classes(self.model):
            return _single(F.cosine_similarity(now, before, dim=-1))
        before = before[:, : now.shape[1]] if outputs.by_token(self.model) else before[:, 0]
        return of_steps(self.model, batch, (now == before).float())


OBJECTIVES: dict[str, type[Objective]] = {
    cls.name: cls for cls in (Top, Reference, ClassLogit, Similarity, Loss, Agreement)
}


def objective(name: Name | Objective | None, model: HeadModel) -> Objective:
    """Return the objective of a name; for None, the first of "top", "class", "similarity" that the model has."""
    model.check_weights("output")
    if isinstance(name, Objective):
        return name
    if name is None:
        return Top() if outputs.has_vocabulary(model) else ClassLogit() if outputs.has_classes(model) else Similarity()
    return OBJECTIVES[one_of("objective", name, OBJECTIVES)]()


def held(model: HeadModel, target: Targets, batch: Batch) -> Batch:
    """Return the batch with the intact model's choices as labels, so that targets stay the same under masks."""
    with torch.no_grad():
        explained = target.targets(model.forward(batch), batch)
    if explained.chosen is None:
        return batch
    return replace(batch, labels=torch.where(explained.counted, explained.chosen, -100), is_generated=True)


def reads_labels(objective: Objective, model: HeadModel) -> bool:
    """Return whether an objective needs the labels of a classifier's sentences."""
    of_label = isinstance(objective, ClassLogit) and objective.of == "label"
    return outputs.has_classes(model) and (isinstance(objective, Loss) or of_label)


def check_loss(model: HeadModel, instead: str = SIMILARITY) -> None:
    """Raise ValueError for a model without a loss; it says what to try `instead` for a model of hidden states."""
    if not outputs.has_vocabulary(model):
        _check_classes(model, Loss.name, instead)


def _check_classes(model: HeadModel, name: str, instead: str = SIMILARITY) -> None:
    if outputs.has_vocabulary(model):
        raise ValueError(f"objective {name!r} needs a classifier, got {model.name}, which predicts tokens; try 'top'")
    if not outputs.has_classes(model):
        raise ValueError(
            f"objective {name!r} needs a model that classifies or predicts tokens, got {model.name}; try {instead}, or "
            f"load the model with its head"
        )


def of_steps(model: HeadModel, batch: Batch, values: Tensor) -> Explained:
    """Return values of tokens, [batch, token], where only steps count, or of examples, [batch]."""
    return Explained(values, outputs.steps(model, batch)) if outputs.by_token(model) else _single(values)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), labels, reduction="none")


def _single(values: Tensor) -> Explained:
    return Explained(values[:, None], torch.ones_like(values[:, None], dtype=torch.bool))
