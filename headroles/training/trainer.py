"""Training of translation models and classifiers with the Hugging Face Trainer, resumable after each epoch."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import transformers
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import _distributed
from headroles.ablation.evaluation import evaluate
from headroles.ablation.metrics import Metric
from headroles.ablation.metrics import metric as the_metric
from headroles.data.corpus import Corpus
from headroles.models import loading
from headroles.models.batching import tokenised
from headroles.models.provenance import provenance_of
from headroles.models.pruned import resized
from headroles.scores import outputs
from headroles.scores.outputs import check_labels, class_names
from headroles.tables.files import replacing
from headroles.tables.io import load_table, save_table
from headroles.training.hf_trainer import Spread, Trainer

HISTORY, RECIPE = "history.parquet", "recipe.txt"
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
    rates: Mapping[str, float | Spread] | None = None,
    callbacks: Sequence[transformers.TrainerCallback] = (),
    note: str = "",
    **arguments: Any,
) -> pd.DataFrame:
    """Train a model in place and save it with its tokenizer.

    A classifier learns the labels of the corpus, an encoder-decoder the translations. The folder keeps a checkpoint of
    each epoch, after the last of which interrupted training continues. If the folder has finished training, its weights
    are loaded.

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
    if not 0 <= rate < math.inf:
        raise ValueError(f"the learning rate must be a number from 0 on; got {rate}")
    place = Path(folder)
    measured = [the_metric(metric) for metric in metrics] if held_out is not None else []
    names = [f"held_out {metric.name}{end}" for metric in measured for end in _ENDS]
    settings = {"epochs": epochs, "batch": batch, "rate": rate, "seed": seed, "options": {**arguments, **(rates or {})}}
    settings |= {"note": note} if note else {}
    recipe = _provenance(model, tokenizer, corpus, held_out, measured, settings)
    _check_free(place, recipe)
    if (place / HISTORY).is_file():
        _take(model, place)
        model.eval()
        return load_table(place / HISTORY)
    rows = _rows(model, tokenizer, corpus)
    if held_out is not None:  # fails now rather than after an epoch
        evaluate(model, tokenizer, held_out[:2], measured, n_resamples=0)
    options = {"num_train_epochs": epochs, "per_device_train_batch_size": batch, "learning_rate": rate, "seed": seed}
    watcher = _watcher(tokenizer, held_out, measured, seed)
    cached = model.config.use_cache if hasattr(model.config, "use_cache") else None
    trainer = _trainer(model, tokenizer, rows, place, options | arguments, rates or {})
    for callback in (watcher, *callbacks, _Begun(place, recipe)):
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=_last(place))
    model.eval()
    if cached is not None:
        model.config.use_cache = cached  # the Trainer switches it off permanently
    table = _table(trainer.state.log_history, names, recipe)
    if trainer.is_world_process_zero():
        loading.save(model, tokenizer, place, overwrite=True)
        save_table(table, place / HISTORY)
    trainer.accelerator.wait_for_everyone()
    return table


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
    numbers = {label: number for number, label in enumerate(labels)}
    names: dict[str, Any] = {"id2label": dict(enumerate(labels)), "label2id": numbers}
    return loading.load(name, cls="AutoModelForSequenceClassification", **names, **options)


def _provenance(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    held_out: Corpus | None,
    metrics: Sequence[Metric],
    settings: dict[str, Any],
) -> str:
    """Return the provenance of a training."""
    options = ",".join(f"{name}={value}" for name, value in sorted(settings["options"].items()))
    return provenance_of(
        model,
        tokenizer,
        corpus,
        held_out=held_out.hash if held_out is not None else None,
        metrics=",".join(map(str, metrics)),
        **(settings | {"options": options}),
    )


def _rows(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, corpus: Corpus) -> list[dict[str, Any]]:
    """Return the collator's input: the tokens of each example and its label, or the tokens of its translation."""
    classifies = outputs.has_classes(model)
    if classifies:
        check_labels(corpus)
    elif not (model.config.is_encoder_decoder and outputs.has_vocabulary(model)):
        raise ValueError(
            f"{type(model).__name__} is neither a classifier nor an encoder-decoder that generates text; "
            f"try headroles.load_classifier(name, corpus), which adds a classification head for the labels of a corpus"
        )
    encoded = tokenised(corpus, tokenizer, model)
    sources: list[dict[str, Any]] = [
        {"input_ids": words.ids} | ({"token_type_ids": words.types} if words.types else {}) for words in encoded.source
    ]
    if classifies:
        labels: Sequence[Any] = outputs.numbered(model, [words.sentence.label for words in encoded.source])
    elif encoded.target is None:
        raise ValueError(f"corpus {corpus.name!r} lacks translations to learn; give a target, or a classifier")
    else:
        labels = [words.ids for words in encoded.target]
    return [row | {"labels": label} for row, label in zip(sources, labels, strict=True)]


