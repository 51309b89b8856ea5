"""Hugging Face Trainer with learning rates per parameter, and a log that does not depend on interruptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

_UNLOGGED = "unlogged"  # key of an entry of the log: the loss summed since the last row, from which step on, and more


@dataclass(frozen=True)
class Spread:
    """Peak learning rate that depends on the number of steps: `path` over their number, at most `largest`.

    All steps together move a parameter equally far in trainings of any length.
    """

    path: float
    largest: float

    def __call__(self, steps: int) -> float:
        """Return the rate for a number of steps."""
        return min(self.path / steps, self.largest)


class Trainer(transformers.Trainer):
    """Trainer with other learning rates, `rates`, for parameters by name prefix; its log has a row per epoch."""

    def __init__(self, *args: Any, rates: Mapping[str, float | Spread], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rates = rates
        self.summed: Any = 0.0  # the loss of the steps since the last row of the log
        self.since = 0
        self.add_callback(_Unlogged(self))

    def create_optimizer(self, model: Any = None) -> Any:
        """Create an optimizer with a parameter group for each of `rates`.

        Args:
            model: The model, by default the Trainer's.

        Returns:
            The optimizer.

        Raises:
            ValueError: If no parameter has a name that begins like a key of `rates`.
        """
        named = [*(model or self.model).named_parameters()]  # type: ignore[union-attr]
        free = [(name, value) for name, value in named if value.requires_grad]
        groups = {key: [value for name, value in free if name.startswith(key)] for key in self.rates}
        if lacking := [key for key in self.rates if not any(name.startswith(key) for name, _ in named)]:
            raise ValueError(f"rates has the key {lacking[0]!r}, with which no parameter name begins")
        for value in (value for values in groups.values() for value in values):
            value.requires_grad = False
        optimizer = super().create_optimizer(*([] if model is None else [model]))
        for values in groups.values():
            for value in values:
                value.requires_grad = True
            optimizer.add_param_group({"params": values, "lr": 0.0, "weight_decay": 0.0})
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Set the rates, which may depend on the number of steps, and create the scheduler."""
        groups: list[Any] = (optimizer or self.optimizer).param_groups  # type: ignore[union-attr]
        for group, rate in zip(groups[len(groups) - len(self.rates) :], self.rates.values(), strict=True):
            group["lr"] = rate(num_training_steps) if isinstance(rate, Spread) else rate
        return super().create_scheduler(num_training_steps, optimizer)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Run a training step and sum the loss; the Trainer's own sum is lost with the process."""
        loss = super().training_step(*args, **kwargs)
        self.summed += loss.detach().double()
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the mean loss of all steps since the last row, also of those before a resumption."""
        if "loss" in logs:
            logs["loss"] = self.total() / (self.state.global_step - self.since)
            self.summed, self.since = 0.0, self.state.global_step
        super().log(logs, start_time)

    def total(self) -> float:
        """Return the loss summed since the last row, the mean over processes."""
        summed = torch.as_tensor(self.summed, dtype=torch.float64, device=self.args.device)
        return float(self.accelerator.gather(summed).mean())

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        try:
            super()._save_checkpoint(*args, **kwargs)
        except (OSError, RuntimeError, SafetensorError) as error:  # RuntimeError: torch.save
            place = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            message = f"could not write {place}: {reason}; run it again to go on from the checkpoint before it"
            raise OSError(message) from error


class _Unlogged(transformers.TrainerCallback):
    """Callback that keeps in checkpoints within an epoch the loss since the last row and the order of examples."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.random = ""  # state of torch's generator, which draws the order of examples, when the epoch began
        self.resumed = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        kept = [entry for entry in state.log_history if entry.get("step") == state.global_step and _UNLOGGED in entry]
        self.resumed = bool(kept)
        summed, since, self.random = kept[-1][_UNLOGGED] if kept else (0.0, state.global_step, "")
        self.trainer.summed, self.trainer.since = summed, since

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self.resumed:
            torch.set_rng_state(torch.tensor([*bytes.fromhex(self.random)], dtype=torch.uint8))
        self.random, self.resumed = bytes(torch.get_rng_state().tolist()).hex(), False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if args.logging_strategy == "epoch" and float(state.epoch).is_integer():
            control.should_log = True  # a checkpoint of this step has the row, which is not written once it is resumed
        state.log_history[:] = [entry for entry in state.log_history if _UNLOGGED not in entry]
        if control.should_save and not control.should_log:
            entry = {"step": state.global_step, _UNLOGGED: [self.trainer.total(), self.trainer.since, self.random]}
            state.log_history.append(entry)
