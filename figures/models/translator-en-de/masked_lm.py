"""Train the encoder of a translator as a masked language model, by the Hugging Face Trainer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from replication import LONGEST
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainerControl

from headroles.data.corpus import Corpus
from headroles.models.head_model import HeadModel
from headroles.training.hf_trainer import Trainer
from headroles.training.trainer import finished, fit


def train_masked(
    model: PreTrainedModel,  # with `get_encoder` and output embeddings
    tokenizer: PreTrainedTokenizerBase,  # with an unknown token
    texts: Corpus,  # cut at 128 tokens
    folder: str | Path,
    *,
    hidden: float,  # share of masked tokens, drawn at every step
    batch: int,
    rate: float,
    seed: int,  # of the order of sentences and of masked tokens
    callbacks: Sequence[TrainerCallback] = (),
    **arguments: Any,
) -> None:
    """Train the encoder of a translator, in place, to predict masked tokens, and save the model.

    The unknown token replaces masked ones; predictions use the translator's output embeddings. Interrupted training is
    resumed from its last checkpoint; the weights of a finished training are read; a folder of another training raises
    ValueError.
    """
    place = Path(folder)
    options = {"hidden": hidden, "batch": batch, "rate": rate, "seed": seed} | arguments
    recipe = HeadModel(model, tokenizer).cache_key(text=texts.hash, **options)
    if finished(model, place, recipe) is not None:
        return
    ids = tokenizer([sentence.text for sentence in texts], truncation=True, max_length=LONGEST)["input_ids"]
    fit(
        model,
        tokenizer,
        [{"input_ids": row} for row in ids],
        place,
        recipe,
        make=partial(_Masked, partial(_masked_loss, hidden, tokenizer.unk_token_id)),
        batch=batch,
        rate=rate,
        seed=seed,
        callbacks=callbacks,
        **arguments,
    )


class _Masked(Trainer):
    """Trainer with a loss of a model and a batch."""

    def __init__(self, loss: Callable[[PreTrainedModel, Mapping[str, Tensor]], Tensor], *given: Any, **options: Any):
        super().__init__(*given, **options)
        self.loss_of_batch, self.loss_is_scaled_for_ga = loss, False

    def compute_loss(self, model: PreTrainedModel, inputs: Mapping[str, Tensor], *_: object, **__: object) -> Tensor:
        """Compute the loss of a batch."""
        return self.loss_of_batch(model, inputs)


class Checkpoints(TrainerCallback):
    """Callback that asks for a checkpoint when some minutes have passed since the last one."""

    def __init__(self, minutes: float) -> None:
        self.seconds, self.last = 60 * minutes, time.monotonic()

    def on_step_end(self, args: object, state: object, control: TrainerControl, **kwargs: object) -> None:  # noqa: ARG002
        """Ask the Trainer for a checkpoint."""
        if time.monotonic() - self.last >= self.seconds:
            control.should_save, self.last = True, time.monotonic()


def _masked_loss(share: float, unknown: int, model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """Compute the loss of masked tokens, drawn in the step so that a resumed run draws the same."""
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    hidden = (torch.rand(ids.shape) < share).to(ids.device) & (mask > 0) & (ids != model.config.eos_token_id)
    states = model.get_encoder()(input_ids=ids.masked_fill(hidden, unknown), attention_mask=mask).last_hidden_state
    logits = model.get_output_embeddings()(states[hidden])  # [hidden, piece]
    return F.cross_entropy(logits.float(), ids[hidden], reduction="sum") / max(1, int(hidden.sum()))
