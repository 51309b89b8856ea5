"""Metrics of classes, scores and minimal pairs: accuracy, F1, correlations; which of two sentences is likelier."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from scipy.stats import rankdata

from headroles.ablation.metrics.base import Mean, Metric, Reading, probabilities, without_nan
from headroles.analysis.intervals import Array
from headroles.data.corpus import BAD, GOOD, Corpus
from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel
from headroles.scores import objectives, outputs
from headroles.scores.outputs import check_labels


class Choosing(Metric):
    """Base class of metrics that compare the predicted classes with the labels."""

    def check(self, model: HeadModel, corpus: Corpus, _batches: Sequence[Batch], /) -> None:
        """Raise ValueError if the model has no classes or the corpus no labels."""
        if not outputs.has_classes(model):
            raise ValueError(f"metric {self.name!r} is for classifiers; {model.name} has no classes")
        outputs.check_chooses(model, self.name)
        check_labels(corpus, of_words=outputs.labels_words(model))

    def update(self, reading: Reading, /) -> Array:
        """Compare each predicted class with its label; NaN for an example with logits that are not a number."""
        one_hot = np.eye(len(reading.model.model.config.id2label or ()))
        labels = outputs.classes(reading.model, reading.batch).cpu().numpy()
        labels = labels.reshape(len(labels), -1)  # [example, word]; of a text, one
        chosen = reading.output.logits.argmax(-1).cpu().numpy().reshape(labels.shape)
        statistics = self.statistics(one_hot[chosen], one_hot[labels.clip(0)]) * (labels >= 0)[..., None]
        return without_nan(statistics.sum(1), reading)

    @abstractmethod
    def statistics(self, chosen: Array, labels: Array, /) -> Array:
        """Compute the statistics [..., statistic] of one-hot choices and labels [..., class]."""


class Confusion(Choosing):
    """Per class the number of correct choices, choices, and labels; and the number of examples."""

    def statistics(self, chosen: Array, labels: Array, /) -> Array:
        """Compute 3 statistics per class, and 1: [..., 3 x class + 1]."""
        return np.concatenate([chosen * labels, chosen, labels, np.ones_like(chosen[..., :1])], axis=-1)

    def parts(self, sums: Array) -> tuple[Array, Array, Array, Array]:
        """Split sums into correct, chosen and labelled per class, and the number of examples."""
        right, chosen, labelled = np.split(sums[..., :-1], 3, axis=-1)
        return right, chosen, labelled, sums[..., -1]


class Accuracy(Choosing, Mean):
    """Share of examples, or of all words, that get their label."""

    name = "accuracy"
    is_share = True

    def targets(self, reading: Reading, /) -> objectives.Explained:
        """Compute the probabilities of the labels."""
        return probabilities(reading, outputs.classes(reading.model, reading.batch).clamp(min=0))

    def statistics(self, chosen: Array, labels: Array, /) -> Array:
        """Compute whether each choice is correct, and 1: [..., 2]."""
        return np.stack([(chosen * labels).sum(-1), np.ones(chosen.shape[:-1])], axis=-1)


class F1(Confusion):
    """F1 of the last class (GLUE's, for two classes)."""

    name = "f1"

    def compute(self, sums: Array, /) -> Array:
        """Compute 2 correct / (chosen + labelled)."""
        right, chosen, labelled, _ = (part[..., -1] if part.ndim == sums.ndim else part for part in self.parts(sums))
        return np.asarray(2 * right / np.maximum(chosen + labelled, 1))


class Matthews(Confusion):
    """Matthews' correlation of any number of classes (Gorodkin 2004); 0 if all choices or all labels are one class."""

    name = "matthews"

    def compute(self, sums: Array, /) -> Array:
        """Compute the covariance of choices and labels over the root of their variances."""
        right, chosen, labelled, n = self.parts(sums)
        both = right.sum(-1) * n - (chosen * labelled).sum(-1)
        spread = np.sqrt((n**2 - (chosen**2).sum(-1)) * (n**2 - (labelled**2).sum(-1)))
        return np.asarray(np.where(spread == 0, 0.0, both / np.where(spread == 0, 1.0, spread)))


class Pearson(Metric):
    """Pearson's correlation of predicted scores and labels; 0 if all scores or all labels are equal."""

    name = "pearson"

    def check(self, model: HeadModel, corpus: Corpus, _batches: Sequence[Batch], /) -> None:
        """Raise ValueError unless the model predicts a score and the corpus has labels."""
        if not outputs.has_classes(model) or outputs.problem(model) != "regression":
            raise ValueError(f"metric {self.name!r} is for models with one output, a score; got {model.name}")
        check_labels(corpus)

    def update(self, reading: Reading, /) -> Array:
        """Compute the moments of scores and labels, and 1: [example, 6]."""
        labels = outputs.label_values(reading.model, outputs.label_names(reading.batch))
        scores = reading.output.logits.flatten().double().cpu().numpy()
        return without_nan(_moments(scores, np.array(labels, dtype=float)), reading)

    def compute(self, sums: Array, /) -> Array:
        """Compute the covariance of scores and labels over the root of their variances."""
        scores, labels, squares, of_labels, products, n = np.moveaxis(sums, -1, 0)
        variances = n * squares - scores**2, n * of_labels - labels**2
        is_equal = (variances[0] <= 1e-13 * n * squares) | (variances[1] <= 1e-13 * n * of_labels)  # but for rounding
        spread = np.sqrt(np.where(is_equal, 1.0, variances[0] * variances[1]))
        return np.asarray(np.where(is_equal, 0.0, (n * products - scores * labels) / spread))


class Spearman(Pearson):
    """Spearman's correlation: Pearson's of ranks, which are those in the whole corpus in each of its resamples, too."""

    name = "spearman"

    def merged(self, statistics: Array) -> Array:
        """Compute the moments of the ranks of scores and labels, and 1: [example, 6]."""
        return _moments(*rankdata(statistics[:, 0, :2], axis=0).T)


def _moments(scores: Array, labels: Array) -> Array:
    return np.stack([scores, labels, scores**2, labels**2, scores * labels, np.ones(len(scores))], axis=1)


class PairDifference(Mean):
    """Mean log-likelihood of grammatical sentences minus that of the ungrammatical ones, in nats per pair.

    Pairs come from `hr.minimal_pairs` or a file. A decoder does not predict the first token, unless its tokenizer puts
    BOS before the text. An encoder-decoder reads the source, and the pair is its target.
    """

    name = "pair_difference"
    objective = "loss"
    sentences: ClassVar[int] = 2

    def check(self, model: HeadModel, corpus: Corpus, _batches: Sequence[Batch], /) -> None:
        """Raise ValueError unless the corpus is made of pairs and the model gives them a likelihood."""
        labels, name = [sentence.label for sentence in corpus], self.name
        if not labels or labels != [GOOD, BAD] * (len(labels) // 2):
            raise ValueError(
                f"metric {name!r} needs minimal pairs: got corpus {corpus.name!r} with the labels "
                f"{', '.join(sorted(map(str, {*labels})))} of {len(labels)} sentences; expected {GOOD!r} and {BAD!r} "
                f"in turn; try a file with sentence_good and sentence_bad and an even limit"
            )
        # the kinds are read from a forward, not from a name: `FlaubertWithLMHeadModel` predicts masked tokens
        has_encoder = model.model.config.is_encoder_decoder
        if not outputs.has_vocabulary(model) or not (has_encoder or model.kinds == {"dec-self"}):
            raise ValueError(f"metric {name!r} needs the likelihood of sentences: got {model.name}; try a decoder")
        if has_encoder and any(sentence.target is None for sentence in corpus):
            raise ValueError(
                f"metric {name!r} of {model.name} compares translations: got pairs without a target in corpus "
                f"{corpus.name!r}; try hr.minimal_pairs(translated=True)"
            )

    def update(self, reading: Reading, /) -> Array:
        """Compute log-likelihoods, negative of ungrammatical sentences, and 1/2 for each."""
        signs = 1 - 2 * (np.array(reading.batch.numbers) % 2)
        return np.stack([-signs * super().update(reading)[:, 0], np.full(len(signs), 0.5)], axis=1)

    def targets(self, reading: Reading, /) -> objectives.Explained:
        """Compute the log-likelihood of each token, negative in ungrammatical sentences."""
        targets = reading.targets
        signs = targets.values.new_tensor([2 * (number % 2) - 1 for number in reading.batch.numbers])
        return replace(targets, values=signs[:, None] * targets.values)


class PairAccuracy(PairDifference):
    """Share of pairs in which the grammatical sentence has the larger log-likelihood (BLiMP, arXiv 1912.00582)."""

    name = "pair_accuracy"
    is_share = True

    def merged(self, statistics: Array) -> Array:
        """Compare the log-likelihoods of the two sentences: [pair, 2]."""
        difference, count = super().merged(statistics).T
        return np.stack([difference > 0, count], axis=1).astype(float)

    def has_gradient(self, _model: HeadModel, /) -> bool:
        """Return False: a comparison has no gradient."""
        return False
