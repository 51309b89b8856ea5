"""Training of translation models and classifiers with the Hugging Face Trainer, resumable after each epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import pandas as pd
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainerState

from headroles.ablation.evaluation import evaluate
from headroles.ablation.metrics import Metric
from headroles.ablation.metrics import metric as the_metric
from headroles.data.corpus import Corpus
from headroles.models import loading
from headroles.models.head_model import HeadModel, Model
from headroles.models.pruned import resized
from headroles.scores import outputs
from headroles.scores.outputs import check_labels, class_names
from headroles.tables.io import load_table, replacing, save_table
from headroles.training.checkpoints import check_digests, last_checkpoint, write_digests
from headroles.training.hf_trainer import ORDER, Loss, Rates, Row, Trainer, TrainerOptions, TrainOptions

HISTORY, PROVENANCE = "history.parquet", "recipe.txt"
_ENDS = {"": "value", ".low": "low", ".high": "high"}


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    folder: str | Path,
    *,
    held_out: Corpus | None = None,
    metrics: Sequence[str | Metric] = ("loss",),
    epochs: int = 3,
    batch: int = 32,
    rate: float = 2e-5,
    seed: int = 0,
    rates: Rates | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    note: str = "",
    **arguments: Unpack[TrainerOptions],
) -> pd.DataFrame:
    """Train a model in place and save it with its tokenizer.

    A classifier learns the labels of the corpus, an encoder-decoder the translations. The folder keeps a checkpoint of
    each epoch, after the last of which interrupted training continues. If the folder has finished training, its weights
    are loaded.

    The examples of a step have similar lengths, so that little is padded, and steps are in a random order. With
    `train_sampling_strategy="group_by_length"`, transformers' own, the longest come first in every 50 steps: a small
    translator learnt much more slowly so from random weights. "random" takes examples of any length.

    Args:
        model: A classifier or an encoder-decoder.
        tokenizer: Its tokenizer.
        corpus: The corpus, with labels or translations.
        folder: Where checkpoints, the model, its tokenizer and the history are kept.
        held_out: Corpus on which the metrics are measured after each epoch.
        metrics: Names of metrics or objectives, or metrics.
        epochs: Number of epochs.
        batch: Examples of a step on each process.
        rate: Peak learning rate.
        seed: Seed of the order of examples and of dropout.
        rates: Prefix of parameter names -> another peak learning rate.
        callbacks: Callbacks of the Trainer.
        note: Anything else that the training depends on, part of its provenance.
        **arguments: Further `transformers.TrainingArguments` (`warmup_steps=`, `bf16=`, `save_total_limit=` and so on).

    Returns:
        A table with a row per epoch: `epoch`, `step`, `loss` (mean over the epoch, with dropout), and each metric on
        `held_out` with `.low` and `.high`, its 95 % interval.

    Raises:
        ValueError: If `rate` or the loss is not finite, the model is neither classifier nor encoder-decoder, the corpus
            lacks labels or translations, a metric cannot be measured, or the folder has other training.

    Example:
        >>> history = hr.train(model, tokenizer, corpus, "trained", held_out=dev, epochs=3)
    """
    if epochs < 1:
        raise ValueError(f"number of epochs out of range: got epochs={epochs}; expected 1 or more")
    if not 0 <= rate < math.inf:
        raise ValueError(f"the learning rate must be a number from 0 on; got {rate}")
    place = Path(folder)
    measured = [the_metric(metric) for metric in metrics] if held_out is not None else []
    handle = HeadModel(model, tokenizer)
    provenance = handle.provenance(
        corpus,
        tokenizer=handle.tokens,
        held_out=held_out.hash if held_out is not None else None,
        metrics=",".join(map(str, measured)),
        epochs=epochs,
        batch=batch,
        rate=rate,
        seed=seed,
        options=",".join(
            f"{name}={value}"
            for name, value in sorted({"train_sampling_strategy": ORDER, **arguments, **(rates or {})}.items())
        ),
        **({"note": note} if note else {}),
    )
    if (history := finished(model, place, provenance)) is not None:
        return history
    rows = _rows(handle, corpus)
    if held_out is not None:  # fails now rather than after an epoch
        evaluate(model, tokenizer, held_out[:2], measured, n_resamples=0)
        measure = partial(evaluate, model, tokenizer, held_out, measured, seed=seed)
        callbacks = [_Evaluation(measure), *callbacks]
    columns = [f"held_out {metric.name}{end}" for metric in measured for end in _ENDS]
    options: TrainOptions = {
        "epochs": epochs,
        "batch": batch,
        "rate": rate,
        "seed": seed,
        "rates": rates,
        "callbacks": callbacks,
        **arguments,
    }
    return fit(model, tokenizer, rows, place, provenance, columns=columns, **options)


def load_classifier(
    name: str | Path, corpus: Corpus, **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model as a classifier of the labels of a corpus; a new classification head is drawn with seed 0.

    Args:
        name: Hub id or local folder.
        corpus: The corpus; one without labels, or with labels that are not classes, raises ValueError.
        **options: Further options of `load`.

    Returns:
        The model and its tokenizer.
    """
    labels = class_names(corpus)
    return loading.load(
        name,
        cls="AutoModelForSequenceClassification",
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
        **options,
    )


