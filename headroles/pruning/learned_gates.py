"""Learned gates: L0 pruning (Voita et al. 2019), trained with the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerState, TrainingArguments
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
from transformers.trainer_callback import ExportableState

from headroles._changes import Changes
from headroles.analysis.summaries import HIGH, LOW  # limits of the stretched variable
from headroles.models import heads
from headroles.models.head_model import HeadModel
from headroles.models.heads import attention_sites
from headroles.models.masking import Head, mask_heads
from headroles.tables import frame
from headroles.tables.arguments import number, one_of
from headroles.tables.io import save_table
from headroles.tables.study import Study, as_study
from headroles.training.checkpoints import GATES
from headroles.training.hf_trainer import Reporter, Spread
from headroles.training.trainer import PROVENANCE

Freeze = Literal["nothing", "decoder", "all"]
RAMP = 0.7  # share of the training after which a target number of heads is reached
GAIN = 0.02  # integral gain of the penalty strength, per step and per share of heads above the target
SHARE = 0.5  # of heads that are kept if neither a number nor a strength is given
SHARP = 20.0  # final stretch of log alpha away from the threshold, where no rate is given
RATE = Spread(path=20.0, largest=1.0)  # default learning rate of gates; log alpha starts 5 above a gate of zero
SHOWN = 60  # records of the gates in one training
HISTORY = "gates.parquet"  # in the folder of a training


@dataclass(frozen=True)
class HardConcrete:
    """Hard Concrete distribution of a gate by its log alpha (Louizos et al. 2018; Voita et al. 2019, section 6.1)."""

    temperature: float = 0.33

    def sample(self, log_alpha: Tensor) -> Tensor:
        """Draw one gate for each log alpha, differentiably, by torch's generator."""
        noise = torch.rand_like(log_alpha).clamp(1e-6, 1 - 1e-6)
        soft = torch.sigmoid((noise.log() - (1 - noise).log() + log_alpha) / self.temperature)
        return (soft * (HIGH - LOW) + LOW).clamp(0, 1)

    def zero_probability(self, log_alpha: Tensor) -> Tensor:
        """Compute P(gate = 0)."""
        return torch.sigmoid(self.temperature * torch.tensor(-LOW / HIGH).log() - log_alpha)

    def nonzero_probability(self, log_alpha: Tensor) -> Tensor:
        """Compute P(gate != 0), which sums to E[L0] over heads."""
        return 1 - self.zero_probability(log_alpha)


