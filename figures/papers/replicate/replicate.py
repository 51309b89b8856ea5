"""The papers on a translator trained from scratch: train, score, ablate, evaluate, prune and relate its heads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from marian import marian
from preparation import Prepared
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

import headroles as hr
from headroles.scores.registry import DEFAULT

GATES = 0.1  # learning rate of gates


@dataclass(frozen=True)
class Recipe:
    """Sizes of the model, its training, and the shares of heads it is pruned to; Transformer-base by default."""

    width: int = 512
    layers: int = 6
    heads: int = 8
    epochs: int = 20
    batch: int = 512
    tune_pairs: int | None = None  # first pairs of the training for each size of pruning; by default all
    encoder_keep: tuple[float, ...] = (0.75, 0.5, 0.33, 0.2, 0.125, 0.06)  # of the encoder's heads
    keep: tuple[float, ...] = (0.75, 0.5, 0.375, 0.25)  # of all heads
    n_resamples: int = 1000
    seed: int = 0

    def model(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        """Build the untrained model."""
        sizes = {"width": self.width, "layers": self.layers, "heads": self.heads, "inner": 4 * self.width}
        return marian(tokenizer, **sizes, seed=self.seed, activation_function="relu")

    def training(self) -> dict[str, Any]:
        """Return options of `hr.train` for the whole model, with a checkpoint every twentieth of the steps."""
        rate = 7e-4 * (512 / self.width) ** 0.5
        saved = {"save_steps": 0.05, "save_total_limit": 2}
        return {**self._both(rate), "epochs": self.epochs, "label_smoothing_factor": 0.1, **saved}

    def tuning(self) -> dict[str, Any]:
        """Return options of `hr.train` for each size of pruning: a tenth of the rate, no label smoothing."""
        rate = 0.1 * self.training()["rate"]
        return {**self._both(rate), "epochs": 1, "save_steps": 0.25, "save_total_limit": 1}

    def _both(self, rate: float) -> dict[str, Any]:
        adam = {"adam_beta2": 0.98, "adam_epsilon": 1e-9}
        schedule = {"lr_scheduler_type": "cosine", "warmup_steps": 0.1, "save_strategy": "steps"}
        order = {"train_sampling_strategy": "group_by_length"}  # with which the committed studies were made
        return {"batch": self.batch, "rate": rate, "seed": self.seed, **adam, **schedule, **order, **pace()}


def pace() -> dict[str, Any]:
    """Return options of the Trainer that keep a GPU busy: bfloat16 and workers for batches; none on a CPU."""
    if not torch.cuda.is_available():
        return {}
    return {
        "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
        "dataloader_num_workers": max(1, min(4, (os.cpu_count() or 1) - 1)),
        "dataloader_prefetch_factor": 4,
        "dataloader_persistent_workers": True,
    }


def replicate(folder: Path, data: Prepared, recipe: Recipe) -> None:
    """Make all tables of the study; each is kept, and interrupted training resumes where it was stopped."""
    study = hr.Study(folder, work=folder.with_name(f"{folder.name}-weights"))
    model, tokenizer = _trained(study, data, recipe)
    parts = model, tokenizer
    sampling = {"n_resamples": recipe.n_resamples, "max_tokens": 32768 if torch.cuda.is_available() else 4096}
    scores = [*DEFAULT, "importance", hr.Relevance("cp")]
    hr.score(*parts, data.parsed, scores, reference=data.train, study=study, **sampling)
    hr.roles(study)
    hr.ablate(*parts, data.dev, metric="loss", study=study, **sampling)
    for name, part in (("other", data.other), ("test", data.test)):
        if part is not None and not study.has(f"evaluation-{name}"):
            table = hr.evaluate(*parts, part, ["loss", "bleu", "chrf"], **sampling)
            hr.save_table(table, study.path(f"evaluation-{name}"))
    pruned = {"scored": {"corpus": data.parsed, "reference": data.train}, "tune": recipe.tuning(), "metric": "bleu"}
    corpora = data.train[: recipe.tune_pairs], data.test
    for kinds, freeze, keep in ((["enc-self"], "decoder", recipe.encoder_keep), (None, "nothing", recipe.keep)):
        gates = hr.L0(rate=GATES, freeze=freeze)
        hr.sparsity_sweep(*parts, *corpora, gates, keep=keep, kinds=kinds, study=study, **pruned)
    hr.relate(folder, [folder], columns=["ablation", "survival"], seed=recipe.seed, study=study)


def _trained(study: hr.Study, data: Prepared, recipe: Recipe) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Train the model from scratch, or load it if it is trained; the study keeps the history."""
    tokenizer = AutoTokenizer.from_pretrained(data.tokenizer)
    model = recipe.model(tokenizer).to("cuda" if torch.cuda.is_available() else "cpu")
    history = hr.train(model, tokenizer, data.train, study.work / "model", held_out=data.dev, **recipe.training())
    hr.save_table(history, study.path("history"))
    return model, tokenizer