def check_examples(model: Model, corpus: Corpus) -> None:
    """Raise ValueError, before work is done, for a model or a corpus from which nothing is learnt."""
    handle = HeadModel.of(model)
    if outputs.has_classes(handle):
        check_labels(corpus)
    elif not (handle.config.is_encoder_decoder and outputs.has_vocabulary(handle)):
        raise ValueError(
            f"{handle.name} is neither a classifier nor an encoder-decoder that generates text; "
            f"try headroles.load_classifier(name, corpus), which adds a classification head for the labels of a corpus"
        )
    elif any(sentence.target is None for sentence in corpus):
        raise ValueError(f"corpus {corpus.name!r} lacks translations to learn; give a target, or a classifier")


def _rows(handle: HeadModel, corpus: Corpus) -> list[Row]:
    """Return the collator's input: the tokens of each example and its label, or the tokens of its translation."""
    check_examples(handle, corpus)
    encoded = handle.encode(corpus, words=False)
    labels: Sequence[int | float | list[int] | list[float]]
    if encoded.target is None or outputs.has_classes(handle):
        labels = outputs.label_values(handle, [words.sentence.label for words in encoded.source])
    else:
        labels = [words.ids for words in encoded.target]
    rows: list[Row] = []
    for words, label in zip(encoded.source, labels, strict=True):
        types = {"token_type_ids": words.types} if words.types else {}
        rows.append({"input_ids": words.ids, **types, "labels": label})
    return rows


def finished(model: PreTrainedModel, folder: Path, provenance: str) -> pd.DataFrame | None:
    """Load the weights of finished training, also of added modules such as gates, and return its history, or None."""
    note = folder / PROVENANCE
    if note.is_file() and note.read_text() != provenance:
        raise ValueError(f"{folder} holds training of another model, corpus or options; give another folder")
    if not note.is_file() and loading.weight_files(folder):
        raise ValueError(f"{folder} holds a model that was not trained there; give another folder")
    if not (folder / HISTORY).is_file():
        return None
    check_digests(folder, "give another folder to train again")
    state = resized(type(model)).from_pretrained(folder).state_dict()
    for file in folder.glob("*.safetensors"):
        state |= {name: value for name, value in load_file(file).items() if name not in state}
    model.load_state_dict(state)
    model.eval()
    return load_table(folder / HISTORY)


def fit(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    folder: Path,
    provenance: str,
    *,
    loss: Loss | None = None,
    columns: Sequence[str] = (),  # of the history, which callbacks add to the log
    **options: Unpack[TrainOptions],
) -> pd.DataFrame:
    """Train a model in place from the last checkpoint of a folder on, save it there, and return its history."""
    cached = model.config.use_cache if hasattr(model.config, "use_cache") else None
    trainer = Trainer(model, tokenizer, rows, folder, loss=loss, **options)
    trainer.add_callback(_Begun(folder, provenance))
    last = last_checkpoint(folder)
    trainer.train(resume_from_checkpoint=None if last is None else str(last))
    model.eval()
    if cached is not None:
        model.config.use_cache = cached  # the Trainer switches it off permanently
    table = pd.DataFrame([entry for entry in trainer.state.log_history if "loss" in entry])
    table = table[["epoch", "step", "loss", *columns]]
    table.attrs["signatures"] = dict.fromkeys(table.columns, provenance)
    table.attrs["recipe"] = provenance
    if trainer.is_world_process_zero():
        loading.save(model, tokenizer, folder, overwrite=True)
        write_digests(folder, "*.safetensors")
        save_table(table, folder / HISTORY)
    trainer.accelerator.wait_for_everyone()
    return table


class _Begun(TrainerCallback):
    """Callback that writes the provenance of a folder once training begins; an earlier error leaves it unused."""

    def __init__(self, folder: Path, provenance: str) -> None:
        self.folder, self.provenance = folder, provenance

    def on_train_begin(self, args: object, state: object, control: object, **kwargs: object) -> None:  # noqa: ARG002
        with replacing(self.folder / PROVENANCE) as draft:
            draft.write_text(self.provenance)


class _Evaluation(TrainerCallback):
    """Callback that measures a model after each epoch, into the log that checkpoints keep."""

    def __init__(self, measure: Callable[[], pd.DataFrame]) -> None:
        self.measure = measure

    def on_log(self, args: object, state: TrainerState, control: object, **kwargs: object) -> None:  # noqa: ARG002
        entry = state.log_history[-1]
        if "loss" in entry:
            for name, row in self.measure().iterrows():
                entry |= {f"held_out {name}{end}": float(row[key]) for end, key in _ENDS.items()}