class Gates(nn.Module):
    """Hard Concrete gates of the heads `learnt`, one parameter each; the gates of other heads are one.

    `step` counts training forwards, and the schedule of the gates ends after `horizon` of them. The penalty has a
    strength, or follows a target number of heads.
    """

    # How does a penalty lead to a number of heads? A controller sets its strength at every step. `excess` is the error:
    # the expected share of open gates above the target, which falls linearly from all heads to `keep` in the first RAMP
    # of the training. The strength is the error itself and its sum over the steps so far, times GAIN (`pressure`): it
    # grows while too many gates are open, and falls once too few are. In the rest of the training `alpha` moves
    # log alpha away from the threshold between kept and pruned heads, so that most gates are decided at its end.

    step: Tensor
    pressure: Tensor
    places: Tensor  # of the heads with gates among all
    numbers: Tensor  # of the gate of each of these heads
    keep: int | None  # target number of heads; None: determined by the strength

    def __init__(self, model: PreTrainedModel, learnt: Sequence[Head], l0: L0, keep: int | None) -> None:
        super().__init__()
        if (l0.strength is None) == (keep is None):
            raise ValueError(f"L0 must have either a strength or keep, got strength={l0.strength} and keep={keep}")
        number("the strength of L0", l0.strength or 0, below=math.inf)
        number("the temperature of L0", l0.temperature, above=0)
        self.name, self.strength, self.stretched = l0.name, l0.strength, l0.rate is None
        self.distribution, self.keep = HardConcrete(l0.temperature), keep
        self.gated = attention_sites(model).gate_index
        self.heads, self.learnt, self.horizon = len(self.gated), list(learnt), 0
        places = torch.tensor([self.gated.get_loc(head) for head in learnt], dtype=torch.long)
        self.register_buffer("places", places, persistent=False)
        self.register_buffer("numbers", torch.arange(len(places)), persistent=False)
        self.register_buffer("step", torch.zeros((), dtype=torch.float64))
        self.register_buffer("pressure", torch.zeros((), dtype=torch.float64))
        self.log_alpha = nn.Parameter(torch.full((len(learnt),), float(l0.start)))
        self.drawn: Tensor | None = None
        self.to(model.device)

    def now(self) -> Tensor:
        """Return the gates of all heads, [heads]: the draw of a training step, otherwise zeros and ones."""
        return self.drawn if self.training and self.drawn is not None else self.for_heads(self.final())

    def draw(self) -> None:
        """Draw the gates of a training step."""
        self.drawn = self.for_heads(self.sample())
        self.step += 1

    def for_heads(self, learnt: Tensor) -> Tensor:
        """Expand values of the gates, [learnt], to all heads, [heads]: one where there is no gate."""
        return torch.ones(self.heads, device=learnt.device).index_copy(0, self.places, learnt[self.numbers])

    def tie(self, groups: Mapping[Head, Iterable[Head]]) -> None:
        """Let all heads of a group share the gate of the group's head in `learnt`."""
        pairs = [(self.gated.get_loc(head), gate) for gate, first in enumerate(self.learnt) for head in groups[first]]
        self.places, self.numbers = torch.tensor(pairs, device=self.places.device).reshape(-1, 2).T

    def table(self, index: pd.MultiIndex, label: str, provenance: str) -> pd.DataFrame:
        """Return the final gates of the heads `index`, in the column `label`, and P(gate != 0), in `label`.open."""
        columns = {label: self.final(), f"{label}.open": self.chances()}
        expanded = {name: self.for_heads(part).tolist() for name, part in columns.items()}
        return frame.table(expanded, self.gated, provenance).loc[index]

    def progress(self) -> float:
        """Return the completed share of the schedule; ValueError if `horizon` is not set."""
        if not self.horizon:
            raise ValueError("gates.horizon must be the number of training forwards of the schedule, got 0")
        return min(1.0, float(self.step) / self.horizon)

    def sample(self) -> Tensor:
        """Draw Hard Concrete gates; with a target, first adapt the penalty strength (PI controller)."""
        if self.keep is not None:
            self.pressure.copy_((self.pressure + GAIN * self.excess()).clamp(min=0))
        return self.distribution.sample(self.alpha())

    def alpha(self) -> Tensor:
        """Return log alpha, stretched at the end away from the threshold between kept and pruned heads, or from 0."""
        if not (self.stretched and self.horizon):
            return self.log_alpha
        part = max(0.0, (self.progress() - RAMP) / (1 - RAMP)) if self.training else 1.0
        middle = self.log_alpha.detach().sort(descending=True).values[(self.keep or 0) - 1 :][:2].mean()
        middle = middle if self.keep else torch.zeros_like(middle)
        return (1 + (SHARP - 1) * part) * (self.log_alpha - middle) + (1 - part) * middle

    def excess(self) -> Tensor:
        """Compute the expected share of open heads above the target, which falls linearly to `keep`."""
        count, part = len(self.learnt), min(1.0, self.progress() / RAMP)
        target = count - part * (count - (self.keep or 0))
        return (self.distribution.nonzero_probability(self.alpha()).detach().sum() - target) / count

    def final(self) -> Tensor:
        """Return the likelier value of each gate; with a target, ones for the `keep` likeliest heads."""
        if self.keep is None:
            return (self.log_alpha > 0).float()
        return torch.zeros_like(self.log_alpha).index_fill(0, self.log_alpha.topk(self.keep).indices, 1.0)

    def chances(self) -> Tensor:
        """Compute P(gate != 0): [learnt]."""
        return self.distribution.nonzero_probability(self.alpha())

    def penalty(self) -> Tensor:
        """Compute strength x E[L0]."""
        if self.strength is not None:
            return self.strength * self.chances().sum()
        return (self.pressure + self.excess()).clamp(min=0).to(self.log_alpha) * self.chances().sum()


