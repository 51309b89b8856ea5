"""Specialists: translators of several arms and seeds whose encoders have specialised heads, or have none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.data.corpus import Corpus, Sentence
from headroles.experiments.preparation import Prepared
from headroles.experiments.replication import pace
from headroles.experiments.specialists import beginnings
from headroles.experiments.specialists.masked_lm import Checkpoints, train_masked
from headroles.experiments.specialists.probes import Probes
from headroles.models import loading
from headroles.training.trainer import train

ArmName = Literal["A", "B", "C", "C-shuffled", "E"]
LONG = 5  # words from which on a sentence is read twice as often


@dataclass(frozen=True)
class Arm:
    """How the encoder of a translator begins."""

    positions: Literal["sinusoids", "learnt", "pretrained"]
    masked: bool = False  # whether the encoder first learns a masked language model
    shuffled: bool = False  # whether its query and key matrices are shuffled after that


ARMS: dict[ArmName, Arm] = {
    "A": Arm("sinusoids"),
    "B": Arm("learnt"),
    "C": Arm("learnt", masked=True),
    "C-shuffled": Arm("learnt", masked=True, shuffled=True),
    "E": Arm("pretrained"),
}


@dataclass(frozen=True)
class Recipe:
    """Sizes and training of the translators. Rates fall with the inverse square root of the step after `warmup`.

    `masked_...` are of the masked language model, which hides the share `hidden` of the tokens; `encoder_rate` is that
    of a pretrained encoder, whose decoder has the encoder's width and `rate`. Heads are probed every `every` steps.
    """

    width: int = 128
    heads: int = 8
    encoder_layers: int = 3
    decoder_layers: int = 1
    dropout: float = 0.1
    smoothing: float = 0.1
    pieces: int = 8000  # of the decoder of a pretrained encoder
    steps: int = 4000
    batch: int = 64
    rate: float = 1e-3
    warmup: int = 400
    masked_steps: int = 12000
    masked_batch: int = 64
    masked_rate: float = 2e-3
    masked_warmup: int = 1000
    hidden: float = 0.25
    encoder_rate: float = 5e-5
    every: int = 500
    minutes: float = 5.0  # between two checkpoints

    def __post_init__(self) -> None:
        for name in ("steps", "masked_steps"):
            if getattr(self, name) % self.every:
                raise ValueError(f"{name} must be a multiple of every = {self.every}: got {getattr(self, name)}")


def specialise(
    folder: str | Path,
    data: Prepared,
    arm: ArmName,
    *,
    seed: int = 0,
    recipe: Recipe | None = None,
    texts: Corpus | None = None,
    probed: Sequence[Corpus] = (),
) -> pd.DataFrame:
    """Train the translator of an arm and a seed; the best heads of its encoder through training.

    The model is saved in `folder/ARM-SEED`, a masked language model in `folder/masked-SEED`. What was stopped is
    resumed from its last checkpoint, what is finished is read.

    Args:
        folder: Folder of all arms and seeds.
        data: Sentence pairs that `prepare` made; held-out parts are not trained on.
        arm: Name of the arm, a key of `ARMS`.
        seed: Seed of the weights, of the order of the data and of dropout.
        recipe: Sizes and steps.
        texts: More sentences for the masked language model besides the source side of the pairs.
        probed: Corpora with trees on which the heads of the encoder are scored every `recipe.every` steps.

    Returns:
        One row per phase, step, corpus, score and rank (the best three heads of each score): `layer`, `head`, `value`,
        `baseline` and `words` of syntax. Saved as `probes.parquet` beside the weights.

    Raises:
        ValueError: For an unknown arm, and for a folder of other training.
    """
    if arm not in ARMS:
        raise ValueError(f"unknown arm: got {arm!r}; expected one of {', '.join(ARMS)}")
    chosen, asked, place = ARMS[arm], recipe or Recipe(), Path(folder)
    model, tokenizer = _begun(data, chosen, asked, seed)
    before: list[pd.DataFrame] = []
    if chosen.masked:
        first = Probes(place / f"masked-{seed}", tokenizer, probed, "masked")
        train_masked(
            model,
            tokenizer,
            longer_twice(masked_texts(data, texts)),
            first.place,
            hidden=asked.hidden,
            batch=asked.masked_batch,
            rate=asked.masked_rate,
            seed=seed,
            callbacks=[first, Checkpoints(asked.minutes)],
            **_arguments(asked.masked_steps, asked.masked_warmup, asked.every),
        )
        before.append(first.table())
    if chosen.shuffled:
        beginnings.shuffle_queries_and_keys(model, seed=seed)
    _set_dropout(model, asked.dropout)
    probes = Probes(place / f"{arm}-{seed}", tokenizer, probed, "translation", before)
    train(
        model,
        tokenizer,
        longer_twice(data.train),
        probes.place,
        held_out=data.dev[:300],
        batch=asked.batch,
        rate=asked.rate,
        rates={"encoder.": asked.encoder_rate} if chosen.positions == "pretrained" else None,
        seed=seed,
        callbacks=[probes, Checkpoints(asked.minutes)],
        label_smoothing_factor=asked.smoothing,
        **_arguments(asked.steps, asked.warmup, asked.every),
    )
    return probes.table()


def masked_texts(data: Prepared, texts: Corpus | None = None) -> Corpus:
    """Sentences for a masked language model: sources to train on and `texts`, each once, none that is held out."""
    held = {one.text for part in (data.dev, data.test, data.parsed) for one in part}
    found = dict.fromkeys(one.text for corpus in (data.train, texts or ()) for one in corpus)
    return Corpus("masked", tuple(Sentence(text) for text in found if text not in held))


def longer_twice(corpus: Corpus) -> Corpus:
    """The corpus with every sentence of at least five words twice: roles of syntax are learnt from long ones."""
    again = [one for one in corpus for _ in range(2 if len(one.text.split()) >= LONG else 1)]
    return Corpus(corpus.name, tuple(again))


def _begun(data: Prepared, arm: Arm, recipe: Recipe, seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model before any training, and its tokenizer."""
    if arm.positions == "pretrained":
        sizes: dict[str, Any] = {"layers": recipe.decoder_layers, "pieces": recipe.pieces, "dropout": recipe.dropout}
        model, pair = beginnings.pretrained(data.train, **sizes, seed=seed)
        return loading.place(model), pair
    tokenizer = loading.tokenizer_of(data.tokenizer)
    layers = recipe.encoder_layers, recipe.decoder_layers
    sizes = {"width": recipe.width, "heads": recipe.heads, "layers": layers}
    return loading.place(beginnings.untrained(tokenizer, arm.positions, **sizes, seed=seed)), tokenizer


def _arguments(steps: int, warmup: int, every: int) -> dict[str, Any]:
    """Options of the Trainer that all phases share."""
    adam = {"adam_beta2": 0.98, "weight_decay": 0.01, "lr_scheduler_type": "inverse_sqrt", "warmup_steps": warmup}
    logs = {"logging_strategy": "steps", "logging_steps": every}
    return {"max_steps": steps, "save_strategy": "no", "save_total_limit": 2, **adam, **logs, **pace()}


def _set_dropout(model: PreTrainedModel, rate: float) -> None:
    """Set the dropout of Marian and BART, which keep it as a number."""
    for module in model.modules():
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = rate  # type: ignore[assignment]
    if hasattr(model.config, "dropout"):
        model.config.dropout = rate
