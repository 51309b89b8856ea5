"""Training of gates: add them to a model, freeze parts of it, and record how the gates change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedModel, TrainerCallback, TrainerState, TrainingArguments

from headroles import _distributed
from headroles.models import heads
from headroles.models.attention_hooks import exclusive
from headroles.models.head_model import HeadModel
from headroles.models.masking import Head, mask_heads
from headroles.pruning.l0 import Freeze, Gates
from headroles.scores.outputs import causal
from headroles.tables import frame
from headroles.tables.io import save_table
from headroles.training.hf_trainer import Reporter, log_of

NAME = "head_gates"  # of the gates among the model's modules, for the Trainer, its optimizer and checkpoints
SHOWN = 60  # records of the gates in one training


@contextmanager
def train_gates(model: PreTrainedModel, gates: Gates) -> Iterator[None]:
    """Add gates to a model within the block, also for the stock Trainer or your own training loop.

    A forward pass in training mode draws the gates and adds their penalty to the returned loss. In eval mode gates are
    0 or 1. The gates are a module of the model, `head_gates`, which optimizers and checkpoints include.

    Args:
        model: A Hugging Face model, which must return a loss: a forward pass in training mode without one (as with
            label smoothing outside the model) raises ValueError.
        gates: Gates made by `L0.gates` or `SubsetSelection.gates`.

    Yields:
        Nothing.
    """
    with exclusive(model):
        yield from _gated(model, gates)


def _gated(model: PreTrainedModel, gates: Gates) -> Iterator[None]:
    sites, is_causal = heads.attention_sites(model), causal(HeadModel(model))
    model.add_module(NAME, gates)
    heads.remember(model, sites)
    begun: list[None] = []  # a training forward that has not ended

    def before(module: nn.Module, _: object) -> None:
        if module.training:
            gates.step -= len(begun)  # a forward that failed was no step
            gates.draw()
            begun[:] = [None]

    def after(module: nn.Module, _: object, inputs: Mapping[str, Tensor], output: _Output) -> None:
        if not module.training:
            return
        loss: Tensor | None = getattr(output, "loss", None)
        if loss is None:
            raise ValueError(
                "the model returned no loss, from which gates are learnt: give it labels, and leave label smoothing out"
            )
        output.loss = loss + gates.penalty() * _share(inputs, causal=is_causal)
        begun.clear()

    hooks = [model.register_forward_pre_hook(before), model.register_forward_hook(after, with_kwargs=True)]
    try:
        with mask_heads(model, gates.now):
            yield
    finally:
        for hook in hooks:
            hook.remove()
        gates.drawn = None
        delattr(model, NAME)
        heads.remember(model, sites)


class _Output(Protocol):
    """Output of a model."""

    loss: Tensor | None


def _share(inputs: Mapping[str, Tensor], *, causal: bool) -> float:
    """Return the share of a forward pass in its optimizer step, by labels counted as the Trainer counts them.

    A causal model does not predict the first label of a text.
    """
    total, labels = inputs.get("num_items_in_batch"), inputs.get("labels")
    if total is None or labels is None:
        return 1.0
    return float((labels[..., 1:] if causal else labels).ne(-100).sum() / total)


@contextmanager
def frozen(model: PreTrainedModel, what: Freeze) -> Iterator[None]:
    """Freeze the model's parameters within the block, or those of the "decoder" alone; gates still train."""
    if what not in ("nothing", "decoder", "all"):
        raise ValueError(f"unknown part {what!r} to freeze; known: nothing, decoder, all")
    if what == "decoder" and not model.config.is_encoder_decoder:
        raise ValueError(f"{type(model).__name__} has no decoder beside an encoder to freeze")
    free: set[nn.Parameter] = set(getattr(model, NAME).parameters()) if hasattr(model, NAME) else set()
    if what == "decoder":
        encoder, decoder = (set(part.parameters()) for part in (model.get_encoder(), model.get_decoder()))
        free |= encoder - decoder
    with exclusive(model):
        trained = [] if what == "nothing" else [value for value in model.parameters() if value.requires_grad]
        held = [value for value in trained if value not in free]
        for value in held:
            value.requires_grad = False
        try:
            yield
        finally:
            for value in held:
                value.requires_grad = True


