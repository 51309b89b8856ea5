"""Train the encoder of a translator as a masked language model, by the Hugging Face Trainer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback

from headroles.data.corpus import Corpus
from headroles.models import loading
from headroles.models.provenance import cache_key, tokens
from headroles.tables.files import replacing
from headroles.tables.io import save_table
from headroles.training import trainer as training
from headroles.training.marian import LONGEST


def train_masked(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Corpus,
    folder: str | Path,
    *,
    hidden: float = 0.25,
    batch: int = 64,
    rate: float = 2e-3,
    seed: int = 0,
    callbacks: Sequence[TrainerCallback] = (),
    **arguments: Any,
) -> None:
    """Train the encoder of a translator, in place, to predict masked tokens, and save the model.

    The unknown token replaces masked ones; predictions use the translator's output embeddings. Interrupted training is
    resumed from its last checkpoint; the weights of a finished training are read.

    Args:
        model: Encoder-decoder with `get_encoder` and output embeddings.
        tokenizer: Its tokenizer, with an unknown token.
        texts: Sentences, cut at 128 tokens.
        folder: Folder for checkpoints and the model.
        hidden: Share of masked tokens, drawn at every step.
        batch: Sentences of a step.
        rate: Peak learning rate.
        seed: Seed of the order of sentences and of masked tokens.
        callbacks: Callbacks of the Trainer.
        **arguments: Options of `transformers.TrainingArguments`.

    Raises:
        ValueError: For a folder of another training.
    """  # noqa: DOC502
    place = Path(folder)
    options = {"hidden": hidden, "batch": batch, "rate": rate, "seed": seed} | arguments
    recipe = cache_key(model, tokenizer=tokens(tokenizer), text=texts.hash, **options)
    training._check_free(place, recipe)
    if (place / training.HISTORY).is_file():
        training._take(model, place)
        return
    ids = tokenizer([sentence.text for sentence in texts], truncation=True, max_length=LONGEST)["input_ids"]
    trainer = _trainer_of(hidden, tokenizer.unk_token_id)(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(place),
            per_device_train_batch_size=batch,
            learning_rate=rate,
            seed=seed,
            train_sampling_strategy="group_by_length",
            report_to="none",
            disable_tqdm=True,
            logging_nan_inf_filter=False,
            dataloader_pin_memory=torch.cuda.is_available(),
            **arguments,
        ),
        train_dataset=[{"input_ids": row} for row in ids],
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        callbacks=[*callbacks],
    )
    trainer.remove_callback(transformers.PrinterCallback)  # it prints to standard output
    with replacing(place / training.RECIPE) as draft:
        draft.write_text(recipe)
    trainer.train(resume_from_checkpoint=training._last(place))
    model.eval()
    loading.save(model, tokenizer, place, overwrite=True)
    save_table(training._table(trainer.state.log_history, [], recipe), place / training.HISTORY)


class Checkpoints(TrainerCallback):
    """Callback that asks for a checkpoint when some minutes have passed since the last one."""

    def __init__(self, minutes: float) -> None:
        self.seconds, self.last = 60 * minutes, time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Ask the Trainer for a checkpoint."""
        if time.monotonic() - self.last >= self.seconds:
            control.should_save, self.last = True, time.monotonic()


def _trainer_of(share: float, unknown: Any) -> type[transformers.Trainer]:
    """Return a Trainer with the loss of masked tokens, drawn in the step so that a resumed run draws the same."""

    class Masked(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Tensor:
            ids, mask = inputs["input_ids"], inputs["attention_mask"]
            hidden = (torch.rand(ids.shape) < share).to(ids.device) & (mask > 0) & (ids != model.config.eos_token_id)
            read = ids.masked_fill(hidden, unknown)
            states = model.get_encoder()(input_ids=read, attention_mask=mask).last_hidden_state
            logits = model.get_output_embeddings()(states[hidden])  # [hidden, piece]
            return F.cross_entropy(logits.float(), ids[hidden], reduction="sum") / max(1, int(hidden.sum()))

    return Masked
