"""The recipe of a replication: sizes of the model, options of training, numbers of heads to keep."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.data.corpus import Corpus
from headroles.experiments.preparation import Prepared
from headroles.training.hf_trainer import TrainerOptions, TrainOptions
from headroles.training.marian import marian

WARMUP = 0.1  # share of the steps of a training before the peak learning rate
TUNED = 0.1  # peak rate of pruning as a share of that of training, because it starts from trained weights
GATES = 0.1  # learning rate of gates; most of them converge in a few hundred steps


@dataclass(frozen=True)
class Recipe:
    """Sizes of the model, its training, and the numbers of heads it is pruned to; Transformer-base by default.

    Args:
        width: Width of the model.
        layers: Layers of the encoder, and of the decoder.
        heads: Heads of each attention.
        inner: Width of the feed-forward layers; by default 4 x `width`.
        dropout: Dropout.
        smoothing: Label smoothing of training.
        epochs: Epochs of training.
        batch: Pairs of a step.
        rate: Peak learning rate; by default 7e-4 at width 512, and larger by the square root for narrower models.
        tune_epochs: Epochs of training for each size of pruning.
        tune_pairs: Number of first pairs of that training; by default all.
        encoder_keep: Shares of the encoder's heads that pruning keeps.
        keep: Shares of all heads that pruning keeps.
        n_resamples: Number of bootstrap resamples.
        seed: Seed of the weights and of training.
    """

    width: int = 512
    layers: int = 6
    heads: int = 8
    inner: int | None = None
    dropout: float = 0.1
    smoothing: float = 0.1
    epochs: int = 20
    batch: int = 512
    rate: float | None = None
    tune_epochs: int = 1
    tune_pairs: int | None = None
    encoder_keep: tuple[float, ...] = (0.75, 0.5, 0.33, 0.2, 0.125, 0.06)
    keep: tuple[float, ...] = (0.75, 0.5, 0.375, 0.25)
    n_resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "epochs", "batch", "tune_epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(
                f"{self.heads} heads do not share a width of {self.width} equally; give a multiple of {self.heads}"
            )
        if wrong := [share for share in (*self.encoder_keep, *self.keep) if not 0 < share < 1]:
            raise ValueError(f"keep is a share of the heads, between 0 and 1; got {wrong[0]:g}")

    def model(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        """Build the untrained model."""
        sizes = {"width": self.width, "layers": self.layers, "heads": self.heads}
        inner = self.inner or 4 * self.width
        return marian(tokenizer, **sizes, inner=inner, seed=self.seed, dropout=self.dropout, activation_function="relu")

    def training(self) -> TrainOptions:
        """Return options of `train` for the whole model, with a checkpoint every twentieth of the steps."""
        rate = self.rate or 7e-4 * (512 / self.width) ** 0.5
        return {
            **self._both(rate),
            "epochs": self.epochs,
            "label_smoothing_factor": self.smoothing,
            "save_steps": 0.05,
            "save_total_limit": 2,
        }

    def tuning(self) -> TrainOptions:
        """Return options of `train` for each size of pruning; gates are learnt from the loss without smoothing."""
        rate = TUNED * self.training()["rate"]
        return {**self._both(rate), "epochs": self.tune_epochs, "save_steps": 0.25, "save_total_limit": 1}

    def tuned_on(self, data: Prepared) -> Corpus:
        """Select the pairs on which each size of pruning is trained."""
        return data.train if self.tune_pairs is None else data.train[: self.tune_pairs]

    def _both(self, rate: float) -> TrainOptions:
        adam: TrainOptions = {"adam_beta2": 0.98, "adam_epsilon": 1e-9}
        schedule: TrainOptions = {"lr_scheduler_type": "cosine", "warmup_steps": WARMUP, "save_strategy": "steps"}
        return {"batch": self.batch, "rate": rate, "seed": self.seed, **adam, **schedule, **pace()}


def pace() -> TrainerOptions:
    """Return options of the Trainer that keep a GPU busy: bfloat16 and workers for batches; none on a CPU."""
    if not torch.cuda.is_available():
        return {}
    workers = max(1, min(4, (os.cpu_count() or 1) - 1))
    loader: TrainerOptions = {"dataloader_num_workers": workers, "dataloader_prefetch_factor": 4}
    loader["dataloader_persistent_workers"] = True
    return {"bf16": torch.cuda.is_bf16_supported(including_emulation=False), **loader}


def batch_tokens() -> int:
    """Return the largest number of tokens in a batch of measuring: as many as keep a GPU busy."""
    return 32768 if torch.cuda.is_available() else 4096