class GateWatcher(TrainerCallback):
    """Callback that sets the schedule of gates and records them in the log that checkpoints keep."""

    def __init__(self, gates: Gates) -> None:
        self.gates, self.start = gates, float(gates.log_alpha.detach().max())
        self.records: list[tuple[int, list[float]]] = []  # step, P(gate != 0) of each gate

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: Any) -> None:  # noqa: ARG002
        """Set the length of the schedule, and check that gates can reach zero."""
        batches = math.ceil(args.num_train_epochs * len(kwargs["train_dataloader"]))
        self.gates.horizon = batches if args.max_steps <= 0 else args.max_steps * args.gradient_accumulation_steps
        self._check_reach(state.max_steps, kwargs["optimizer"], kwargs["lr_scheduler"])
        if not state.global_step:
            self._record(state)

    def _check_reach(self, steps: int, optimizer: Optimizer, scheduler: LRScheduler) -> None:
        """Raise ValueError if no strength can prune a head: an optimizer such as Adam moves by at most the rate."""
        group = optimizer.param_groups[-1]  # that of the gates
        rate, factors = group.get("initial_lr", group["lr"]), getattr(scheduler, "lr_lambdas", None)
        reach = rate * (sum(map(factors[-1], range(steps))) if factors else steps)
        if self.gates.keep is None and reach < self.start:
            raise ValueError(
                f"{steps} steps at a rate of {rate:g} cannot bring a gate to zero, whatever the strength: log alpha "
                f"begins at {self.start:g} and falls by at most {reach:.2g}; try more steps, or a larger rate of gates "
                f"(or none: the default follows from the number of steps)"
            )

    def on_step_end(self, args: object, state: TrainerState, control: object, **kwargs: object) -> None:  # noqa: ARG002
        """Record the gates at regular steps and at the last one."""
        if state.global_step % max(1, state.max_steps // SHOWN) == 0 or state.global_step == state.max_steps:
            self._record(state)

    def _record(self, state: TrainerState) -> None:
        log_of(state).append({"step": state.global_step, "gates": self.gates.chances().detach().tolist()})

    def on_train_end(self, args: object, state: TrainerState, control: object, **kwargs: object) -> None:  # noqa: ARG002
        """Collect the records, also those made before the training was resumed."""
        self.records = [(entry["step"], entry["gates"]) for entry in log_of(state) if "gates" in entry]


class GateReport(Reporter):
    """Callback that reports the gates to TensorBoard, Weights & Biases and the like (`report_to`)."""

    def __init__(self, gates: Gates, learnt: Sequence[Head]) -> None:
        self.gates, self.kinds = gates, [kind for kind, _, _ in learnt]

    def scalars(self) -> dict[str, float]:
        """Return the expected number of open heads, of all kinds together and of each."""
        chances = pd.Series(self.gates.chances().detach().double().cpu().numpy())
        expected = chances.groupby(self.kinds, sort=False).sum()
        return {
            "gates/expected_heads": float(chances.sum()),
            **{f"gates/expected_heads_{kind}": float(count) for kind, count in expected.items()},
        }


def write_history(place: Path, watcher: GateWatcher, history: pd.DataFrame, learnt: Sequence[Head]) -> None:
    """Save the history of gates, `gates.parquet`: a row per head and step with P(gate != 0) in `open`."""
    if not watcher.records or not _distributed.first():  # the training was finished before
        return
    rows = [(*head, step, value) for step, gates in watcher.records for head, value in zip(learnt, gates, strict=True)]
    table = pd.DataFrame(rows, columns=[*frame.LEVELS, "step", "open"])
    table.attrs["signatures"] = dict.fromkeys(["step", "open"], history.attrs["signatures"]["loss"])
    save_table(table, place / "gates.parquet")