@dataclass(frozen=True)
class L0:
    """L0 pruning with Hard Concrete gates: the loss is cross-entropy + strength x E[L0] (Voita et al. 2019, section 6).

    Attributes:
        strength: Penalty per head, on the mean loss per token (or sentence); the papers' values are on other scales.
            None, the default, adapts it to a target: the number of heads that `prune` keeps, by default half.
        temperature: Temperature of the Hard Concrete distribution.
        start: Initial log alpha.
        rate: Learning rate of the gates. None, the default, takes 20 over the number of steps, at most 1, and in the
            last 30 % of the training stretches log alpha away from the threshold, up to 20 times, so that most gates
            are decided at the end of trainings of any length. With a rate there is no stretch.
        freeze: Parameters of the model that do not train with the gates: "nothing", "decoder" or "all".
    """

    strength: float | None = None
    temperature: float = 0.33
    start: float = 2.0
    rate: float | None = None
    freeze: Freeze = "nothing"

    @property
    def name(self) -> str:
        """Name used in result columns."""
        return f"{self.strength:g}" if self.strength is not None else "l0"

    def gates(
        self,
        model: PreTrainedModel,
        learnt: Sequence[Head],
        keep: int | None,
        *,
        unit: Literal["head", "group"] = "head",
    ) -> Gates:
        """Return new gates for heads of a model, for `train_gates`; `keep` of them stay open (None with a strength).

        With the unit "group" the heads that share a key-value head have one gate, and `keep` counts gates.
        """
        if self.rate is not None:
            number("the rate of gates", self.rate, above=0, below=math.inf)
        groups = HeadModel(model).groups
        if unit == "head":
            return Gates(model, learnt, self, keep)
        gates = Gates(model, [*dict.fromkeys(min(groups[head]) for head in learnt)], self, keep)
        gates.tie(groups)
        return gates


def train_gates(
    model: PreTrainedModel, gates: Gates, *, study: Study | str | Path | None = None
) -> AbstractContextManager[object]:
    """Add gates to a model within the block, also for the stock Trainer or your own training loop.

    A forward pass in training mode draws the gates and adds their penalty to the returned loss. In eval mode gates are
    0 or 1. The gates are a module of the model, `head_gates`, which optimizers and checkpoints include.

    Args:
        model: A Hugging Face model, which must return a loss: a forward pass in training mode without one (as with
            label smoothing outside the model) raises ValueError.
        gates: Gates made by `L0.gates`.
        study: Study or folder in which the end of the block keeps the table `survival-NAME`, as `prune` does.

    Returns:
        A context manager.
    """
    gated = Changes(model, lambda changes: _add_gates(changes, model, gates))
    if study is None:
        return gated
    kept, name, handle = as_study(study), f"survival-{gates.name}", HeadModel(model)
    handle.check_named()
    provenance = handle.provenance(gates=gates.name, keep=gates.keep)
    kept.claim(name, provenance)

    @contextmanager
    def saved() -> Iterator[None]:
        with gated:
            yield
            kept.save(name, gates.table(handle.index, f"survival[{gates.name}]", provenance))

    return saved()


def _add_gates(changes: Changes, model: PreTrainedModel, gates: Gates) -> None:
    sites, loss = heads.attention_sites(model), LOSS_MAPPING.get(str(getattr(model, "loss_type", None)))
    shifts = loss is ForCausalLMLoss and not model.config.is_encoder_decoder  # the Trainer omits each first label
    begun: list[None] = []  # a training forward that has not ended

    def before(module: nn.Module, _: object) -> None:
        if module.training:
            gates.step -= len(begun)  # a forward that failed was no step
            gates.draw()
            begun[:] = [None]

    def after(module: nn.Module, _: object, inputs: Mapping[str, Tensor], output: Any) -> None:
        if not module.training:
            return
        if getattr(output, "loss", None) is None:
            raise ValueError("the model must return a loss in training, got none; try labels, and no label smoothing")
        output.loss = output.loss + gates.penalty() * _share(inputs, shifts=shifts)
        begun.clear()

    def undo() -> None:
        gates.drawn = None
        model._modules.pop(GATES, None)
        heads.remember(model, sites)

    changes.undos.append(undo)
    model.add_module(GATES, gates)
    heads.remember(model, sites)
    changes.hook(model, before)
    changes.hook(model, after, after=True, with_kwargs=True)
    mask_heads(model, gates.now).begin(changes)


