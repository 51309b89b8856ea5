"""Training of language models, translators and classifiers by the Hugging Face Trainer, resumable after each epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainerState

from headroles.ablation.effects import evaluate
from headroles.ablation.metrics import Metric, as_metric
from headroles.data.corpus import CorpusLike
from headroles.data.readers import as_corpus
from headroles.models import loading, missing
from headroles.models.head_model import HeadModel
from headroles.models.identity import LENGTH, PLACES, fingerprint, tokenizer_digest
from headroles.scores.outputs import class_names, has_word_labels
from headroles.tables.arguments import number, several
from headroles.tables.io import expanded, load_table, save_table
from headroles.training.checkpoints import adapter_name, checkpoints, load_weights, save_adapter
from headroles.training.examples import MASKED, Row, examples, is_language_model
from headroles.training.hf_trainer import ORDER, Trainer

HISTORY, PROVENANCE = "history.parquet", "recipe.txt"
UNNAMED = ("mlm_probability", "rates", "callbacks")  # options that the provenance names otherwise, or not at all
_ENDS = {"": "value", ".low": "low", ".high": "high"}


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    folder: str | Path,
    *,
    held_out: CorpusLike | None = None,
    metrics: Sequence[str | Metric] = ("loss",),
    epochs: int = 3,
    batch: int = 32,
    rate: float = 2e-5,
    seed: int = 0,
    length: int | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Train a model and save it with its tokenizer.

    The model is trained in place. A classifier learns the labels of the corpus, of texts or words, an encoder-decoder
    the translations, a causal language model the next token of each text, a masked one masked tokens, which are drawn
    in every epoch. The folder keeps a checkpoint of each epoch, and interrupted training continues after the last one.
    If the folder has finished training, its weights are loaded. Parameters that take no gradient stay as they are.

    If the model has an adapter of PEFT, such as LoRA, only the adapter is trained and saved, in PEFT's format.

    The examples of a step have similar lengths, and steps are in a random order. `train_sampling_strategy=` may be
    "group_by_length", with the longest first in every 50 steps, or "random".

    Args:
        model: A language model, an encoder-decoder or a classifier; also a PeftModel.
        tokenizer: Its tokenizer.
        corpus: The corpus, with translations or labels where the model learns them.
        folder: Where checkpoints, the model, its tokenizer and the history are kept.
        held_out: Corpus on which the metrics are measured after each epoch.
        metrics: Names of metrics or objectives. Or metrics.
        epochs: Number of epochs.
        batch: Examples of a step on each process.
        rate: Peak learning rate.
        seed: Seed of the order of examples, of masked tokens and of dropout.
        length: Tokens of an example of a language model: all sentences, joined by the special tokens of the tokenizer,
            or by its end token if it adds none, are divided into examples of this length. By default each sentence is
            an example, as where the loss is measured.
        **options: Arguments of `transformers.TrainingArguments` (`warmup_steps=`, `bf16=`, `save_total_limit=` and so
            on), and four others. `mlm_probability`: share of the tokens that a masked language model learns (0.15).
            `rates`: prefix of parameter names -> another peak learning rate. `callbacks`: callbacks of the Trainer.
            `note`: anything else that the training depends on, part of its provenance.

    Returns:
        A table with a row per epoch: `epoch`, `step`, `loss` (mean over the epoch, with dropout), and each metric on
        `held_out` with `.low` and `.high`, its 95 % interval.

    Raises:
        ValueError: If the loss is not finite, the model is neither classifier, language model nor encoder-decoder or
            has several adapters, the corpus lacks labels or translations, a metric cannot be measured, or the folder
            has other training.

    Example:
        >>> history = hr.train(model, tokenizer, corpus, "trained", held_out=dev, epochs=3)
    """  # noqa: DOC502
    number("epochs", epochs, least=1, whole=True)
    note = options.pop("note", "")
    place, corpus = expanded(folder), as_corpus(corpus)
    held_out = None if held_out is None else as_corpus(held_out)
    measured = [as_metric(metric) for metric in several(metrics)] if held_out is not None else []
    handle = HeadModel(model, tokenizer)
    handle.check_gradients(all_floating=not loading.is_adapted(handle.model))
    if loading.is_adapted(handle.model):  # a PeftModel
        model = handle.model
        adapter_name(model)  # fails now rather than after an epoch
    else:
        loading.check_savable(model, place)
    chosen = {"train_sampling_strategy": ORDER, **options, **(options.get("rates") or {})}
    provenance = handle.provenance(
        corpus,
        tokenizer=tokenizer_digest(handle.tokenizer),
        held_out=held_out.hash if held_out is not None else None,
        metrics=",".join(map(str, measured)),
        code=",".join(map(fingerprint, measured)),
        epochs=epochs,
        batch=batch,
        rate=rate,
        seed=seed,
        options=",".join(f"{name}={value}" for name, value in sorted(chosen.items()) if name not in UNNAMED),
        **fixed_parameters(handle.model),
        **_text_options(handle, length, options.get("mlm_probability", MASKED)),
        **({"note": note} if note else {}),
    )
    if (history := finished(model, place, provenance)) is not None:
        return history
    rows = examples(handle, corpus, length=length)
    missing.forget(model)
    if held_out is not None:  # fails now rather than after an epoch
        evaluate(model, tokenizer, held_out[:2], measured, n_resamples=0)
        measure = partial(evaluate, model, tokenizer, held_out, measured, seed=seed)
        options["callbacks"] = [_Evaluation(measure), *options.get("callbacks", ())]
    columns = [f"held_out {metric.name}{end}" for metric in measured for end in _ENDS]
    options |= {"epochs": epochs, "batch": batch, "rate": rate, "seed": seed}
    return fit(model, tokenizer, rows, place, provenance, columns=columns, **options)


