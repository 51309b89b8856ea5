"""The set-up of the Hugging Face Trainer: rates per parameter, a log that survives interruptions, numbers in it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Sampler
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_pt_utils import LengthGroupedSampler

from headroles import _distributed
from headroles.models.head_model import HeadModel
from headroles.models.loading import is_adapted
from headroles.training.checkpoints import load_weights, save_adapter
from headroles.training.examples import MASKED, Epochs, Masking, Row, collator

ORDER = "shuffled_groups"  # the default of `train_sampling_strategy`
MINUTE = _distributed.MINUTE
_UNLOGGED = "unlogged"  # key of an entry of the log: the loss summed since the last row, and that row's step
TrainOptions = dict[str, Any]  # options of `train`, by name


@dataclass(frozen=True)
class Spread:
    """Peak learning rate: `path` / steps, at most `largest`, so that trainings of any length move weights alike."""

    path: float
    largest: float

    def __call__(self, steps: int) -> float:
        """Return the rate for a number of steps."""
        return min(self.path / steps, self.largest)


class Trainer(transformers.Trainer):
    """Trainer with learning rates by prefix of parameter names; its log does not depend on interruptions."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        rows: Sequence[Row],
        folder: Path,
        *,
        epochs: int = 3,
        batch: int = 32,
        rate: float = 2e-5,
        seed: int = 0,
        **options: Any,
    ) -> None:
        masked, callbacks = options.pop("mlm_probability", MASKED), options.pop("callbacks", ())
        self.rates: Mapping[str, float | Spread] = options.pop("rates", None) or {}  # by prefix of parameter names
        self.shuffles_groups = options.get("train_sampling_strategy", ORDER) == ORDER
        if self.shuffles_groups:
            options["train_sampling_strategy"] = "group_by_length"
        usual: dict[str, Any] = {
            "save_strategy": "epoch",
            "logging_strategy": "epoch",
            "logging_nan_inf_filter": False,  # it would log 0 for NaN
            "report_to": "none",
            "restore_callback_states_from_checkpoint": True,
            "disable_tqdm": not sys.stderr.isatty(),
            "dataloader_pin_memory": torch.cuda.is_available(),
        }
        if _distributed.count() > 1 and not torch.cuda.is_available():  # else each would train by itself
            usual |= {"use_cpu": True, "ddp_backend": "gloo"}
        arguments = transformers.TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=epochs,
            per_device_train_batch_size=batch,
            learning_rate=rate,
            seed=seed,
            **(usual | options),
        )
        for module in model.modules():  # constants, which a loaded Marian lets train and does not save (5.24)
            if "Sinusoid" in type(module).__name__:
                module.requires_grad_(False)
        batches = collator(HeadModel(model, tokenizer), tokenizer, rows, seed=seed, masked=masked)
        super().__init__(model, arguments, batches, rows, processing_class=tokenizer)
        if arguments.gradient_accumulation_steps > 1 and self.label_smoother is None:
            self.model_accepts_loss_kwargs = _divides_by_all_labels(self, batches([*islice(rows, 32)]))
        self.summed: Tensor | float = 0.0  # the loss of the steps since the last row of the log
        self.since = 0
        self.autocast_smart_context_manager = self.accelerator.autocast  # type: ignore[method-assign]  # of the loss
        self.forward = {name: value for name, value in vars(model).items() if name == "forward"}
        self.remove_callback(transformers.PrinterCallback)  # it prints to standard output
        for callback in (_Unlogged(self), *([Epochs(batches)] if isinstance(batches, Masking) else []), *callbacks):
            self.add_callback(callback)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Make the batches; persistent workers have their own generator, so that resumed training is the same."""
        batches = super().get_train_dataloader()
        if self.args.dataloader_persistent_workers:
            loader: Any = getattr(batches, "base_dataloader", batches)  # accelerate wraps it
            loader.generator = torch.Generator().manual_seed(self.args.seed)
        return batches

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        sampler = super()._get_train_sampler(train_dataset)
        if not isinstance(sampler, LengthGroupedSampler):
            return sampler
        return _Groups(sampler, seed=self.args.seed, shuffled=self.shuffles_groups)

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Create an optimizer with a parameter group for each of `rates`; ValueError if no name begins with its key."""
        named = [*(model or self.model).named_parameters()]  # type: ignore[union-attr]
        free = [(name, value) for name, value in named if value.requires_grad]
        groups = {key: [value for name, value in free if name.startswith(key)] for key in self.rates}
        if lacking := [key for key in self.rates if not any(name.startswith(key) for name, _ in named)]:
            raise ValueError(f"a key of rates must be the beginning of a parameter name, got {lacking[0]!r}")
        for value in (value for values in groups.values() for value in values):
            value.requires_grad = False
        optimizer = super().create_optimizer(model)
        for values in groups.values():
            for value in values:
                value.requires_grad = True
            optimizer.add_param_group({"params": values, "lr": 0.0, "weight_decay": 0.0})
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        """Set the rates, which may depend on the number of steps, and create the scheduler."""
        groups = (optimizer or self.optimizer).param_groups  # type: ignore[union-attr]
        for group, rate in zip(groups[len(groups) - len(self.rates) :], self.rates.values(), strict=True):
            group["lr"] = rate(num_training_steps) if isinstance(rate, Spread) else rate
        return super().create_scheduler(num_training_steps, optimizer)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Tensor], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Run a training step and sum the loss; the Trainer's own sum is lost with the process."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.summed += loss.detach().double()
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the mean loss of all steps since the last row, including steps before an interruption."""
        if "loss" in logs:
            logs["loss"] = self.total() / (self.state.global_step - self.since)
            self.summed, self.since = 0.0, self.state.global_step
            if not math.isfinite(logs["loss"]):
                raise ValueError(
                    f"the loss is {logs['loss']} after {self.state.global_step} steps; earlier checkpoints are "
                    f"kept; try a lower learning rate"
                )
        registered = self.callback_handler.callbacks
        registered.sort(key=lambda callback: not isinstance(callback, Reporter))  # they report first
        super().log(logs, start_time)

    def total(self) -> float:
        """Return the loss summed since the last row, the mean over processes."""
        summed = torch.as_tensor(self.summed, dtype=torch.float64, device=self.args.device)
        return float(self.accelerator.gather(summed).mean())

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        trained: Any = self.model
        if not is_adapted(trained):
            super()._save(output_dir, state_dict)
        elif self.args.should_save:
            save_adapter(trained, Path(str(output_dir or self.args.output_dir)))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:  # noqa: ARG002
        trained: Any = self.model
        load_weights(trained, Path(resume_from_checkpoint))


def _divides_by_all_labels(trainer: Trainer, inputs: Mapping[str, Any]) -> bool:
    """Return whether the loss is divided by the number of labels in all parts of a step, which many models ignore."""
    model: Any = trainer.model
    if not trainer.model_accepts_loss_kwargs:
        return False
    given = {name: value.to(model.device) if isinstance(value, Tensor) else value for name, value in inputs.items()}
    with HeadModel(model).evaluating(), torch.no_grad():
        first, second = (model(**given, num_items_in_batch=torch.tensor(count)).loss for count in (1, 2))
    return not torch.allclose(first, second, equal_nan=True)  # NaN: no label of a masked language model


class _Groups(Sampler[int]):
    """Groups of similar length in an order by seed and epoch alone, or in transformers' order: longest of 50 first."""

    def __init__(self, grouped: LengthGroupedSampler, *, seed: int, shuffled: bool) -> None:
        self.grouped, self.seed, self.shuffled, self.epoch = grouped, seed, shuffled, 0

    def __len__(self) -> int:
        return len(self.grouped)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, as the Trainer does."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 10_007 + self.epoch)
        self.grouped.generator = generator
        groups = torch.tensor(list(self.grouped)).split(self.grouped.batch_size)
        if self.shuffled:
            full = len(self.grouped) // self.grouped.batch_size  # a smaller group stays the last
            order = torch.randperm(full, generator=generator).tolist()
            groups = (*(groups[number] for number in order), *groups[full:])
        return iter(torch.cat(groups).tolist())


