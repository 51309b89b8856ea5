"""Tiny: a toy translator and a toy classifier, trained in seconds, through all artefacts of the papers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers

from headroles.data import synthetic
from headroles.data.corpus import Corpus
from headroles.experiments.papers.materials import Material
from headroles.experiments.papers.workflow import Workshop
from headroles.training.toy_translator import translator
from headroles.training.trainer import train

COUNTED = 1500  # sentences in which tokens are counted: the rarest must be outside the 500 most frequent
FEW: dict[str, Any] = {
    "keep": (0.5, 0.2),
    "seeds": 1,
    "n_resamples": 100,
    "contested": (0.5,),
    "timed": {"batches": (1, 4), "length": 8, "repeats": 2},
}


def workshops(folder: str | Path, *, seed: int = 0) -> dict[str, Workshop]:
    """Workshops of the two toys, each in a folder of its own: `translation` and `classifier`."""
    place = Path(folder)
    return {
        "translation": _translation(place / "translation", seed),
        "classifier": _classifier(place / "classifier", seed),
    }


def _translation(folder: Path, seed: int) -> Workshop:
    """Three layers, so that there is a lower, a middle and an upper one."""
    model, tokenizer = translator(folder / ".trainings" / "model", size="bare", seed=seed)
    data = _material(seed, translated=True)
    scratch = {"epochs": 2, "rate": 3e-3, "batch": 32}
    tune = {"epochs": 1, "rate": 1e-3, "batch": 32}
    return Workshop(
        folder,
        model,
        tokenizer,
        data,
        metric="loss",
        tune=tune,
        scratch=scratch,
        counted=synthetic.synthetic_corpus(COUNTED),
        **FEW,
    )


def _classifier(folder: Path, seed: int) -> Workshop:
    """A BERT of three layers that learns whether a sentence has a direct object."""
    _, tokenizer = translator(folder.parent / "translation" / ".trainings" / "model", size="bare", seed=seed)
    data = _material(seed, translated=False)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64, pad_token_id=tokenizer.pad_token_id,
        id2label={0: "no", 1: "object"}, label2id={"no": 0, "object": 1},
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.BertForSequenceClassification(config)
    options: Any = {"rate": 3e-3, "batch": 16, "warmup_steps": 10, "save_strategy": "no"}
    train(model, tokenizer, data.train, folder / ".trainings" / "model", epochs=10, **options)
    return Workshop(
        folder,
        model,
        tokenizer,
        data,
        tune={"rate": 1e-3, "batch": 32},
        counted=synthetic.synthetic_corpus(COUNTED),
        **FEW,
    )


def _material(seed: int, *, translated: bool) -> Material:
    """Short sentences to learn and measure on; longer ones are the other domain."""
    made = synthetic.synthetic_corpus(1800, seed=seed + 2, translated=translated)
    if not translated:
        made = Corpus(
            made.name, tuple(replace(one, label="object" if "obj" in one.relations else "no") for one in made)
        )
    short = [one for one in made if len(one.heads) <= 9]
    long = Corpus("toy, longer", tuple(one for one in made if 9 < len(one.heads) <= 13)[:40])
    parts = {"dev": slice(40), "test": slice(40, 80), "trees": slice(80, 140), "train": slice(140, 400)}
    cut = {name: Corpus(f"toy {name}", tuple(short[where])) for name, where in parts.items()}
    return Material(**cut, other=long, other_trees=long, sentences=None)
