"""L0 pruning: Hard Concrete gates under a penalty (Voita et al. 2019, section 6); exactly k heads (Li et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headroles.models.masking import Head
from headroles.pruning.learned_gates import Freeze, Gates, HardConcrete
from headroles.training.hf_trainer import Spread

RAMP = 0.7  # share of the training after which a target number of heads is reached
DRAWS = 1000  # from which the chance of a head to be chosen is told
GAIN = 0.02  # of the pressure on gates, per step and per share of heads above the target
SHARE = 0.5  # of heads that stay, where neither a number nor a strength is asked for
SHARP = 20.0  # by how much log alpha is farther from where gates part at the end, where no rate is asked for
RATE = Spread(path=20.0, largest=1.0)  # of gates, where none is asked for: log alpha starts 5 above closed


@dataclass(frozen=True)
class L0:
    """Hard Concrete gates: the loss is cross-entropy + strength x E[L0].

    `strength` is per head, on the mean loss per token (or sentence): the papers' values are on other scales and do not
    carry over. With None, the default, it is adapted so that as many heads stay open as `prune` is asked to keep, by
    default half. `start` is log alpha at first, `freeze` what of the model does not train with the gates.

    `rate` is the gates' own learning rate. With None, the default, it follows from the number of steps (20 over it, at
    most 1), and in the last 30 % of the training log alpha is stretched away from where open and closed gates part, up
    to 20 times: most gates are decided at the end of trainings of any length. With a rate nothing is stretched.
    """

    strength: float | None = None
    temperature: float = 0.33
    start: float = 2.0
    rate: float | None = None
    freeze: Freeze = "nothing"

    @property
    def name(self) -> str:
        """What its columns are called by."""
        return f"{self.strength:g}" if self.strength is not None else "l0"

    def gates(self, model: PreTrainedModel, learnt: Sequence[Head], keep: int | None) -> Gates:
        """Gates for these heads. Raises ValueError where neither a strength nor a number of heads is given."""
        if (self.strength is None) == (keep is None):
            raise ValueError("L0 takes either a strength or a number of heads to keep: L0(strength=0.05), or keep=0.5")
        if self.strength is not None and not 0 <= self.strength < math.inf:
            raise ValueError(f"the strength of L0 must not be negative; got {self.strength}")
        _check_rate(self.rate)
        if not self.temperature > 0:
            raise ValueError(f"the temperature of L0 must be above zero; got {self.temperature}")
        return _Penalised(model, learnt, self, keep)


@dataclass(frozen=True)
class SubsetSelection:
    """Exactly as many heads as are to be kept, by differentiable subset selection (Li et al. 2021, section 3).

    Gates are a relaxed top-k of Gumbel-perturbed weights, whose temperature falls from `hot` to `cold` over the
    training (in the authors' code from 1000 to 1e-8, on BERT). `rate` is the weights' own learning rate, by default 20
    over the number of steps, at most 1; `freeze` what of the model does not train with them.
    """

    hot: float = 4.0
    cold: float = 0.05
    rate: float | None = None
    freeze: Freeze = "nothing"
    name = "exactly"

    def gates(self, model: PreTrainedModel, learnt: Sequence[Head], keep: int | None) -> Gates:
        """Gates for these heads. Raises ValueError where no number of heads is given."""
        if keep is None:
            raise ValueError("Exactly needs a number of heads to keep: keep=0.5, or keep=12")
        if not min(self.hot, self.cold) > 0:
            raise ValueError(f"the temperatures of Exactly must be above zero; got {self.hot} and {self.cold}")
        _check_rate(self.rate)
        return _Subset(model, learnt, self, keep)


class _Penalised(Gates):
    """Hard Concrete gates with a penalty, whose strength follows a target where there is one."""

    pressure: Tensor

    def __init__(self, model: PreTrainedModel, learnt: Sequence[Head], l0: L0, keep: int | None) -> None:
        super().__init__(model, learnt, l0.start)
        self.law, self.keep, self.strength = HardConcrete(l0.temperature), keep, l0.strength
        self.stretched = l0.rate is None
        self.register_buffer("pressure", torch.zeros((), dtype=torch.float64, device=self.step.device))

    def sample(self) -> Tensor:
        """A draw of the Hard Concrete distribution; where there is a target the pressure on the gates follows it.

        The number of open heads is led to the target in a straight line: what is above it raises the pressure at once
        and for good (a proportional and an integral part), what is below takes it away.
        """
        if self.keep is not None:
            above = self.above()
            self.pressure.copy_((self.pressure + GAIN * above).clamp(min=0))
        return self.law.sample(self.alpha())

    def alpha(self) -> Tensor:
        """Log alpha, stretched towards the end from the middle between the last open and the first closed gate.

        Without a target that is 0, where a gate is as likely whole as closed.
        """
        if not (self.stretched and self.horizon):
            return self.log_alpha
        part = max(0.0, (self.progress() - RAMP) / (1 - RAMP)) if self.training else 1.0
        middle = self.log_alpha.detach().sort(descending=True).values[(self.keep or 0) - 1 :][:2].mean()
        middle = middle if self.keep else torch.zeros_like(middle)
        return (1 + (SHARP - 1) * part) * (self.log_alpha - middle) + (1 - part) * middle

    def above(self) -> Tensor:
        """How many heads more than on the way to the target are expected to be open, as a share of all."""
        all_, part = len(self.learnt), min(1.0, self.progress() / RAMP)
        aim = all_ - part * (all_ - (self.keep or 0))
        return (self.chances().detach().sum() - aim) / all_

    def settled(self) -> Tensor:
        """The likelier of closed and whole; with a target, as many of the likeliest are open."""
        if self.keep is None:
            return (self.log_alpha > 0).float()
        return _largest(self.log_alpha, self.keep)

    def chances(self) -> Tensor:
        """P(gate != 0)."""
        return self.law.opened(self.alpha())

    def penalty(self) -> Tensor:
        """Strength times E[L0]."""
        if self.strength is not None:
            return self.strength * self.chances().sum()
        return (self.pressure + self.above()).clamp(min=0).to(self.log_alpha) * self.chances().sum()


class _Subset(Gates):
    """A relaxed choice of k heads."""

    keep: int

    def __init__(self, model: PreTrainedModel, learnt: Sequence[Head], exactly: SubsetSelection, keep: int) -> None:
        super().__init__(model, learnt, 0.0)
        self.keep, self.how = keep, exactly

    def sample(self) -> Tensor:
        """The relaxed indicator of the k largest perturbed weights; its sum is k."""
        noise = -(-torch.rand_like(self.log_alpha).clamp(1e-6, 1 - 1e-6).log()).log()
        return relaxed_top(self.log_alpha + noise, self.keep, self.temperature())

    def temperature(self) -> float:
        """Falls geometrically over the horizon."""
        return math.exp(math.log(self.how.hot) + self.progress() * math.log(self.how.cold / self.how.hot))

    def settled(self) -> Tensor:
        """The k heads of the largest weights."""
        return _largest(self.log_alpha, self.keep)

    def chances(self) -> Tensor:
        """How often each head is among the k largest perturbed weights, in draws of a generator of their own."""
        generator = torch.Generator().manual_seed(0)
        noise = -(-torch.rand(DRAWS, len(self.learnt), generator=generator).clamp(1e-6, 1 - 1e-6).log()).log()
        places = (self.log_alpha.detach().cpu() + noise).topk(self.keep).indices  # [draw, k]
        return (places.flatten().bincount(minlength=len(self.learnt)) / DRAWS).to(self.log_alpha)


def _check_rate(rate: float | None) -> None:
    if rate is not None and not 0 < rate < math.inf:
        raise ValueError(f"the learning rate of gates must be above zero; got {rate}")


def relaxed_top(weights: Tensor, k: int, temperature: float) -> Tensor:
    """A relaxed k-hot vector (Xie and Ermon 2019): k softmaxes, each with what the ones before took left out."""
    itself = torch.eye(len(weights), dtype=torch.bool, device=weights.device)
    chosen, left = torch.zeros_like(weights), weights
    for _ in range(k):
        scaled = left / temperature
        others = scaled.expand(len(weights), -1).masked_fill(itself, -torch.inf).logsumexp(-1)
        chosen = chosen + torch.softmax(scaled, -1)
        left = left + others - scaled.logsumexp(-1)  # log(1 - p), exact also where p is nearly 1
    return chosen


def _largest(weights: Tensor, k: int) -> Tensor:
    kept = torch.zeros_like(weights)
    kept[weights.topk(k).indices] = 1.0
    return kept
