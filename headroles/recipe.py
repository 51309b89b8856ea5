"""A recipe: all that a replication of the papers follows from besides its data, the paper's sizes unless told."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.marian import marian
from headroles.prepared import Prepared
from headroles.text import Corpus

WARMUP = 0.1  # share of the steps of a training until the rate is at its peak
TUNED = 0.1  # of the peak rate of training: that of pruning, which starts from trained weights
GATES = 0.1  # the rate of gates, of which a training of a few hundred steps decides most


@dataclass(frozen=True)
class Recipe:
    """Sizes of the model, how it is trained, to how many heads it is pruned: Transformer-base unless told otherwise.

    `layers` and `heads` are of the encoder and of the decoder, `inner` is by default 4 x `width`; `rate`, the peak
    learning rate, by default 7e-4 at width 512 and larger for narrower models, by the square root. `encoder_keep` are
    the shares of the encoder's heads, `keep` of all heads, that stay; each size is trained for `tune_epochs` on the
    first `tune_pairs` pairs.
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
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "epochs", "batch", "tune_epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(
                f"{self.heads} heads do not share a width of {self.width} equally; give a multiple of {self.heads}"
            )
        if wrong := [one for one in (*self.encoder_keep, *self.keep) if not 0 < one < 1]:
            raise ValueError(f"keep is a share of the heads, between 0 and 1; got {wrong[0]:g}")

    def model(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        """The model, untrained."""
        sizes = {"width": self.width, "layers": self.layers, "heads": self.heads}
        inner = self.inner or 4 * self.width
        return marian(tokenizer, **sizes, inner=inner, seed=self.seed, dropout=self.dropout, activation_function="relu")

    def training(self) -> dict[str, Any]:
        """Options of `train` for the whole model: what is lost when it is killed is at most a twentieth."""
        rate = self.rate or 7e-4 * (512 / self.width) ** 0.5
        return {
            **self._both(rate),
            "epochs": self.epochs,
            "label_smoothing_factor": self.smoothing,
            "save_steps": 0.05,
            "save_total_limit": 2,
        }

    def tuning(self) -> dict[str, Any]:
        """Options of `train` for each size of pruning; gates are learnt from the loss without smoothing."""
        rate = TUNED * self.training()["rate"]
        return {**self._both(rate), "epochs": self.tune_epochs, "save_steps": 0.25, "save_total_limit": 1}

    def tuned_on(self, data: Prepared) -> Corpus:
        """The pairs on which each size of pruning is trained."""
        return data.train if self.tune_pairs is None else data.train[: self.tune_pairs]

    def _both(self, rate: float) -> dict[str, Any]:
        adam = {"adam_beta2": 0.98, "adam_epsilon": 1e-9}
        schedule = {"lr_scheduler_type": "cosine", "warmup_steps": WARMUP, "save_strategy": "steps"}
        return {"batch": self.batch, "rate": rate, "seed": self.seed, **adam, **schedule, **pace()}


def pace() -> dict[str, Any]:
    """What keeps a GPU busy: bfloat16 where it has it, and batches padded by other processes; on a CPU nothing."""
    if not torch.cuda.is_available():
        return {}
    workers = max(1, min(4, (os.cpu_count() or 1) - 1))
    filled = {"dataloader_num_workers": workers, "dataloader_prefetch_factor": 4, "dataloader_persistent_workers": True}
    return {"bf16": torch.cuda.is_bf16_supported(including_emulation=False), **filled}


def budget() -> int:
    """How many tokens are measured at once: as many as keep a GPU busy."""
    return 32768 if torch.cuda.is_available() else 4096
