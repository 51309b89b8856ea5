"""Metrics of minimal pairs: is the grammatical sentence of two more probable to a model, and by how much?"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from headroles.ablation.metrics.base import Mean, Observation
from headroles.analysis.intervals import Array
from headroles.data.corpus import Corpus
from headroles.data.pairs import BAD, GOOD
from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel
from headroles.scores import objectives, outputs

log = logging.getLogger(__name__)


class PairDifference(Mean):
    """Mean log-likelihood of grammatical sentences minus that of the ungrammatical ones, in nats per pair.

    The pairs of a corpus are those of `hr.minimal_pairs`, or read from a file. A decoder is read from its second token
    on, unless its tokenizer puts BOS before the text. An encoder-decoder reads the source, and the pair is its target.
    """

    name = "pair_difference"
    objective = "loss"
    sentences: ClassVar[int] = 2

    def check(self, model: HeadModel, corpus: Corpus, batches: Sequence[Batch], /) -> None:
        """Raise ValueError unless the corpus is made of pairs and the model gives them a likelihood."""
        _check(model, corpus, self.name)
        _warn_of_first_tokens(model, batches)

    def update(self, observation: Observation, /) -> Array:
        """Compute log-likelihoods, negative of ungrammatical sentences, and 1/2 for each."""
        signs = 1 - 2 * (np.array(observation.batch.numbers) % 2)
        return np.stack([-signs * super().update(observation)[:, 0], np.full(len(signs), 0.5)], axis=1)

    def targets(self, observation: Observation, /) -> objectives.Explained:
        """Compute the log-likelihood of each token, negative in ungrammatical sentences."""
        targets = observation.targets
        signs = targets.values.new_tensor([2 * (number % 2) - 1 for number in observation.batch.numbers])
        return replace(targets, values=signs[:, None] * targets.values)


class PairAccuracy(PairDifference):
    """Share of pairs of which the grammatical sentence has the larger log-likelihood (BLiMP, arXiv 1912.00582)."""

    name = "pair_accuracy"
    is_share = True

    def merged(self, statistics: Array) -> Array:
        """Compare the log-likelihoods of the two sentences: [pair, 2]."""
        difference, count = super().merged(statistics).T
        return np.stack([difference > 0, count], axis=1).astype(float)

    def has_gradient(self, _model: HeadModel, /) -> bool:
        """Return False: a comparison has no gradient."""
        return False


def _check(model: HeadModel, corpus: Corpus, name: str) -> None:
    """Raise ValueError unless the corpus is made of pairs and the model gives them a likelihood."""
    labels = [sentence.label for sentence in corpus]
    if not labels or labels != [GOOD, BAD] * (len(labels) // 2):
        raise ValueError(
            f"metric {name!r} needs minimal pairs: got corpus {corpus.name!r} with the labels "
            f"{', '.join(sorted(map(str, {*labels})))} of {len(labels)} sentences; expected {GOOD!r} and {BAD!r} in "
            f"turn; try a file with sentence_good and sentence_bad and an even limit"
        )
    if not outputs.has_vocabulary(model) or not (model.config.is_encoder_decoder or outputs.causal(model)):
        raise ValueError(
            f"metric {name!r} needs the likelihood of sentences: got {model.name}, which does not predict "
            f"one token after the other; expected a decoder or an encoder-decoder"
        )
    if model.config.is_encoder_decoder and any(sentence.target is None for sentence in corpus):
        raise ValueError(
            f"metric {name!r} of {model.name} compares translations: got pairs without a target in corpus "
            f"{corpus.name!r}; expected a source beside sentence_good and sentence_bad; try "
            f"hr.minimal_pairs(translated=True)"
        )


def _warn_of_first_tokens(model: HeadModel, batches: Sequence[Batch]) -> None:
    """Log how many pairs differ in a first token that no step predicts."""
    if model.config.is_encoder_decoder:
        return
    first = {
        number: int(row[0]) for batch in batches for number, row in zip(batch.numbers, batch.source.ids, strict=True)
    }
    differ = sum(first.get(number + 1, token) != token for number, token in first.items() if number % 2 == 0)
    if differ:
        log.warning(
            "%d of %d pairs differ in their first token, which is left out of the comparison: the tokenizer puts no "
            "BOS before a text",
            differ,
            len(first) // 2,
        )
