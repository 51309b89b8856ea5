"""What is measured, or explained, when heads are touched: one number per example and step, from a model's output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from headroles.models.batching import Batch
from headroles.models.dummy_inputs import without_cache
from headroles.scores import outputs

Name = Literal["top", "reference", "class", "similarity", "loss", "agreement"]


class Explained(NamedTuple):
    """What is explained of a batch: a number for each example and step, and which of them count."""

    values: Tensor  # [batch, step]
    counted: Tensor  # bool [batch, step]: neither padding nor after the end
    chosen: Tensor | None = None  # [batch, step]: the tokens or classes, where the model chose them itself


Groups = Callable[[], Iterable[Batch]]  # all batches of a corpus, once more at every call
Explain = Callable[[Any, Batch], Explained]  # of a model's output and the batch it is of


class Objective(ABC):
    """A number per step to explain. A step is a token where `by_token`, otherwise there is one per example."""

    name: ClassVar[Name]
    by_token: ClassVar[bool] = True

    @abstractmethod
    def explain(self, model: PreTrainedModel, groups: Groups, /) -> Explain:
        """What to explain of each batch; `groups()` are all batches, for what must be known of them beforehand.

        Raises ValueError where the model or the corpus does not have it.
        """


@dataclass(frozen=True)
class Top(Objective):
    """The largest logit of each step (Voita et al. 2019, section 4); on a model's own output that of what it wrote."""

    name: ClassVar[Name] = "top"

    def explain(self, model: PreTrainedModel, _: Groups, /) -> Explain:
        """Logits over the vocabulary, padding's left out."""
        _needs_vocabulary(model, self.name)
        padding = getattr(model.config, "pad_token_id", None)

        def top(output: Any, batch: Batch) -> Explained:
            logits = output.logits
            chosen = logits.detach().argmax(-1)  # [batch, token]
            if padding is not None and (chosen == padding).any():
                free = logits.detach().clone()
                free[..., padding] = -torch.inf
                chosen = free.argmax(-1)
            if batch.own and batch.labels is not None:  # a forced token is written though its logit is not the largest
                chosen = torch.where(batch.labels >= 0, batch.labels, chosen)
            return Explained(outputs.picked(logits, chosen), outputs.steps(model, batch), chosen)

        return top


@dataclass(frozen=True)
class Reference(Objective):
    """The logit of the token that stands next: in the reference, or in the text that a decoder reads."""

    name: ClassVar[Name] = "reference"

    def explain(self, model: PreTrainedModel, _: Groups, /) -> Explain:
        """The same logits as `Top`, of given tokens."""
        _needs_vocabulary(model, self.name)

        def reference(output: Any, batch: Batch) -> Explained:
            labels = outputs.labels(model, batch)
            return Explained(outputs.picked(output.logits, labels.clamp(min=0)), labels >= 0)

        return reference


@dataclass(frozen=True)
class ClassLogit(Objective):
    """The logit of the class a classifier chooses, or with `of="label"` of the sentence's label."""

    name: ClassVar[Name] = "class"
    by_token: ClassVar[bool] = False
    of: Literal["top", "label"] = "top"

    def __post_init__(self) -> None:
        if self.of not in ("top", "label"):
            raise ValueError(f"a class logit is of the 'top' class or of the sentence's 'label'; got {self.of!r}")

    def explain(self, model: PreTrainedModel, _: Groups, /) -> Explain:
        """One step per sentence."""
        _needs_classes(model, self.name)

        def of_class(output: Any, batch: Batch) -> Explained:
            chosen = outputs.classes(model, batch) if self.of == "label" else output.logits.detach().argmax(-1)
            if self.of == "top" and batch.own and batch.labels is not None:
                chosen = batch.labels[:, 0]
            return _single(outputs.picked(output.logits, chosen))._replace(chosen=chosen[:, None])

        return of_class


@dataclass(frozen=True)
class Similarity(Objective):
    """The product of a sentence's mean state and the unit mean state of the sentence of the corpus nearest to it."""

    name: ClassVar[Name] = "similarity"
    by_token: ClassVar[bool] = False

    def explain(self, model: PreTrainedModel, groups: Groups, /) -> Explain:
        """All sentences are embedded first; one step per sentence."""
        numbers: list[int] = []
        embedded: list[Tensor] = []
        with torch.no_grad():
            for batch in groups():
                state = outputs.mean_state(model(**batch.inputs, **without_cache(model)), batch, model)
                embedded.append(F.normalize(state.float(), dim=-1))
                numbers += batch.numbers
        if len(numbers) < 2:
            raise ValueError("objective 'similarity' compares the sentences of a corpus, and this one has a single")
        units = torch.cat(embedded)  # [sentence, width]
        place = {number: row for row, number in enumerate(numbers)}

        def similarity(output: Any, batch: Batch) -> Explained:
            rows = torch.tensor([place[number] for number in batch.numbers], device=units.device)
            near = units[rows] @ units.T  # [batch, sentence]
            near[torch.arange(len(rows)), rows] = -torch.inf
            return _single(outputs.weighted(outputs.mean_state(output, batch, model), units[near.argmax(-1)]))

        return similarity


