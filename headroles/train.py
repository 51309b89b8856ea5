"""Training: a translation model or a classifier through the Hugging Face Trainer, a checkpoint and a row each epoch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import batches, heads, models, outputs
from headroles.evaluation import evaluate
from headroles.metrics import Metric
from headroles.text import Corpus

HISTORY = "history.parquet"


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
    **arguments: Any,
) -> pd.DataFrame:
    """Train `model` on `corpus`, in place, and save it with its tokenizer in `folder`: a row per epoch.

    A classifier learns the labels, an encoder-decoder the translations. Columns: `epoch`, `step`, `loss` (the mean over
    the epoch, dropout on), and each of the `metrics` (those of `ablate`) on `held_out` with `.low` and `.high`.
    `rate` is the peak learning rate, `batch` the number of examples of a step on each process; `arguments` are those of
    `transformers.TrainingArguments` (`warmup_steps=`, `bf16=`, `save_total_limit=` ...). The folder keeps a checkpoint
    of each epoch; training that was stopped goes on after the last. A folder of finished training is not trained again:
    its weights are taken. Raises ValueError for a model that is neither, for a corpus without labels or translations,
    and for a folder of other training.
    """
    place = Path(folder)
    rows = _rows(model, tokenizer, corpus)
    recipe = heads.sign(
        model=models.name(model),
        weights=models.revision(model),
        corpus=corpus.name,
        text=corpus.hash,
        held_out=held_out.hash if held_out is not None else None,
        metrics=",".join(map(str, metrics)),
        epochs=epochs,
        batch=batch,
        rate=rate,
        seed=seed,
        options=",".join(f"{name}={value}" for name, value in sorted(arguments.items())),
        headroles=version("headroles"),
    )
    _claim(place, recipe)
    if (place / HISTORY).is_file():
        model.load_state_dict(type(model).from_pretrained(place).state_dict())
        return heads.load(place / HISTORY)
    watcher = _watcher(tokenizer, held_out, metrics, seed)
    options = {"num_train_epochs": epochs, "per_device_train_batch_size": batch, "learning_rate": rate, "seed": seed}
    trainer = _trainer(model, tokenizer, rows, place, watcher, options | arguments)
    trainer.train(resume_from_checkpoint=_last(place))
    model.eval()
    table = _table(trainer.state.log_history, recipe)
    if trainer.is_world_process_zero():
        model.save_pretrained(place)
        tokenizer.save_pretrained(place)
        heads.save(table, place / HISTORY)
    trainer.accelerator.wait_for_everyone()
    return table


def classifier(name: str | Path, corpus: Corpus, **options: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A hub id or a local folder as a classifier of the labels of `corpus`, its tokenizer; a new head is drawn by 0.

    Raises ValueError for a corpus without labels.
    """
    labels = sorted({one.label for one in corpus if one.label is not None})
    if len(labels) < 2 or None in {one.label for one in corpus}:
        raise ValueError(f"corpus {corpus.name!r} needs a label for each sentence, of at least two; found {labels}")
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    return models.load(name, cls="AutoModelForSequenceClassification", **names, **options)


def _rows(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, corpus: Corpus) -> list[dict[str, Any]]:
    """What the Trainer's collator takes: the tokens of each example and its label, or those of its translation."""
    classes = outputs.has_classes(model)
    if not classes and not model.config.is_encoder_decoder:
        raise ValueError(
            f"{type(model).__name__} is neither a classifier nor an encoder-decoder; "
            f"headroles.train.classifier(name, corpus) loads it with a new head for the labels of a corpus"
        )
    encoded = batches.encode(corpus, tokenizer, model, words=False)
    sources: list[dict[str, Any]] = [
        {"input_ids": one.ids} | ({"token_type_ids": one.types} if one.types else {}) for one in encoded.source
    ]
    if classes:
        labels: Sequence[Any] = outputs.numbered(model, [one.sentence.label for one in encoded.source])
    elif encoded.target is None:
        raise ValueError(f"corpus {corpus.name!r} lacks translations to learn; give a target, or a classifier")
    else:
        labels = [one.ids for one in encoded.target]
    return [row | {"labels": label} for row, label in zip(sources, labels, strict=True)]


def _claim(place: Path, recipe: str) -> None:
    """Note in the folder what is trained there. Raises ValueError if that is something else."""
    note = place / "recipe.txt"
    if note.is_file() and note.read_text() != recipe:
        raise ValueError(f"{place} holds training of another model, corpus or options; give another folder")
    with heads.replacing(note) as draft:
        draft.write_text(recipe)


def _last(place: Path) -> str | None:
    """The last whole checkpoint in the folder: one that was being written when the run was killed is not."""
    found = [path for path in place.glob("checkpoint-*") if (path / "trainer_state.json").is_file()]
    return str(max(found, key=lambda path: int(path.name.rpartition("-")[2]))) if found else None


def _trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[dict[str, Any]],
    place: Path,
    watcher: transformers.TrainerCallback,
    options: dict[str, Any],
) -> transformers.Trainer:
    quiet: dict[str, Any] = {"logging_strategy": "epoch", "report_to": "none", "disable_tqdm": not sys.stderr.isatty()}
    usual: dict[str, Any] = {"save_strategy": "epoch", "train_sampling_strategy": "group_by_length"}
    usual |= {"dataloader_pin_memory": torch.cuda.is_available()}
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(output_dir=str(place), **{**quiet, **usual, **options}),
        train_dataset=rows,  # any sequence of rows will do
        data_collator=transformers.DataCollatorForSeq2Seq(tokenizer, model=model)
        if model.config.is_encoder_decoder
        else transformers.DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        callbacks=[watcher],
    )
    trainer.remove_callback(transformers.PrinterCallback)  # it prints to standard output
    return trainer


def _watcher(
    tokenizer: PreTrainedTokenizerBase, held_out: Corpus | None, metrics: Sequence[str | Metric], seed: int
) -> transformers.TrainerCallback:
    """What measures the model at the end of each epoch, into the log that checkpoints keep."""

    class Watcher(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            entry = state.log_history[-1]
            if "loss" not in entry or held_out is None:
                return
            found = evaluate(kwargs["model"], tokenizer, held_out, metrics, seed=seed)
            for name, row in found.iterrows():
                entry |= {f"held_out {name}{end}": float(row[key]) for end, key in _ENDS.items()}

    return Watcher()


_ENDS = {"": "value", ".low": "low", ".high": "high"}


def _table(log: list[dict[str, Any]], recipe: str) -> pd.DataFrame:
    kept = [entry for entry in log if "loss" in entry]
    table = pd.DataFrame(kept).drop(columns=["grad_norm", "learning_rate"], errors="ignore")
    table = table[["epoch", "step", "loss", *(name for name in table if str(name).startswith("held_out"))]]
    table.attrs["signatures"] = dict.fromkeys(table.columns, recipe)
    table.attrs["recipe"] = recipe
    return table