class _Unlogged(TrainerCallback):
    """Callback that keeps the loss since the last row in the log of checkpoints within an epoch."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.said = trainer, monotonic()

    def on_train_begin(self, args: object, state: TrainerState, control: object, **kwargs: object) -> None:  # noqa: ARG002
        attributes = vars(self.trainer.model)
        if attributes.pop("_original_forward", None):  # accelerate has put the forward under autocast, for good
            del attributes["forward"]
            attributes.update(self.trainer.forward)
        log: list[dict[str, Any]] = state.log_history  # transformers does not type other records
        kept = [entry for entry in log if entry.get("step") == state.global_step and _UNLOGGED in entry]
        self.trainer.summed, self.trainer.since = kept[-1][_UNLOGGED] if kept else (0.0, state.global_step)

    def on_step_end(self, args: object, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:  # noqa: ARG002
        if self.trainer.args.logging_strategy == "epoch" and float(state.epoch).is_integer():
            control.should_log = True  # a checkpoint of this step has the row, which is not written once it is resumed
        if self.trainer.args.disable_tqdm and state.is_world_process_zero and monotonic() - self.said >= MINUTE:
            self.said = monotonic()
            _distributed.log.info("training: step %d of %d", state.global_step, state.max_steps)
        log: list[dict[str, Any]] = state.log_history
        log[:] = [entry for entry in log if _UNLOGGED not in entry]
        if control.should_save and not control.should_log:
            log.append({"step": state.global_step, _UNLOGGED: [self.trainer.total(), self.trainer.since]})


class Reporter(TrainerCallback):
    """Callback with numbers that are reported at every row of the log, but not kept in the log of checkpoints."""

    def scalars(self) -> dict[str, float]:
        """Return the numbers by name."""
        raise NotImplementedError

    def on_log(self, args: object, state: object, control: object, **kwargs: object) -> None:  # noqa: ARG002
        """Add the numbers to the reported ones."""
        logs = kwargs.get("logs")
        if isinstance(logs, dict):
            logs.update(self.scalars())
