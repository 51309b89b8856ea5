"""What goes with a training of gates: how long it is, whether it can close a gate, and how gates moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import transformers

from headroles import _distributed
from headroles.models.masking import Head
from headroles.pruning.learned_gates import Gates
from headroles.tables import frame
from headroles.tables.io import save_table

SHOWN = 60  # how often gates are written down in one training


class GateWatcher(transformers.TrainerCallback):
    """Tells gates how long the training is, and writes them down as it goes, into the log that checkpoints keep."""

    def __init__(self, gates: Gates) -> None:
        self.gates, self.start, self.log = gates, float(gates.log_alpha.detach().max()), list[dict[str, Any]]()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Set how long the training is, and check that gates can close."""
        epochs, batches = args.num_train_epochs, len(kwargs["train_dataloader"])
        whole = (
            math.ceil(epochs * batches) if args.max_steps <= 0 else args.max_steps * args.gradient_accumulation_steps
        )
        self.gates.horizon = whole  # forwards, of which the last of an epoch may be fewer than a step takes
        self._check_reach(state.max_steps, kwargs["optimizer"].param_groups[-1], kwargs["lr_scheduler"])
        if not state.global_step:
            self._note(state)

    def _check_reach(self, steps: int, group: dict[str, Any], scheduler: Any) -> None:
        """Raises ValueError where no strength closes a gate: an optimizer such as Adam moves by at most the rate."""
        rate = group.get("initial_lr", group["lr"])  # the gates' group is the last one
        factors = getattr(scheduler, "lr_lambdas", None)
        reach = rate * (sum(map(factors[-1], range(steps))) if factors else steps)
        if self.gates.keep is None and reach < self.start:
            raise ValueError(
                f"{steps} steps at a rate of {rate:g} cannot close a gate, whatever the strength: log alpha begins at "
                f"{self.start:g} and comes down by at most {reach:.2g}; train for more steps, or leave the rate of "
                f"gates out, or give a larger one"
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Write the gates down now and then."""
        if state.global_step % max(1, state.max_steps // SHOWN) == 0 or state.global_step == state.max_steps:
            self._note(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Take what was written down, also before the training was resumed."""
        self.log = [entry for entry in state.log_history if "gates" in entry]

    def _note(self, state: Any) -> None:
        state.log_history.append({"step": state.global_step, "gates": self.gates.chances().detach().tolist()})


def write_history(place: Path, watcher: GateWatcher, history: pd.DataFrame, learnt: Sequence[Head]) -> None:
    """The history of gates: a row per head and step, P(gate != 0) in `open`."""
    if not watcher.log or not _distributed.first():  # the training was finished before
        return
    rows = [
        (*head, entry["step"], value)
        for entry in watcher.log
        for head, value in zip(learnt, entry["gates"], strict=True)
    ]
    table = pd.DataFrame(rows, columns=[*frame.LEVELS, "step", "open"])
    table.attrs["signatures"] = dict.fromkeys(["step", "open"], history.attrs["signatures"]["loss"])
    save_table(table, place / "gates.parquet")