def fixed_parameters(model: PreTrainedModel) -> dict[str, str]:
    """Return a digest of the names of frozen parameters, for the keys of trainings; empty if there are none."""
    if loading.is_adapted(model):  # only the adapter trains
        return {}
    constants = [name for name, module in model.named_modules() if "Sinusoid" in type(module).__name__]
    named = ((name, value) for name, value in model.named_parameters() if name.rpartition(".")[0] not in constants)
    names = [name for name, value in named if not value.requires_grad]
    return {"frozen": hashlib.sha256(repr(names).encode()).hexdigest()[:LENGTH]} if names else {}


def _text_options(handle: HeadModel, length: int | None, mlm_probability: float) -> dict[str, object]:
    """Return the provenance of the examples of a language model."""
    if not is_language_model(handle):
        return {}
    masked = {} if handle.predicts_next else {"mlm_probability": mlm_probability}
    return {"length": length or "sentences", **masked}


def load_classifier(
    name: str | Path, corpus: CorpusLike, **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model as a classifier of the labels of texts or words; a new classification head is drawn with seed 0.

    Numbers that depend on a new head are refused until it is trained (`load`).

    Args:
        name: Hub id or local folder.
        corpus: The corpus; one without labels, or with labels that are not classes, raises ValueError.
        **options: Further options of `load`.

    Returns:
        The model and its tokenizer.
    """
    corpus = as_corpus(corpus)
    labels = class_names(corpus)
    usual = {
        "cls": f"AutoModelFor{'Token' if has_word_labels(corpus) else 'Sequence'}Classification",
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
    }
    return loading.load(name, **usual | options)


def finished(model: PreTrainedModel, folder: Path, provenance: str) -> pd.DataFrame | None:
    """Load the weights of finished training, also of added modules such as gates, and return its history, or None."""
    recipe, is_finished = folder / PROVENANCE, (folder / HISTORY).is_file()
    if not recipe.is_file() and loading.weight_files(folder):
        raise ValueError(f"{folder} holds a model that was not trained there; give another folder")
    if (is_finished or checkpoints(folder)) and recipe.read_text() != provenance:
        raise ValueError(
            f"{folder} holds training of another model, corpus or options; give another folder, or remove it"
        )
    if not is_finished:
        return None
    trained = load_weights(model, folder)
    if trained is not model:
        _configure(model, trained)
    model.eval()
    return load_table(folder / HISTORY)


def _configure(model: PreTrainedModel, trained: PreTrainedModel) -> None:
    """Set the options that training has set: special tokens by the tokenizer, the kind of loss, the dtype."""
    for name in trained.config.to_dict():
        value = getattr(trained.config, name, None)
        if name not in PLACES and not isinstance(value, PreTrainedConfig):
            setattr(model.config, name, value)
    if model.can_generate():
        model.generation_config = trained.generation_config


def fit(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    folder: Path,
    provenance: str,
    *,
    make: Callable[..., Trainer] = Trainer,
    columns: Sequence[str] = (),  # of the history, which callbacks add to the log
    **options: Any,
) -> pd.DataFrame:
    """Train a model in place, starting from a folder's last checkpoint, save it there, and return its history."""
    cached = model.config.use_cache if hasattr(model.config, "use_cache") else None
    trainer = make(model, tokenizer, rows, folder, **options)
    last = next(reversed(checkpoints(folder)), None)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PROVENANCE).write_text(provenance)
    try:
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
    finally:
        model.eval()
        if cached is not None:
            model.config.use_cache = cached  # the Trainer switches it off permanently
    table = pd.DataFrame([entry for entry in trainer.state.log_history if "loss" in entry])
    table = table[["epoch", "step", "loss", *columns]]
    table.attrs["signatures"] = dict.fromkeys(table.columns, provenance)
    table.attrs["recipe"] = provenance
    if trainer.is_world_process_zero():
        if loading.is_adapted(model):
            save_adapter(model, folder)
            tokenizer.save_pretrained(folder)
        else:
            loading.save(model, tokenizer, folder, overwrite=True)
        save_table(table, folder / HISTORY)
    trainer.accelerator.wait_for_everyone()
    return table


class _Evaluation(TrainerCallback):
    """Callback that measures a model after each epoch, into the log that checkpoints keep."""

    def __init__(self, measure: Callable[[], pd.DataFrame]) -> None:
        self.measure = measure

    def on_log(self, args: object, state: TrainerState, control: object, **kwargs: object) -> None:  # noqa: ARG002
        entry = state.log_history[-1]
        if "loss" in entry:
            for name, row in self.measure().iterrows():
                entry |= {f"held_out {name}{end}": float(row[key]) for end, key in _ENDS.items()}
