"""Learned gates: L0 pruning (Voita et al. 2019) and, below it, selection of k heads (Li et al. 2021)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles.analysis.summaries import HIGH, LOW  # limits of the stretched variable
from headroles.models.heads import head_index
from headroles.models.masking import Head
from headroles.training.hf_trainer import Spread

Freeze = Literal["nothing", "decoder", "all"]
RAMP = 0.7  # share of the training after which a target number of heads is reached
DRAWS = 1000  # draws that estimate the probability of a head to be among the k
GAIN = 0.02  # integral gain of the penalty strength, per step and per share of heads above the target
SHARE = 0.5  # of heads that stay, where neither a number nor a strength is given
SHARP = 20.0  # final stretch of log alpha away from the threshold, where no rate is given
RATE = Spread(path=20.0, largest=1.0)  # default learning rate of gates; log alpha starts 5 above a gate of zero


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

    def whole(self, log_alpha: Tensor) -> Tensor:
        """Compute P(gate = 1)."""
        return torch.sigmoid(log_alpha - self.temperature * torch.tensor((1 - LOW) / (HIGH - 1)).log())

    def nonzero_probability(self, log_alpha: Tensor) -> Tensor:
        """Compute P(gate != 0), which sums to E[L0] over heads."""
        return 1 - self.zero_probability(log_alpha)


class Gates(nn.Module, ABC):
    """Gates of the heads `learnt`, one parameter each; the gates of other heads are one.

    `horizon` is the number of training forwards in which the schedule of the gates ends, `step` counts them.
    """

    step: Tensor
    places: Tensor  # of the heads with gates among all
    keep: int | None  # target number of heads; None: determined by the strength

    def __init__(self, model: PreTrainedModel, learnt: Sequence[Head], start: float) -> None:
        super().__init__()
        index = head_index(model)
        self.heads, self.learnt, self.horizon = len(index), list(learnt), 0
        places = torch.tensor([index.get_loc(head) for head in learnt], dtype=torch.long)
        self.register_buffer("places", places, persistent=False)
        self.register_buffer("step", torch.zeros((), dtype=torch.float64))
        self.log_alpha = nn.Parameter(torch.full((len(learnt),), float(start)))
        self.drawn: Tensor | None = None
        self.to(model.device)

    def now(self) -> Tensor:
        """Return the gates of all heads, [heads]: the draw of a training step, otherwise zeros and ones."""
        return self.drawn if self.training and self.drawn is not None else self._all(self.final())

    def draw(self) -> None:
        """Draw the gates of a training step."""
        self.drawn = self._all(self.sample())
        self.step += 1

    def _all(self, learnt: Tensor) -> Tensor:
        ones = torch.ones(self.heads, device=learnt.device)
        return ones.index_copy(0, self.places, learnt)

    def progress(self) -> float:
        """Return the completed fraction of the schedule, in [0, 1]; `horizon` must be set."""
        if not self.horizon:
            raise ValueError("gates.horizon is not set: give the number of training forwards of the schedule")
        return min(1.0, float(self.step) / self.horizon)

    @abstractmethod
    def sample(self) -> Tensor:
        """Draw gates for one training step: [learnt]."""

    @abstractmethod
    def final(self) -> Tensor:
        """Return the gates outside training, 0 or 1: [learnt]."""

    @abstractmethod
    def chances(self) -> Tensor:
        """Compute P(gate != 0): [learnt]."""

    def penalty(self) -> Tensor:
        """Compute the term that is added to the mean loss."""
        return self.log_alpha.new_zeros(())


class _HardConcreteGates(Gates):
    """Hard Concrete gates with a penalty, which follows a target number of heads if there is one."""

    pressure: Tensor

    def __init__(self, model: PreTrainedModel, learnt: Sequence[Head], l0: L0, keep: int | None) -> None:
        super().__init__(model, learnt, l0.start)
        self.distribution, self.keep, self.strength = HardConcrete(l0.temperature), keep, l0.strength
        self.stretched = l0.rate is None
        self.register_buffer("pressure", torch.zeros((), dtype=torch.float64, device=self.step.device))

    def sample(self) -> Tensor:
        """Draw Hard Concrete gates; with a target, first adapt the penalty strength (PI controller)."""
        if self.keep is not None:
            self.pressure.copy_((self.pressure + GAIN * self.above()).clamp(min=0))
        return self.distribution.sample(self.alpha())

    def alpha(self) -> Tensor:
        """Return log alpha, stretched at the end away from the threshold between kept and pruned heads, or from 0."""
        if not (self.stretched and self.horizon):
            return self.log_alpha
        part = max(0.0, (self.progress() - RAMP) / (1 - RAMP)) if self.training else 1.0
        middle = self.log_alpha.detach().sort(descending=True).values[(self.keep or 0) - 1 :][:2].mean()
        middle = middle if self.keep else torch.zeros_like(middle)
        return (1 + (SHARP - 1) * part) * (self.log_alpha - middle) + (1 - part) * middle

    def above(self) -> Tensor:
        """Compute the expected share of heads above the target, which falls linearly to `keep`."""
        count, part = len(self.learnt), min(1.0, self.progress() / RAMP)
        target = count - part * (count - (self.keep or 0))
        return (self.chances().detach().sum() - target) / count

    def final(self) -> Tensor:
        """Return the likelier of zero and one; with a target, ones for so many of the likeliest heads."""
        if self.keep is None:
            return (self.log_alpha > 0).float()
        return _largest(self.log_alpha, self.keep)

    def chances(self) -> Tensor:
        """Compute P(gate != 0): [learnt]."""
        return self.distribution.nonzero_probability(self.alpha())

    def penalty(self) -> Tensor:
        """Compute strength times E[L0]."""
        if self.strength is not None:
            return self.strength * self.chances().sum()
        return (self.pressure + self.above()).clamp(min=0).to(self.log_alpha) * self.chances().sum()


class GateStrategy(ABC):
    """Pruning strategy that learns gates, and the model with them unless parts of it are frozen."""

    rate: float | None  # learning rate of the gates
    freeze: Freeze

    @property
    @abstractmethod
    def name(self) -> str:
        """Name used in result columns."""

    def gates(self, model: PreTrainedModel, learnt: Sequence[Head], keep: int | None) -> Gates:
        """Return new gates for heads of a model, of which `keep` stay (None with a strength), for `train_gates`."""
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ValueError(f"the learning rate of gates must be above zero; got {self.rate}")
        return self._gates(model, learnt, keep)

    @abstractmethod
    def _gates(self, model: PreTrainedModel, learnt: Sequence[Head], keep: int | None) -> Gates: ...


@dataclass(frozen=True)
class L0(GateStrategy):
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

    def _gates(self, model: PreTrainedModel, learnt: Sequence[Head], keep: int | None) -> Gates:
        if (self.strength is None) == (keep is None):
            raise ValueError("L0 takes either a strength or a number of heads to keep: L0(strength=0.05), or keep=0.5")
        if self.strength is not None and not 0 <= self.strength < math.inf:
            raise ValueError(f"the strength of L0 must not be negative; got {self.strength}")
        if not self.temperature > 0:
            raise ValueError(f"the temperature of L0 must be above zero; got {self.temperature}")
        return _HardConcreteGates(model, learnt, self, keep)


def relaxed_top(weights: Tensor, k: int, temperature: float) -> Tensor:
    """Compute a relaxed k-hot vector (Xie and Ermon 2019): k softmaxes, each without the mass of those before."""
    itself = torch.eye(len(weights), dtype=torch.bool, device=weights.device)
    chosen, left = torch.zeros_like(weights), weights
    for _ in range(k):
        scaled = left / temperature
        others = scaled.expand(len(weights), -1).masked_fill(itself, -torch.inf).logsumexp(-1)
        chosen = chosen + torch.softmax(scaled, -1)
        left = left + others - scaled.logsumexp(-1)  # log(1 - p), exact also where p is nearly 1
    return chosen


class _SubsetGates(Gates):
    """Relaxed selection of k heads."""

    keep: int

    def __init__(self, model: PreTrainedModel, learnt: Sequence[Head], strategy: SubsetSelection, keep: int) -> None:
        super().__init__(model, learnt, 0.0)
        self.keep, self.strategy = keep, strategy

    def sample(self) -> Tensor:
        """Draw the relaxed indicator of the k largest perturbed weights; its sum is k."""
        noise = -(-torch.rand_like(self.log_alpha).clamp(1e-6, 1 - 1e-6).log()).log()
        return relaxed_top(self.log_alpha + noise, self.keep, self.temperature())

    def temperature(self) -> float:
        """Return the temperature, which falls geometrically over the schedule."""
        hot, cold = self.strategy.hot, self.strategy.cold
        return math.exp(math.log(hot) + self.progress() * math.log(cold / hot))

    def final(self) -> Tensor:
        """Return ones for the k heads with the largest weights."""
        return _largest(self.log_alpha, self.keep)

    def chances(self) -> Tensor:
        """Estimate how often each head is among the k largest perturbed weights, with a generator of fixed seed."""
        generator = torch.Generator().manual_seed(0)
        noise = -(-torch.rand(DRAWS, len(self.learnt), generator=generator).clamp(1e-6, 1 - 1e-6).log()).log()
        places = (self.log_alpha.detach().cpu() + noise).topk(self.keep).indices  # [draw, k]
        return (places.flatten().bincount(minlength=len(self.learnt)) / DRAWS).to(self.log_alpha)


@dataclass(frozen=True)
class SubsetSelection(GateStrategy):
    """Differentiable selection of exactly k heads (Li et al. 2021, section 3).

    Gates are a relaxed top-k of Gumbel-perturbed weights.

    Attributes:
        hot: Temperature at the start of the training (in the authors' code 1000, on BERT).
        cold: Temperature at its end (1e-8).
        rate: Learning rate of the weights, by default 20 over the number of steps, at most 1.
        freeze: Parameters of the model that do not train with the gates: "nothing", "decoder" or "all".
    """

    hot: float = 4.0
    cold: float = 0.05
    rate: float | None = None
    freeze: Freeze = "nothing"
    name = "exactly"

    def _gates(self, model: PreTrainedModel, learnt: Sequence[Head], keep: int | None) -> Gates:
        if keep is None:
            raise ValueError("SubsetSelection needs a number of heads to keep: keep=0.5, or keep=12")
        if not min(self.hot, self.cold) > 0:
            raise ValueError(f"the temperatures of SubsetSelection must be above zero; got {self.hot} and {self.cold}")
        return _SubsetGates(model, learnt, self, keep)


def _largest(weights: Tensor, k: int) -> Tensor:
    return torch.zeros_like(weights).index_fill(0, weights.topk(k).indices, 1.0)
