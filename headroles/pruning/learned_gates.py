"""Learnt gates: a number per head that trains with the model, drawn at every step, and settles at open or closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles.models import heads, loading
from headroles.models.attention_hooks import exclusive
from headroles.models.masking import Head, mask_heads

NAME = "head_gates"  # of the gates among the model's modules: the Trainer, its optimizer and checkpoints take them in
Freeze = Literal["nothing", "decoder", "all"]
LOW, HIGH = -0.1, 1.1  # the interval a binary Concrete variable is stretched to before it is clipped to 0..1


@dataclass(frozen=True)
class HardConcrete:
    """The distribution of a gate (Louizos et al. 2018; Voita et al. 2019, section 6.1), by its `log_alpha`.

    With probability `closed` a gate is 0, with probability `whole` it is 1, otherwise between them.
    """

    temperature: float = 0.33

    def sample(self, log_alpha: Tensor) -> Tensor:
        """One draw for each, differentiable in `log_alpha`; torch's generator draws."""
        noise = torch.rand_like(log_alpha).clamp(1e-6, 1 - 1e-6)
        soft = torch.sigmoid((noise.log() - (1 - noise).log() + log_alpha) / self.temperature)
        return (soft * (HIGH - LOW) + LOW).clamp(0, 1)

    def closed(self, log_alpha: Tensor) -> Tensor:
        """P(gate = 0)."""
        return torch.sigmoid(self.temperature * torch.tensor(-LOW / HIGH).log() - log_alpha)

    def whole(self, log_alpha: Tensor) -> Tensor:
        """P(gate = 1)."""
        return torch.sigmoid(log_alpha - self.temperature * torch.tensor((1 - LOW) / (HIGH - 1)).log())

    def opened(self, log_alpha: Tensor) -> Tensor:
        """P(gate != 0), whose sum over heads is E[L0]."""
        return 1 - self.closed(log_alpha)


class Gates(nn.Module, ABC):
    """Gates of the heads `learnt`, one parameter each; the gates of other heads are one.

    `horizon` is in how many forwards of training what is scheduled is to be done; forwards are counted in `step`.
    """

    step: Tensor
    keep: int | None  # how many stay open; None: as many as their strength leaves

    def __init__(self, model: PreTrainedModel, learnt: Sequence[Head], start: float) -> None:
        super().__init__()
        index = heads.head_index(model)
        self.heads, self.learnt, self.horizon = len(index), list(learnt), 0
        places = torch.tensor([index.get_loc(head) for head in learnt], dtype=torch.long)
        self.register_buffer("places", places, persistent=False)
        self.register_buffer("step", torch.zeros((), dtype=torch.float64))
        self.log_alpha = nn.Parameter(torch.full((len(learnt),), float(start)))
        self.drawn: Tensor | None = None
        self.to(model.device)

    def now(self) -> Tensor:
        """The gates of all heads: what was drawn for this step of training, else where they settle: [heads]."""
        return self.drawn if self.training and self.drawn is not None else self._all(self.settled())

    def draw(self) -> None:
        """Draw the gates of a step of training."""
        self.drawn = self._all(self.sample())
        self.step += 1

    def _all(self, own: Tensor) -> Tensor:
        ones = torch.ones(self.heads, device=own.device)
        return ones.index_copy(0, self.places, own)  # type: ignore[arg-type]

    def progress(self) -> float:
        """How much of the horizon is behind: 0 to 1. Raises ValueError where none was set."""
        if not self.horizon:
            raise ValueError("set gates.horizon: in how many forwards of training the heads are to be chosen")
        return min(1.0, float(self.step) / self.horizon)

    @abstractmethod
    def sample(self) -> Tensor:
        """Gates for one step of training: [learnt]."""

    @abstractmethod
    def settled(self) -> Tensor:
        """Gates of 0 and 1, as they are outside training: [learnt]."""

    @abstractmethod
    def chances(self) -> Tensor:
        """P(gate != 0): [learnt]."""

    def penalty(self) -> Tensor:
        """What is added to the mean loss."""
        return self.log_alpha.new_zeros(())


@contextmanager
def train_gates(model: PreTrainedModel, gates: Gates) -> Iterator[None]:
    """Within the block `model` has these gates, also for the stock Trainer or a loop of your own.

    Each forward in training mode draws gates and adds their penalty to the loss it returns; in eval mode they are where
    they settle. The gates are a module of the model, `head_gates`: optimizers and checkpoints take them in. Raises
    ValueError for a forward in training mode that returns no loss (as with label smoothing outside the model).
    """
    with exclusive(model):
        yield from _learning(model, gates)


def _learning(model: PreTrainedModel, gates: Gates) -> Iterator[None]:
    found, causal = heads.attention_sites(model), loading.causal(model)
    model.add_module(NAME, gates)
    heads.remember(model, found)
    begun: list[None] = []  # a forward of training that has not come to its end

    def before(module: nn.Module, _: Any) -> None:
        if module.training:
            gates.step -= len(begun)  # one that failed was no step
            gates.draw()
            begun[:] = [None]

    def after(module: nn.Module, _: Any, kwargs: dict[str, Any], output: Any) -> None:
        if not module.training:
            return
        if getattr(output, "loss", None) is None:
            raise ValueError(
                "gates are learnt from the loss that the model returns, and it returned none: give it labels, and "
                "leave label smoothing out"
            )
        output.loss = output.loss + gates.penalty() * _share(kwargs, causal=causal)
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
        heads.remember(model, found)


@contextmanager
def frozen(model: PreTrainedModel, what: Freeze) -> Iterator[None]:
    """Within the block what is frozen of `model` does not train; gates do. Raises ValueError for what it lacks."""
    if what not in ("nothing", "decoder", "all"):
        raise ValueError(f"unknown part {what!r} to freeze; known: nothing, decoder, all")
    if what == "decoder" and not model.config.is_encoder_decoder:
        raise ValueError(f"{type(model).__name__} has no decoder beside an encoder to freeze")
    free: set[nn.Parameter] = set(getattr(model, NAME).parameters()) if hasattr(model, NAME) else set()
    if what == "decoder":
        encoder, decoder = (set(part.parameters()) for part in (model.get_encoder(), model.get_decoder()))
        free |= encoder - decoder
    with exclusive(model):
        held = [] if what == "nothing" else [one for one in model.parameters() if one.requires_grad and one not in free]
        for one in held:
            one.requires_grad = False
        try:
            yield
        finally:
            for one in held:
                one.requires_grad = True


def _share(kwargs: dict[str, Any], *, causal: bool) -> float:
    """The share of this forward in its step: of gradients that are added up over several, each has its own labels.

    They are counted as the Trainer counts them: the first of a text is none that a causal model predicts.
    """
    total, labels = kwargs.get("num_items_in_batch"), kwargs.get("labels")
    if total is None or labels is None:
        return 1.0
    return float((labels[..., 1:] if causal else labels).ne(-100).sum() / total)
