"""Train translators of several arms and seeds: encoders with and without specialised heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import beginnings
import pandas as pd
from masked_lm import Checkpoints, train_masked
from probes import Probes
from replication import Prepared, pace
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from headroles.data.corpus import Corpus, Sentence
from headroles.models import loading
from headroles.models.masking import Head
from headroles.pruning.removal import remove_heads
from headroles.training.hf_trainer import ORDER, TrainOptions
from headroles.training.trainer import train

ArmName = Literal["A", "B", "C", "C-shuffled", "E"]
LONG = 5  # words of a sentence that is read twice as often


@dataclass(frozen=True)
class Arm:
    """The initial encoder of a translator."""

    positions: Literal["sinusoids", "learnt", "pretrained"]
    masked: bool = False  # whether the encoder is first trained as a masked language model
    shuffled: bool = False  # whether its query and key matrices are shuffled afterwards


ARMS: dict[ArmName, Arm] = {
    "A": Arm("sinusoids"),
    "B": Arm("learnt"),
    "C": Arm("learnt", masked=True),
    "C-shuffled": Arm("learnt", masked=True, shuffled=True),
    "E": Arm("pretrained"),
}


@dataclass(frozen=True)
class Recipe:
    """Sizes and training of the translators; rates fall with the inverse square root of the step after `warmup`."""

    width: int = 128  # a pretrained encoder keeps its own
    heads: int = 8  # of each attention
    encoder_layers: int = 3
    decoder_layers: int = 1
    dropout: float = 0.1
    smoothing: float = 0.1  # of labels, in translation
    pieces: int = 8000  # of the decoder's tokenizer beside a pretrained encoder
    steps: int = 4000  # of translation, as the next three
    batch: int = 64  # pairs of a step
    rate: float = 1e-3  # peak
    warmup: int = 400  # steps
    masked_steps: int = 12000  # of the masked language model, as the next four
    masked_batch: int = 64  # sentences of a step
    masked_rate: float = 2e-3  # peak
    masked_warmup: int = 1000  # steps
    hidden: float = 0.25  # share of masked tokens
    encoder_rate: float = 5e-5  # peak, of a pretrained encoder
    by_length: bool = True  # whether a step has sentences of similar length, the longest of 50 steps first, or any
    shuffle: bool = False  # whether steps of similar length come in a random order
    every: int = 500  # steps between two probes of the heads
    minutes: float = 5.0  # between two checkpoints

    def __post_init__(self) -> None:
        for name in ("steps", "masked_steps"):
            if getattr(self, name) % self.every:
                raise ValueError(f"{name} must be a multiple of every = {self.every}: got {getattr(self, name)}")


def specialise(
    folder: str | Path,  # of all arms and seeds
    data: Prepared,  # its held-out parts are not trained on
    arm: ArmName,
    *,
    seed: int = 0,  # of the weights, of the order of the data and of dropout
    recipe: Recipe | None = None,
    texts: Corpus | None = None,  # more sentences for the masked language model beside the sources
    probed: Sequence[Corpus] = (),  # with trees, on which heads are scored every `recipe.every` steps
    without: Iterable[Head | str] | str | pd.Series[float] = (),  # heads that the model never has, as in `remove_heads`
) -> pd.DataFrame:
    """Train the translator of an arm and a seed, and probe the heads of its encoder.

    With `without` the remaining heads are trained from the beginning, for Voita et al.'s comparison of pruned models
    with models from scratch (Table 2). The model is saved in `folder/ARM-SEED`, a masked language model in
    `folder/masked-SEED`. Interrupted training is
    resumed from its last checkpoint; finished models are read.

    Returns:
        One row per phase, step, corpus, score and rank (the best three heads of each score): `layer`, `head`, `value`,
        `baseline` and `words` of syntax. Saved as `probes.parquet` beside the weights.

    Raises:
        ValueError: For an unknown arm, and for a folder of another training.
    """
    if arm not in ARMS:
        raise ValueError(f"unknown arm: got {arm!r}; expected one of {', '.join(ARMS)}")
    chosen, options, place = ARMS[arm], recipe or Recipe(), Path(folder)
    model, tokenizer = _untrained(data, chosen, options, seed)
    remove_heads(model, without)
    before: list[pd.DataFrame] = []
    if chosen.masked:
        first = Probes(place / f"masked-{seed}", tokenizer, probed, "masked")
        train_masked(
            model,
            tokenizer,
            longer_twice(masked_texts(data, texts)),
            first.place,
            hidden=options.hidden,
            batch=options.masked_batch,
            rate=options.masked_rate,
            seed=seed,
            callbacks=[first, Checkpoints(options.minutes)],
            **_arguments(options.masked_steps, options.masked_warmup, options),
        )
        before.append(first.table())
        model = loading.place(loading.load(first.place)[0])  # the same config as on resuming
    if chosen.shuffled:
        beginnings.shuffle_queries_and_keys(model, seed=seed)
    _set_dropout(model, options.dropout)
    probes = Probes(place / f"{arm}-{seed}", tokenizer, probed, "translation", before)
    arguments = _arguments(options.steps, options.warmup, options)
    arguments["label_smoothing_factor"] = options.smoothing
    train(
        model,
        tokenizer,
        longer_twice(data.train),
        probes.place,
        held_out=data.dev[:300],
        batch=options.batch,
        rate=options.rate,
        rates={"encoder.": options.encoder_rate} if chosen.positions == "pretrained" else None,
        seed=seed,
        callbacks=[probes, Checkpoints(options.minutes)],
        **arguments,
    )
    return probes.table()


def masked_texts(data: Prepared, texts: Corpus | None = None) -> Corpus:
    """Collect sentences for a masked language model: training sources and `texts`, each once, none held out."""
    held = {sentence.text for part in (data.dev, data.test, data.parsed) for sentence in part}
    unique = dict.fromkeys(sentence.text for corpus in (data.train, texts or ()) for sentence in corpus)
    return Corpus("masked", tuple(Sentence(text) for text in unique if text not in held))


def longer_twice(corpus: Corpus) -> Corpus:
    """Repeat every sentence of at least five words, because syntactic roles are learnt from long sentences."""
    rows = [sentence for sentence in corpus for _ in range(2 if len(sentence.text.split()) >= LONG else 1)]
    return Corpus(corpus.name, tuple(rows))


def _untrained(data: Prepared, arm: Arm, recipe: Recipe, seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if arm.positions == "pretrained":
        model, pair = beginnings.pretrained(
            data.train, layers=recipe.decoder_layers, pieces=recipe.pieces, dropout=recipe.dropout, seed=seed
        )
        return loading.place(model), pair
    tokenizer = AutoTokenizer.from_pretrained(data.tokenizer)
    layers = recipe.encoder_layers, recipe.decoder_layers
    untrained = beginnings.untrained(
        tokenizer, arm.positions, width=recipe.width, heads=recipe.heads, layers=layers, seed=seed
    )
    return loading.place(untrained), tokenizer


def _arguments(steps: int, warmup: int, recipe: Recipe) -> TrainOptions:
    """Return options of the Trainer for a phase."""
    adam: TrainOptions = {"adam_beta2": 0.98, "weight_decay": 0.01}
    rates: TrainOptions = {"lr_scheduler_type": "inverse_sqrt", "warmup_steps": warmup}
    logs: TrainOptions = {"logging_strategy": "steps", "logging_steps": recipe.every}
    logs["train_sampling_strategy"] = "random"
    if recipe.by_length:
        logs["train_sampling_strategy"] = ORDER if recipe.shuffle else "group_by_length"
    return {"max_steps": steps, "save_strategy": "no", "save_total_limit": 2, **adam, **rates, **logs, **pace()}


def _set_dropout(model: PreTrainedModel, rate: float) -> None:
    """Set the dropout of Marian and BART, which store it as a number."""
    for module in model.modules():
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = rate  # type: ignore[assignment]
    if hasattr(model.config, "dropout"):
        model.config.dropout = rate