# With gradient accumulation the Trainer divides the loss of each part of a step by the labels of the whole step, so
# that the parts add up to the mean loss of a label. The penalty belongs to the step, not to a part: each part gets the
# share of it that its labels have in the step, and the parts add up to one penalty. `num_items_in_batch` is the number
# of labels of the step; a loop without it takes one forward for a step.
def _share(inputs: Mapping[str, Tensor], *, shifts: bool) -> float:
    """Return the share of a forward pass in its optimizer step, by labels."""
    total, labels = inputs.get("num_items_in_batch"), inputs.get("labels")
    if total is None or labels is None:
        return 1.0
    return float((labels[..., 1:] if shifts else labels).ne(-100).sum() / total)


def frozen(model: PreTrainedModel, what: Freeze) -> Changes:
    """Freeze all parameters of the model, or of its "decoder", within the block; gates still train."""
    one_of("freeze", what, get_args(Freeze))
    if what == "decoder" and not model.config.is_encoder_decoder:
        raise ValueError(f"freeze='decoder' needs an encoder-decoder, got {type(model).__name__}")
    free: set[nn.Parameter] = set(getattr(model, GATES).parameters()) if hasattr(model, GATES) else set()
    if what == "decoder":
        encoder, decoder = (set(part.parameters()) for part in (model.get_encoder(), model.get_decoder()))
        free |= encoder - decoder

    def begin(changes: Changes) -> None:
        trained = [] if what == "nothing" else [value for value in model.parameters() if value.requires_grad]
        for value in (value for value in trained if value not in free):
            changes.undos.append(partial(value.requires_grad_, True))
            value.requires_grad_(False)

    return Changes(model, begin)


class GateRecords(Reporter, ExportableState):
    """Callback that sets the schedule of gates, records them in checkpoints and reports them (`report_to`)."""

    gates: Gates

    def __init__(self) -> None:
        self.records: list[tuple[int, list[float]]] = []

    def state(self) -> dict[str, dict[str, Any]]:
        """Return the state that a checkpoint keeps, from which resumed training recreates the callback."""
        return {"args": {}, "attributes": {"records": self.records}}

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: Any) -> None:  # noqa: ARG002
        """Set the length of the schedule."""
        self.gates = getattr(kwargs["model"], GATES)
        batches, parts = len(kwargs["train_dataloader"]), args.gradient_accumulation_steps
        epochs, steps = divmod(state.max_steps, math.ceil(batches / parts))  # the last step of an epoch has fewer parts
        self.gates.horizon = epochs * batches + min(steps * parts, batches)
        if not state.global_step:
            self._record(state)

    def on_step_end(self, args: object, state: TrainerState, control: object, **kwargs: object) -> None:  # noqa: ARG002
        """Record the gates at regular steps and at the last one."""
        if state.global_step % max(1, state.max_steps // SHOWN) == 0 or state.global_step == state.max_steps:
            self._record(state)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: object, **_: object) -> None:  # noqa: ARG002
        """Save a row for each gate and step, before the training counts as finished."""
        folder = Path(args.output_dir or "")
        rows = [(*head, step, p) for step, row in self.records for head, p in zip(self.gates.learnt, row, strict=True)]
        table = pd.DataFrame(rows, columns=[*frame.LEVELS, "step", "open"])
        if state.is_world_process_zero:
            save_table(frame.signed(table, (folder / PROVENANCE).read_text()), folder / HISTORY)

    def _record(self, state: TrainerState) -> None:
        self.records.append((state.global_step, self.gates.chances().detach().tolist()))

    def scalars(self) -> dict[str, float]:
        """Return the expected number of open heads, for all kinds together and for each."""
        chances = pd.Series(self.gates.chances().detach().double().cpu().numpy())
        expected = chances.groupby([kind for kind, _, _ in self.gates.learnt], sort=False).sum()
        return {
            "gates/expected_heads": float(chances.sum()),
            **{f"gates/expected_heads_{kind}": float(count) for kind, count in expected.items()},
        }
