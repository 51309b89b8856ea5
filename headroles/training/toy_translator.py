"""Toy translator: a small Marian trained with fixed settings on sentence pairs of the toy grammar, and kept."""

from __future__ import annotations

import logging
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.data import synthetic
from headroles.data.corpus import Corpus
from headroles.training.marian import marian, pieced
from headroles.training.trainer import train

log = logging.getLogger(__name__)
Size = Literal["tiny", "bare"]


@dataclass(frozen=True)
class Settings:
    """Settings of the training of a toy translator."""

    layers: int  # of the encoder, and of the decoder
    width: int
    heads: int
    steps: int
    pairs: int  # generated training sentences
    longest: int  # words of the longest English sentence among them
    vocabulary: int = 1500
    batch: int = 32
    rate: float = 3e-3
    seed: int = 0


SETTINGS: dict[Size, Settings] = {
    "tiny": Settings(layers=1, width=48, heads=4, steps=400, pairs=10_000, longest=6, vocabulary=500, rate=1e-2),
    "bare": Settings(layers=3, width=32, heads=4, steps=100, pairs=2_000, longest=9, vocabulary=1500),
}


def translator(folder: str | Path, *, size: Size, seed: int = 0) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the toy translator and its tokenizer; it is trained first if its folder does not exist.

    An interrupted training leaves nothing there.
    """
    from headroles.models.loading import load

    place = Path(folder)
    if not place.is_dir():
        _train(replace(SETTINGS[size], seed=seed), place)
    return load(place)


def pairs(settings: Settings) -> Corpus:
    """Generate the training pairs of some settings, which differ from `synthetic_corpus` with its default seed."""
    corpus = synthetic.synthetic_corpus(settings.pairs, seed=settings.seed + 1, translated=True)
    return Corpus("toy pairs", tuple(sentence for sentence in corpus if len(sentence.heads) <= settings.longest))


def _train(settings: Settings, place: Path) -> None:
    log.info("training a toy translator for %d steps, to be kept in %s", settings.steps, place)
    corpus = pairs(settings)
    lines = [text for pair in corpus[:5000] for text in (pair.text, pair.target.text if pair.target else "")]
    tokenizer = pieced(lines, settings.vocabulary, apart="[.,]")  # of both languages
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        model = marian(
            tokenizer,
            width=settings.width,
            layers=settings.layers,
            heads=settings.heads,
            inner=256,
            seed=settings.seed,
            dropout=0.0,
            init_std=0.1,  # with the usual 0.02 and without scaled embeddings so small a model does not learn
            activation_function="swish",
        )
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}."))
        try:
            train(
                model,
                tokenizer,
                corpus,
                draft,
                batch=settings.batch,
                rate=settings.rate,
                seed=settings.seed,
                max_steps=settings.steps,
                warmup_steps=100,
                adam_beta2=0.98,
                save_strategy="no",
            )
            draft.rename(place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
