"""A toy translator: a small Marian trained on sentence pairs of the toy grammar, and kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from marian import marian, pieced
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import headroles as hr
from headroles.data.corpus import Corpus


@dataclass(frozen=True)
class Settings:
    """Sizes of a toy translator and its training; by default three layers, a lower, a middle and an upper one."""

    layers: int = 3  # of the encoder, and of the decoder
    width: int = 32
    heads: int = 4
    steps: int = 100
    pairs: int = 2_000  # generated training sentences
    longest: int = 9  # words of the longest English sentence among them
    vocabulary: int = 1500
    rate: float = 3e-3


def translator(
    folder: Path,
    settings: Settings = Settings(),  # noqa: B008 - immutable
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the toy translator in a folder and its tokenizer; it is trained first if it is not there."""
    if not (folder / "history.parquet").is_file():
        _train(settings, folder)
    return hr.load(folder)


def pairs(settings: Settings) -> Corpus:
    """Generate the training pairs of some settings, which differ from `synthetic_corpus` with its default seed."""
    corpus = hr.synthetic_corpus(settings.pairs, seed=1, translated=True)
    return Corpus("toy pairs", tuple(sentence for sentence in corpus if len(sentence.heads) <= settings.longest))


def _train(settings: Settings, folder: Path) -> None:
    corpus = pairs(settings)
    lines = [text for pair in corpus[:5000] for text in (pair.text, pair.target.text if pair.target else "")]
    tokenizer = pieced(lines, settings.vocabulary, apart="[.,]")  # of both languages
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = marian(
            tokenizer,
            width=settings.width,
            layers=settings.layers,
            heads=settings.heads,
            inner=256,
            dropout=0.0,
            init_std=0.1,  # with the usual 0.02 and without scaled embeddings so small a model does not learn
            activation_function="swish",
        )
        steps = {"max_steps": settings.steps, "warmup_steps": 100, "save_strategy": "no"}
        hr.train(model, tokenizer, corpus, folder, rate=settings.rate, adam_beta2=0.98, **steps)
