"""Metrics of generated text: BLEU and chrF of translations, by sacrebleu, and word errors of transcripts, by jiwer."""

from __future__ import annotations

import logging
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from transformers.models.whisper.english_normalizer import BasicTextNormalizer, EnglishTextNormalizer

from headroles.ablation.metrics.base import Metric, Reading
from headroles.analysis.intervals import Array
from headroles.data.corpus import Corpus, Sentence
from headroles.data.speech import extra
from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel
from headroles.models.tokens import languages
from headroles.tables.arguments import one_of
from headroles.tables.declared import quality

WORDS = "13a"  # tokenisation of the metric `bleu`
BY_SPACES = (WORDS, "intl", "none")  # tokenisations that split at spaces and punctuation
LONGEST_WORD = 6.0  # characters between spaces, on average, of scripts without spaces between words
UNSPACED = re.compile(  # characters of Thai, Lao, Tibetan, Burmese, Khmer, of Japanese and Chinese
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Written(Metric):
    """Metric of sacrebleu on the output of a translation model, by greedy (`beams` = 1) or beam search."""

    beams: int = 1
    generates: ClassVar[bool] = True

    def check(self, model: HeadModel, corpus: Corpus, _batches: Sequence[Batch], /) -> None:
        """Raise ValueError unless the model translates and the corpus has references."""
        if not (model.model.config.is_encoder_decoder and model.model.can_generate()):
            raise ValueError(f"metric {self.name!r} needs a translation model, got {model.name}")
        if any(sentence.target is None for sentence in corpus):
            raise ValueError(f"metric {self.name!r} needs references, but corpus {corpus.name!r} lacks some")

    def update(self, reading: Reading, /) -> Array:
        """Compute sacrebleu's statistics of generated sentences and their references."""
        return self.statistics(*_texts(reading))

    def statistics(self, texts: Sequence[str], references: Sequence[str]) -> Array:
        """Compute sacrebleu's statistics of texts, each with one reference: [text, statistic]."""
        return np.asarray(self._scorer._extract_corpus_statistics(texts, [references]), dtype=float)

    def compute(self, sums: Array, /) -> Array:
        """Compute sacrebleu's score of each sum of statistics."""
        flat = sums.reshape(-1, sums.shape[-1])
        scores = [self._scorer._compute_score_from_stats(row.round().astype(int).tolist()).score for row in flat]
        return np.asarray(scores, dtype=float).reshape(sums.shape[:-1])

    @property
    @abstractmethod
    def _scorer(self) -> Any: ...


@dataclass(frozen=True, repr=False)
class BLEU(Written):
    """Corpus BLEU (sacrebleu) of the words into which `tokenize` splits a text: "13a" for languages with spaces.

    Other tokenisations of sacrebleu, after which the metric is named (`bleu-zh`): "zh" for Chinese, "ja-mecab" for
    Japanese, "flores200" for all languages, "char". Some need a package, or a file that sacrebleu downloads.
    """

    tokenize: str = WORDS

    def __post_init__(self) -> None:
        if self.tokenize != WORDS:
            from sacrebleu.metrics.bleu import BLEU as Scorer

            one_of("tokenize", self.tokenize, Scorer.TOKENIZERS)

    def __repr__(self) -> str:
        tokenize = "" if self.tokenize == WORDS else f", tokenize={self.tokenize!r}"
        return f"BLEU(beams={self.beams}{tokenize})"

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name with the tokenisation, unless it is "13a"."""
        return "bleu" if self.tokenize == WORDS else f"bleu-{self.tokenize}"

    @property
    def title(self) -> str:  # type: ignore[override]
        """Name in figures."""
        return quality(self.name).title

    def check(self, model: HeadModel, corpus: Corpus, batches: Sequence[Batch], /) -> None:
        """Raise the error of sacrebleu if it lacks the tokenisation; warn if there are no spaces to split at."""
        super().check(model, corpus, batches)
        _ = self._scorer
        references = [sentence.target.text for sentence in corpus if sentence.target is not None]
        unspaced = sum(len(UNSPACED.findall(text)) for text in references)  # letters of scripts without spaces
        if self.tokenize in BY_SPACES and unspaced > LONGEST_WORD * sum(len(text.split()) for text in references):
            log.warning(
                "the references of %s have no spaces, at which BLEU (%s) splits words: it is about 0 whatever a model "
                "writes; try bleu-zh for Chinese, bleu-ja-mecab for Japanese, bleu-flores200 or bleu-char for others",
                *(corpus.name, self.tokenize),
            )

    @cached_property
    def _scorer(self) -> Any:
        from sacrebleu.metrics.bleu import BLEU as Scorer

        return Scorer(effective_order=False, tokenize=self.tokenize)


@dataclass(frozen=True)
class ChrF(Written):
    """Corpus chrF2 (sacrebleu)."""

    name: ClassVar[str] = "chrf"

    @cached_property
    def _scorer(self) -> Any:
        from sacrebleu.metrics.chrf import CHRF

        return CHRF()


@dataclass(frozen=True)
class WER(Written):
    """Word error rate: substituted, missing and added words over the words of the reference (jiwer).

    Both texts are first normalised as by Whisper's authors: of English with its spellings and numbers, of other
    languages without case and punctuation.
    """

    name: ClassVar[str] = "wer"

    def update(self, reading: Reading, /) -> Array:
        """Count the word errors of each text, and the words of its reference."""
        sentences = (reading.corpus.sentences[number] for number in reading.batch.numbers)
        normal = [_normaliser(reading.model.tokenizer, sentence) for sentence in sentences]
        return self.statistics(*([f(text) for f, text in zip(normal, some, strict=True)] for some in _texts(reading)))

    def statistics(self, texts: Sequence[str], references: Sequence[str]) -> Array:
        """Count the word errors of texts, and the words of their references: [text, 2]."""
        rows = []
        for reference, text in zip(references, texts, strict=True):
            measured = self._scorer.process_words(reference, text)
            rows.append((measured.substitutions + measured.deletions + measured.insertions, len(reference.split())))
        return np.asarray(rows, dtype=float)

    def compute(self, sums: Array, /) -> Array:
        """Divide the errors by the number of words."""
        return np.asarray(sums[..., 0] / sums[..., 1])

    @cached_property
    def _scorer(self) -> Any:
        return extra("jiwer")


def _texts(reading: Reading) -> tuple[list[str], list[str]]:
    """Return the texts that a model has written, and their references."""
    targets = [reading.corpus.sentences[number].target for number in reading.batch.numbers]
    texts = languages.decoded(reading.model.tokenizer, reading.output)
    return texts, [target.text for target in targets if target is not None]


def _normaliser(tokenizer: Any, sentence: Sentence) -> Callable[[str], str]:
    """Return Whisper's normaliser of English, for its tokenizer and no other language, or that of other languages."""
    language = getattr(sentence, "language", None) or getattr(tokenizer, "language", None) or "en"
    if hasattr(tokenizer, "english_spelling_normalizer") and language.lower() in ("en", "english"):
        return EnglishTextNormalizer(tokenizer.english_spelling_normalizer or {})
    return BasicTextNormalizer()