def _check_free(place: Path, recipe: str) -> None:
    """Raise ValueError if the folder holds other training."""
    note = place / RECIPE
    if note.is_file() and note.read_text() != recipe:
        raise ValueError(f"{place} holds training of another model, corpus or options; give another folder")
    if not note.is_file() and loading.weight_files(place):
        raise ValueError(f"{place} holds a model that was not trained there; give another folder")


def _last(place: Path) -> str | None:
    """Return the last complete checkpoint in the folder: one that was being written at a kill is incomplete."""
    complete = [path for path in place.glob("checkpoint-*") if _is_complete(path)]
    return str(max(complete, key=lambda path: int(path.name.rpartition("-")[2]))) if complete else None


def _is_complete(checkpoint: Path) -> bool:
    """Return whether the file that is written last can be read."""
    try:
        return "log_history" in json.loads((checkpoint / "trainer_state.json").read_text())
    except (OSError, ValueError):
        return False


def _trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[dict[str, Any]],
    place: Path,
    options: dict[str, Any],
    rates: Mapping[str, float | Spread],
) -> transformers.Trainer:
    quiet: dict[str, Any] = {"logging_strategy": "epoch", "report_to": "none", "disable_tqdm": not sys.stderr.isatty()}
    usual: dict[str, Any] = {"save_strategy": "epoch", "train_sampling_strategy": "group_by_length"}
    usual |= {"logging_nan_inf_filter": False}  # it would log 0 for NaN
    usual |= {"dataloader_pin_memory": torch.cuda.is_available()}
    if _distributed.count() > 1 and not torch.cuda.is_available():  # else each would train by itself
        usual |= {"use_cpu": True, "ddp_backend": "gloo"}
    trainer = Trainer(
        rates=rates,
        model=model,
        args=transformers.TrainingArguments(output_dir=str(place), **{**quiet, **usual, **options}),
        train_dataset=rows,  # any sequence of rows will do
        data_collator=transformers.DataCollatorWithPadding(tokenizer)
        if outputs.has_classes(model)
        else transformers.DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )
    trainer.remove_callback(transformers.PrinterCallback)  # it prints to standard output
    return trainer


def _take(model: PreTrainedModel, place: Path) -> None:
    """Load the weights of finished training, also of modules added to the model, such as gates."""
    state = resized(type(model)).from_pretrained(place).state_dict()
    for file in place.glob("*.safetensors"):
        state |= {name: value for name, value in load_file(file).items() if name not in state}
    model.load_state_dict(state)


class _Begun(transformers.TrainerCallback):
    """Callback that writes the provenance of a folder once training begins; an earlier error leaves it unused."""

    def __init__(self, place: Path, recipe: str) -> None:
        self.place, self.recipe = place, recipe

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        with replacing(self.place / RECIPE) as draft:
            draft.write_text(self.recipe)


def _watcher(
    tokenizer: PreTrainedTokenizerBase, held_out: Corpus | None, metrics: Sequence[Metric], seed: int
) -> transformers.TrainerCallback:
    """Return a callback that measures the model after each epoch, into the log that checkpoints keep."""

    class Watcher(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            entry = state.log_history[-1]
            if not math.isfinite(entry.get("loss", 0.0)):
                raise ValueError(
                    f"the loss is {entry['loss']} after {state.global_step} steps; the checkpoints before are kept, "
                    f"try a lower learning rate"
                )
            if "loss" not in entry or held_out is None:
                return
            table = evaluate(kwargs["model"], tokenizer, held_out, metrics, seed=seed)
            for name, row in table.iterrows():
                entry |= {f"held_out {name}{end}": float(row[key]) for end, key in _ENDS.items()}

    return Watcher()


def _table(log: list[dict[str, Any]], names: list[str], recipe: str) -> pd.DataFrame:
    table = pd.DataFrame([entry for entry in log if "loss" in entry])[["epoch", "step", "loss", *names]]
    table.attrs["signatures"] = dict.fromkeys(table.columns, recipe)
    table.attrs["recipe"] = recipe
    return table
