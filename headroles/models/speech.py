"""Speech: frames of sound as the source of a model such as Whisper, and the prompt before its transcripts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import transformers
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

from headroles.data.corpus import Corpus, Sentence
from headroles.data.sentences import Speech
from headroles.models.sites import Site
from headroles.models.tokens.alignment import NO_WORD, TokenizedSentence, pieces

FRAME = -1  # in place of the token id of a frame of sound
KEPT = "feature_extractor"  # attribute of the tokenizer
log = logging.getLogger(__name__)


def check_side(corpus: Corpus, model: PreTrainedModel) -> bool:
    """Return whether a model reads sound; ValueError if it does and the corpus has text, or the reverse."""
    reads, is_spoken = model.main_input_name == "input_features", any(isinstance(row, Speech) for row in corpus)
    if reads == is_spoken and (not reads or model.config.model_type == "whisper"):
        return reads
    given, advice = ("sound", "a model such as Whisper") if is_spoken else ("text", "rows with audio and text")
    raise ValueError(
        f"{type(model).__name__} reads {model.main_input_name}, got {given} in corpus {corpus.name!r}; try {advice}"
    )


def extractor(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Any:
    """Return the feature extractor of a model: the one that `load` left at the tokenizer, or that of its checkpoint."""
    if getattr(tokenizer, KEPT, None) is None:
        try:
            attach(tokenizer, model.config.name_or_path, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"no feature extractor of {type(model).__name__}: got none at its tokenizer, and none in "
                f"{model.config.name_or_path!r}; load both with hr.load, or set tokenizer.{KEPT}"
            ) from error
    return getattr(tokenizer, KEPT)


def attach(tokenizer: PreTrainedTokenizerBase, name: Any, **place: Any) -> None:
    """Load the feature extractor of a checkpoint, and keep it at the tokenizer."""
    setattr(tokenizer, KEPT, transformers.AutoFeatureExtractor.from_pretrained(name, **place))


def frames(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Sentence], *, model: PreTrainedModel
) -> list[TokenizedSentence]:
    """Return the frames of sounds, each with its word; those after the end of a sound belong to no text."""
    read = extractor(model, tokenizer)
    size = int(model.config.max_source_positions)
    frame = seconds(read, size)
    rows = []
    for number, sentence in enumerate(sentences, 1):
        if not isinstance(sentence, Speech) or sentence.sound is None:
            raise ValueError(f"each sentence for {type(model).__name__} must have sound, got sentence {number} without")
        length = sentence.sound.seconds
        if length > size * frame:
            raise ValueError(
                f"sentence {number} has {length:.1f} seconds of sound, and {type(model).__name__} reads "
                f"{size * frame:g}; cut sound and transcript at a pause: ffmpeg -i IN -ss START -to END OUT"
            )
        owners = [NO_WORD] * size
        for word, (start, end) in ((word, times) for word, times in enumerate(sentence.times) if times):
            first, last = round(start / frame), max(round(start / frame) + 1, round(end / frame))
            owners[first:last] = [word] * (last - first)  # where words overlap, the later one
        inside = [place * frame < length for place in range(size)]
        before = prompt(sentence, tokenizer, model)
        rows.append(TokenizedSentence([FRAME] * size, owners[:size], sentence, of_text=inside, prompt=before))
    return rows


def seconds(read: Any, frames: int) -> float:
    """Return the length of a frame, of those into which a model cuts its window."""
    return float(read.n_samples / read.sampling_rate / frames)


def stretches(words: Sequence[int], content: Sequence[bool], sentence: Sentence | None) -> list[tuple[str, slice]]:
    """Return the frames of each word and each pause of a sound, with names."""
    size, spans = sum(content), sentence.spans if sentence else ()
    changes = [0, *(frame for frame in range(1, size) if words[frame] != words[frame - 1]), size]
    texts = [*(sentence.text[slice(*span)] if sentence and span else "…" for span in spans), "…"]  # the last for none
    return [(texts[words[start]], slice(start, end)) for start, end in pairwise(changes)]


def loudness(sentence: Any, read: Any, frames: int, size: int) -> npt.NDArray[np.float32]:
    """Return how loud each frame of a sound is, of `frames` in a window: 0, 40 dB below the loudest or less, to 1."""
    samples = sentence.sound.samples(read.sampling_rate)
    parts = np.resize(np.pad(samples, (0, read.n_samples)), (frames, read.n_samples // frames))[:size]
    power = (parts.astype(np.float64) ** 2).mean(1)
    level = 10 * np.log10(np.maximum(power, 1e-12) / max(power.max(), 1e-12))
    return np.asarray(np.clip(1 + level / 40, 0, 1).round(2), dtype=np.float32)


def features(rows: Sequence[TokenizedSentence], read: Any) -> Tensor:
    """Return the log-mel spectrograms of sounds, as the feature extractor makes them: [batch, bin, time]."""
    sounds = [row.sentence.sound.samples(read.sampling_rate) for row in rows]  # type: ignore[attr-defined]
    made: Tensor = read(sounds, sampling_rate=read.sampling_rate, return_tensors="pt").input_features
    return made


def transcripts(
    sources: Sequence[TokenizedSentence], tokenizer: PreTrainedTokenizerBase, *, words: bool
) -> list[TokenizedSentence]:
    """Return the labels of sounds: the prompt without its start token, the transcript after a space, the end token."""
    if hasattr(tokenizer, "prefix_tokens") and len(tokenizer(" the", add_special_tokens=False)["input_ids"]) > 1:
        log.warning(
            "%s cuts ' the' in two, which no Whisper model does: its merges are broken, and the loss is too large; "
            "load the tokenizer of the original checkpoint",
            type(tokenizer).__name__,
        )
    targets = [row.sentence.target or Sentence(row.sentence.text) for row in sources]
    moved = (tuple(span and (span[0] + 1, span[1] + 1) for span in target.spans) for target in targets)
    spaced = [Sentence(f" {target.text}", spans) for target, spans in zip(targets, moved, strict=True)]
    before, rows = len(getattr(tokenizer, "prefix_tokens", ())), []
    for source, target, row in zip(sources, targets, pieces(tokenizer, spaced, words=words, target=True), strict=True):
        ids = (source.prompt or [])[1:]  # transformers' shift adds the start token
        owners = [NO_WORD] * len(ids) + row.words[before:]
        rows.append(TokenizedSentence([*ids, *row.ids[before:]], owners, target, prompt_length=len(ids)))
    return rows


def prompt(sentence: Sentence, tokenizer: Any, model: PreTrainedModel) -> list[int]:
    """Return the tokens with which the decoder begins: start, language, task, no timestamps.

    Language and task are those of the sentence, else of the tokenizer, else of the generation config. A model of one
    language has neither.

    Raises:
        ValueError: If a model of many languages has none, or one that it does not know.
    """
    config: Any = model.generation_config
    start = int(model.config.decoder_start_token_id)
    marks = []
    if getattr(config, "is_multilingual", None) or getattr(config, "lang_to_id", None):
        chosen = {
            name: getattr(sentence, name, None) or getattr(tokenizer, name, None) or getattr(config, name, None)
            for name in ("language", "task")
        }
        if chosen["language"] is None:
            raise ValueError(
                f"{type(model).__name__} writes many languages, and no language is set; give each row a language, or "
                f"load the model with hr.load(name, target_lang='en') (--target-lang)"
            )
        language = str(chosen["language"]).lower()
        marks = [f"<|{TO_LANGUAGE_CODE.get(language, language)}|>", f"<|{chosen['task'] or 'transcribe'}|>"]
    ids = [tokenizer.convert_tokens_to_ids(mark) for mark in marks]
    if unknown := [mark for mark, number in zip(marks, ids, strict=True) if number in (None, tokenizer.unk_token_id)]:
        raise ValueError(f"{type(tokenizer).__name__} has no token {unknown[0]}; try a language such as 'en'")
    last = getattr(config, "no_timestamps_token_id", None)
    return [start, *ids, *([] if last is None else [int(last)])]


def timing_heads(model: PreTrainedModel, sites: Iterable[Site]) -> list[tuple[int, int]]:
    """Return (layer, head) of the cross heads that give times to words by a model's list, without those it lacks."""
    listed = getattr(getattr(model, "generation_config", None), "alignment_heads", None) or []
    numbers = {site.layer: site.numbers for site in sites if site.kind == "cross"}
    return [(layer, numbers[layer][place]) for layer, place in listed if place < len(numbers.get(layer, ()))]


def language(row: TokenizedSentence, tokenizer: Any) -> dict[str, int | str]:
    """Return the options of `generate` with which Whisper does not detect a language, which its prompt names."""
    ids = (row.prompt or [])[1:2]
    return {"language": str(tokenizer.convert_ids_to_tokens(ids[0]))} if len(row.prompt or []) > 2 else {}
