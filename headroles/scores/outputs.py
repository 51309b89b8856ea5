"""Outputs of models and their labels: logits, predictions, classes, hidden states, and the classes of a corpus."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from headroles.data.corpus import Corpus
from headroles.data.sentences import NO_NAME, ClassName, Sentence, Tagged
from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel
from headroles.models.tokens.alignment import NO_WORD
from headroles.tables.arguments import one_of

WORDED = "give rows with words in tokens, and in ner_tags or labels a label of each (label= names another column)"
LABELLED = "give a table with a column label that has a label in each row (in Python label= names another column)"
_SHOWN = 5


class Output(Protocol):
    """The output of a model."""

    logits: Tensor


def logits(model: HeadModel, output: Output) -> Tensor:
    """Return the logits over classes or over the vocabulary; models of two tasks call them `prediction_logits`."""
    if getattr(output, "logits", None) is not None or not has_vocabulary(model):
        return output.logits
    size = len(model.model.get_output_embeddings().weight)
    values = (value for value in vars(output).values() if isinstance(value, Tensor))
    return next(value for value in values if value.ndim == 3 and value.shape[-1] == size)


def has_vocabulary(model: HeadModel) -> bool:
    """Return whether a model predicts tokens of a vocabulary."""
    return model.model.get_output_embeddings() is not None


def check_vocabulary(model: HeadModel, what: str) -> None:
    """Raise ValueError for a model without logits over a vocabulary."""
    if not has_vocabulary(model):
        other = "class" if has_classes(model) else "similarity"
        raise ValueError(
            f"{what} needs logits over a vocabulary, got {model.name} without; load the model with its language-model "
            f"head, or try the objective {other!r}"
        )


def has_classes(model: HeadModel) -> bool:
    """Return whether a model predicts classes of each example or word, or scores."""
    return not has_vocabulary(model) and bool(model.classifies)


def labels_words(model: HeadModel) -> bool:
    """Return whether a model predicts classes of words, which are read at the first token of each."""
    return not has_vocabulary(model) and model.classifies == "words"


def by_token(model: HeadModel) -> bool:
    """Return whether the logits of a model are those of tokens: [batch, token, ...]."""
    return has_vocabulary(model) or labels_words(model)


def problem(model: HeadModel) -> str:
    """Return the type of a classifier's loss, as transformers names it.

    "single_label_classification", "regression" or "multi_label_classification".
    """
    config = model.model.config
    usual = "regression" if config.num_labels == 1 else "single_label_classification"
    return str(getattr(config, "problem_type", None) or usual)


def chooses(model: HeadModel) -> bool:
    """Return whether a model predicts one of several classes."""
    return has_classes(model) and problem(model) == "single_label_classification"


def check_chooses(model: HeadModel, what: str) -> None:
    """Raise ValueError for a classifier that does not choose one of several classes."""
    if has_classes(model) and not chooses(model):
        raise ValueError(
            f"{what} needs a model that chooses one of several classes, got {model.name} ({problem(model)}); try "
            f"'loss' or 'class'"
        )


def label_values(model: HeadModel, names: Sequence[str | None]) -> list[int] | list[float] | list[list[float]]:
    """Return the targets of a classifier: class numbers, scores, or 1 for each class of a text and 0 for the others."""
    if problem(model) == "regression":
        return [_score(model, label) for label in names]
    if problem(model) != "multi_label_classification":
        return numbered(model, names)
    rows = [[0.0] * model.model.config.num_labels for _ in names]  # type: ignore[operator]
    for row, label in zip(rows, names, strict=True):
        is_one = label is None or isinstance(label, ClassName) or label in _class_numbers(model)
        several = [label] if is_one else map(str.strip, str(label).split(","))
        for number in numbered(model, list(several)):
            row[number] = 1.0
    return rows


def label_loss(model: HeadModel, logits: Tensor, batch: Batch) -> Tensor:
    """Return the model's own loss of each example, [batch], from logits [batch, class]."""
    labels = torch.tensor(label_values(model, label_names(batch)), device=logits.device)
    if problem(model) == "regression":
        return F.mse_loss(logits.float().flatten(), labels.float(), reduction="none")
    if problem(model) == "multi_label_classification":
        return F.binary_cross_entropy_with_logits(logits.float(), labels.float(), reduction="none").mean(-1)
    return F.cross_entropy(logits.float(), labels, reduction="none")


def labels(model: HeadModel, batch: Batch) -> Tensor:
    """Return the correct token of each step, -100 for none: [batch, token].

    It is the next token if the model's own loss is of that, also where it attends both ways, otherwise the token
    itself, as for a masked model. For a model that labels words it is the class of a word, at its first token.
    """
    if batch.labels is not None:
        return batch.labels
    view = batch.source
    if labels_words(model):
        return torch.tensor(word_labels(model, view.sentences, view.words.tolist()), device=view.ids.device)
    learned = view.attention_mask if batch.learned is None else batch.learned
    if not model.predicts_next:
        return torch.where(view.content & learned, view.ids, -100)
    after = torch.where(learned, view.ids, -100).roll(-1, dims=1)
    after[:, -1] = -100
    return after


def steps(model: HeadModel, batch: Batch) -> Tensor:
    """Return which steps have a correct token: bool [batch, token]."""
    return labels(model, batch) >= 0


def classes(model: HeadModel, batch: Batch) -> Tensor:
    """Return the class number of each sentence's label, [batch], or of each word's, [batch, token], as `labels`."""
    if labels_words(model):
        return labels(model, batch)
    return torch.tensor(numbered(model, label_names(batch)), device=batch.source.ids.device)


def label_names(batch: Batch) -> list[str | None]:
    """Return the label of each sentence as it is written."""
    return [None if sentence is None else sentence.label for sentence in batch.source.sentences]