@dataclass(frozen=True)
class Loss(Objective):
    """Cross-entropy in nats: of each token of the reference (or the text), or of a sentence's label."""

    name: ClassVar[Name] = "loss"

    def explain(self, model: PreTrainedModel, _: Groups, /) -> Explain:
        """Per token where the model has a vocabulary, otherwise one step per sentence."""
        if not outputs.has_vocabulary(model):
            _needs_classes(model, self.name)

        def loss(output: Any, batch: Batch) -> Explained:
            if not outputs.has_vocabulary(model):
                return _single(F.cross_entropy(output.logits.float(), outputs.classes(model, batch), reduction="none"))
            labels = outputs.labels(model, batch)
            flat = output.logits.float().flatten(0, 1), labels.flatten()  # twice as fast as with classes in the middle
            return Explained(F.cross_entropy(*flat, reduction="none").view(labels.shape), labels >= 0)

        return loss


@dataclass(frozen=True)
class Agreement(Objective):
    """Whether the intact model's choice is still the first, or, of an encoder, the cosine with its intact mean state.

    A measure, not an explanation: choices have no gradient.
    """

    name: ClassVar[Name] = "agreement"

    def explain(self, model: PreTrainedModel, groups: Groups, /) -> Explain:
        """The intact model reads all first; one step per token, class or state."""
        intact: dict[int, Tensor] = {}
        with torch.no_grad():
            for batch in groups():
                output = model(**batch.inputs, **without_cache(model))
                for number, choice in zip(batch.numbers, outputs.choices(output, batch, model), strict=True):
                    intact[number] = choice.reshape(-1)

        def agreement(output: Any, batch: Batch) -> Explained:
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


def objective(given: Name | Objective | None, model: PreTrainedModel) -> Objective:
    """The objective of a name; None: "top" for a vocabulary, "class" for a classifier, otherwise "similarity"."""
    if isinstance(given, Objective):
        return given
    if given is None:
        return Top() if outputs.has_vocabulary(model) else ClassLogit() if outputs.has_classes(model) else Similarity()
    if given not in OBJECTIVES:
        raise ValueError(f"unknown objective {given!r}; known: {', '.join(OBJECTIVES)}")
    return OBJECTIVES[given]()


def held(model: PreTrainedModel, explain: Explain, batch: Batch) -> Batch:
    """The batch with what the model chooses written down, so that the same is explained when its heads are touched."""
    with torch.no_grad():
        explained = explain(model(**batch.inputs, **without_cache(model)), batch)
    if explained.chosen is None:
        return batch
    return replace(batch, labels=torch.where(explained.counted, explained.chosen, -100), own=True)


def reads_labels(objective: Objective, model: PreTrainedModel) -> bool:
    """Whether an objective compares what a classifier says with labels."""
    of_label = isinstance(objective, ClassLogit) and objective.of == "label"
    return outputs.has_classes(model) and (isinstance(objective, Loss) or of_label)


def _needs_vocabulary(model: PreTrainedModel, name: str) -> None:
    if not outputs.has_vocabulary(model):
        raise ValueError(
            f"objective {name!r} is a logit over a vocabulary, and {type(model).__name__} puts out none; "
            f"use {'class' if outputs.has_classes(model) else 'similarity'!r}, or load the model with its head"
        )


def _needs_classes(model: PreTrainedModel, name: str) -> None:
    if outputs.has_vocabulary(model):
        raise ValueError(
            f"objective {name!r} needs a classifier, and {type(model).__name__} predicts tokens; use 'top'"
        )
    if not outputs.has_classes(model):
        raise ValueError(
            f"objective {name!r} needs a model that classifies or predicts tokens; {type(model).__name__} puts out "
            f"states only: use 'similarity', or load the model with its head"
        )


def _single(values: Tensor) -> Explained:
    return Explained(values[:, None], torch.ones_like(values[:, None], dtype=torch.bool))