def word_labels(
    model: HeadModel, sentences: Sequence[Sentence | None], words: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return the class numbers of words at their first tokens, -100 elsewhere, from the word of each token."""
    named = [getattr(sentence, "labels", ()) for sentence in sentences]
    if not all(named):
        raise ValueError(f"a sentence has no labels of its words; {WORDED}")
    known = [*dict.fromkeys(name for names in named for name in names)]
    numbers = dict(zip(known, numbered(model, known), strict=True))
    return [
        [-100 if word in (NO_WORD, before) else numbers[names[word]] for before, word in pairwise([NO_WORD, *row])]
        for names, row in zip(named, words, strict=True)
    ]


def numbered(model: HeadModel, names: Sequence[str | None]) -> list[int]:
    """Return the class numbers of labels, which are names of the model's classes or numbers."""
    known, numbers = _class_numbers(model), []
    for given in names:
        if given is None:
            raise ValueError(f"a sentence has no label; {LABELLED}")
        label = one_of("label", _in_words_of(model, given), known)
        if len(known[label]) > 1:
            raise ValueError(f"label {label!r} must name one class of {model.name}, got {known[label]}")
        numbers += known[label]
    return numbers


def _in_words_of(model: HeadModel, label: str) -> str:
    """Return a label as the model writes it: by name, whatever the case, or by number if its classes have no names."""
    if not isinstance(label, ClassName):
        return label
    folded = {name.casefold(): name for name in _class_numbers(model) if not NO_NAME.fullmatch(name)}
    if not folded:
        return str(label.number)
    if {name.casefold() for name in label.names} != folded.keys():
        raise ValueError(
            f"classes must have the same names in the data and in {model.name}, got {', '.join(label.names)} in the "
            f"data and {', '.join(folded.values())} in its label2id; try the model's names"
        )
    return folded[label.casefold()]


def _class_numbers(model: HeadModel) -> dict[str, list[int]]:
    """Return the numbers of classes by name, and also by number as text if no name is a number."""
    config = model.model.config
    listed = [(name, number) for number, name in (config.id2label or {}).items()]
    listed += (config.label2id or {}).items()  # is None if a config was made from `id2label` only
    known: dict[str, list[int]] = {}
    for name, number in dict.fromkeys((str(name), int(number)) for name, number in listed):
        known.setdefault(name, []).append(number)
    if any(_is_number(name) for name in known):
        return known
    return known | {str(number): [number] for number in range(config.num_labels or 0)}


def _score(model: HeadModel, label: str | None) -> float:
    """Return a label as a number, for a model with one output."""
    if label is None:
        raise ValueError(f"a sentence has no label; {LABELLED}")
    if model.model.config.num_labels != 1:
        raise ValueError(f"a model that predicts scores must have one output, got {model.model.config.num_labels}")
    if not _is_number(label):
        raise ValueError(f"label must be a number for {model.name}, which predicts a score, got {label!r}")
    return float(label)


def mean_state(output: Output, batch: Batch, model: HeadModel) -> Tensor:
    """Return the mean last hidden state of each sentence, special tokens included: [batch, width]."""
    states = getattr(output, "last_hidden_state", None)
    if states is None:
        raise ValueError(
            f"objective 'similarity' needs hidden states, got the logits of {model.name}; try model.base_model"
        )
    view = batch.source if batch.target is None else batch.target
    attention_mask = view.attention_mask.to(states.dtype)
    return weighted(states.transpose(1, 2), attention_mask / attention_mask.sum(-1, keepdim=True))


def weighted(values: Tensor, weights: Tensor) -> Tensor:
    """Return the sum of each example's values [batch, ..., n] with its weights [batch, n]: [batch, ...]."""
    # a linear map of all examples, from which each takes its part, so that LRP rules apply
    return F.linear(values, weights).diagonal(dim1=0, dim2=-1).movedim(-1, 0)


def picked(logits: Tensor, chosen: Tensor) -> Tensor:
    """Return the logits of the chosen tokens or classes: [...]."""
    return logits.gather(-1, chosen[..., None]).squeeze(-1)


def choices(output: Output, batch: Batch, model: HeadModel) -> Tensor:
    """Return predicted tokens [batch, token], classes [batch], or mean states [batch, width]."""
    if has_vocabulary(model) or has_classes(model):
        return logits(model, output).argmax(-1)
    return mean_state(output, batch, model)


def check_labels(corpus: Corpus, *, of_words: bool = False) -> None:
    """Raise ValueError unless every sentence of a corpus has a label, or labels of its words."""
    if lacking := sum(not getattr(sentence, "labels" if of_words else "label", "") for sentence in corpus):
        some = "no labels" if lacking == len(corpus) else f"no label for {lacking} of its {len(corpus)} sentences"
        what, hint = (" of words", WORDED) if of_words else ("", LABELLED)
        raise ValueError(f"corpus {corpus.name!r} has {some}{what}; {hint}")


def has_word_labels(corpus: Corpus) -> bool:
    """Return whether words of a corpus have labels."""
    return any(isinstance(sentence, Tagged) for sentence in corpus)


def class_names(corpus: Corpus) -> list[str]:
    """Return the sorted labels of a corpus, or the classes of its data set; ValueError unless there are two or more."""
    of_words = has_word_labels(corpus)
    check_labels(corpus, of_words=of_words)
    given = [label for sentence in corpus for label in getattr(sentence, "labels", [sentence.label])]
    declared = {label.names if isinstance(label, ClassName) else () for label in given}
    if len(declared) == 1 and () not in declared:
        return [*declared.pop()]
    labels = sorted({*map(str, given)})
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
