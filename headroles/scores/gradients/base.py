"""Gradient scores: the gradient of a target with respect to every head's mask, or its relevance under LRP rules."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel
from headroles.scores.accumulator import Accumulator
from headroles.scores.attention import check_finite
from headroles.scores.base import Measure, Sums
from headroles.scores.lrp import Rules, lrp_rules
from headroles.scores.lrp.conservation_report import NOTHING
from headroles.scores.lrp.context import check_reached, inside, start
from headroles.scores.objectives import Name, Objective, Targets, objective
from headroles.tables.frame import Kind

Steps = Literal["all", "sum", "mean"]
Unit = Literal["head", "group"]  # what has one mask: a head, or the heads that share a key-value head


@dataclass(frozen=True)
class HeadGradients:
    """Gradients with respect to the masks of one site, or of all sites side by side, on one batch.

    Attributes:
        kind: kind of the site; None for all sites.
        gradients: d target / d mask or relevance, [batch, step, heads]; 0 where a step does not count.
        values: target values, [batch, step].
        counted: bool mask of the steps that count, [batch, step].
    """

    kind: Kind | None
    gradients: Tensor
    values: Tensor
    counted: Tensor

    @property
    def steps(self) -> Tensor:
        """Number of steps that count in each example: [batch, 1]."""
        return self.counted.sum(-1, keepdim=True)


def over_groups(gradients: Tensor, model: HeadModel) -> Tensor:
    """Return for every head the sum over the heads that share its key-value head, the gradient of a common mask."""
    numbers = model.group_numbers  # [heads]
    sums = torch.zeros_like(gradients[..., : int(numbers.max()) + 1]).index_add_(-1, numbers, gradients)
    return sums[..., numbers]


@dataclass(frozen=True)
class GradientScore(Measure):
    """Base class of gradient scores. A subclass is a frozen dataclass; its fields are options.

    `head_gradients` makes the backward passes. `update` and `compute` are pure functions, as in `Score`.

    Args:
        objective: name or instance of the target; None for `ordinary`, or else the model's default
            (`headroles.scores.objectives.objective`).
    """

    objective: Name | Objective | None = field(default=None, kw_only=True)
    ordinary: ClassVar[Name | None] = None  # default objective; None: the model's

    def fit(self, model: HeadModel, batches: Iterable[Batch]) -> Targets:
        """Return an object that computes the targets of a corpus; `batches` are one pass over it."""
        return self.chosen(model).fit(model, batches)

    def chosen(self, model: HeadModel) -> Objective:
        """Return the objective used for a model."""
        return objective(self.objective or self.ordinary, model)

    def notes(self, model: HeadModel, _target: Targets, _batch: Batch, /) -> dict[str, object]:
        """Return provenance fields beyond the options, from the first batch with a target."""
        return {"objective": self.chosen(model)}

    @abstractmethod
    def head_gradients(self, model: HeadModel, target: Targets, batch: Batch) -> HeadGradients:
        """Compute the gradients of all heads on one batch, of all sites side by side, in the order of gates."""

    def update(self, head_gradients: HeadGradients) -> dict[str, Tensor]:
        """Sum the gradients of one site, by default with their signs and by size, over steps: [batch, heads]."""
        gradients = head_gradients.gradients.double()
        return {"signed": gradients.sum(1), "size": gradients.abs().sum(1)}

    def denominators(self, head_gradients: HeadGradients) -> dict[str, Tensor]:
        """Compute denominators that do not depend on the head, by default the number of steps: {name: [batch, 1]}."""
        return {"steps": head_gradients.steps}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute the means over steps, by default of gradients, and of their absolute values in `.size`."""
        return {self.label: sums["signed"] / sums["steps"], f"{self.label}.size": sums["size"] / sums["steps"]}


def head_gradients(
    model: HeadModel,
    target: Targets,
    batch: Batch,
    *,
    rules: Rules = "gradient",
    steps: Steps = "all",
    chunk: int = 4,
    by_token: bool = True,
) -> HeadGradients:
    """Return the gradients of the targets of a batch with respect to masks of ones of all sites, under LRP rules.

    Relevance starts at 1 under the voita rules, otherwise at the target's value. `steps` and `chunk` are as in
    `Relevance`; "mean" is for the mean of the steps. `by_token` says that the target of step t depends on the last
    hidden states at token t only.
    """
    # Each step needs a backward pass of its own from its logit to the masks. With `by_token`, one pass from all logits
    # to the last hidden states serves all steps: the gradient of step t is the part of it at token t. Only the passes
    # from there to the masks are then made step by step, several (`chunk`) at once.
    gates = torch.ones(len(batch.numbers), len(model.gated), device=model.device, requires_grad=True)
    states: list[Tensor] = []  # what the vocabulary projection reads: [batch, token, width]

    def keep(_: nn.Module, args: tuple[object, ...]) -> None:
        states.extend(x for x in args[:1] if isinstance(x, Tensor) and x.requires_grad)

    with torch.enable_grad(), lrp_rules(model, rules) as changes, model.mask(gates):
        if (projection := model.model.get_output_embeddings()) is not None:
            changes.hook(projection, keep)
        output = model.forward(batch)
        with inside(model):
            explained = target.targets(output, batch)
    begin = torch.where(explained.counted, start(explained.values.detach(), rules), 0.0)
    values, counted = explained.values.detach().float() * explained.counted, explained.counted
    if steps != "all":
        if steps == "mean" or rules == "voita":  # by the voita rules the sum of the steps starts at 1, too
            begin = begin / counted.sum(-1, keepdim=True).clamp(min=1)
        gradients = _grad(explained.values, gates, begin)[:, None]
        return HeadGradients(None, gradients, values.sum(-1, keepdim=True), counted.any(-1, keepdim=True))
    root, back = explained.values, begin
    if by_token and len(states) == 1 and states[0].shape[:2] == begin.shape:
        root, back = states[0], _grad(explained.values, states[0], begin)
    hot = torch.eye(begin.shape[1]).to(back).repeat(len(begin), 1, 1).transpose(0, 1)  # [step, batch, token]
    hot = hot[..., None] if back.ndim == 3 else hot
    if model.axis.ranks is not None:  # no collective runs in a batch of backward passes
        parts = [_grad(root, gates, back * step)[None] for step in hot]
    else:
        parts = [_grad(root, gates, back * part, batched=True) for part in hot.split(chunk)]
    return HeadGradients(None, torch.cat(parts).transpose(0, 1), values, counted)


def _grad(of: Tensor, to: Tensor, back: Tensor, *, batched: bool = False) -> Tensor:
    check_reached(of)
    return torch.autograd.grad(of, to, back, retain_graph=True, is_grads_batched=batched)[0]


class GradientPass:
    """Backward passes of one gradient score over a corpus."""

    def __init__(self, score: GradientScore, model: HeadModel, batches: Iterable[Batch]) -> None:
        self.score, self.model, self.target = score, model, score.fit(model, batches)
        self.notes: list[tuple[int, dict[str, object]]] = []  # of the first batch with a target
        self.any_nonzero: bool | Tensor = False
        self.batches = 0

    def read(self, batch: Batch, accumulator: Accumulator) -> None:
        """Add the gradients of one batch."""
        gradients = self.score.head_gradients(self.model, self.target, batch)
        finite = gradients.gradients.isfinite().flatten(1).all(-1)  # [batch]
        check_finite(finite, self.score.label, batch.numbers, self.model, "; or load it in float32")
        if not self.notes and gradients.counted.any():
            self.notes = [(self.batches, self.score.notes(self.model, self.target, batch))]
        self.batches += 1
        self.any_nonzero = gradients.gradients.any() | self.any_nonzero
        sites, kinds = self.model.sites, set[Kind]()
        for site, of_site in zip(sites, gradients.gradients.split([site.heads for site in sites], -1), strict=True):
            if site.kind not in self.score.kinds:
                continue
            part = replace(gradients, kind=site.kind, gradients=of_site)
            accumulator.add(self.score, site.key, self.score.update(part))
            if site.kind not in kinds:
                accumulator.add(self.score, site.kind, self.score.denominators(part))
            kinds.add(site.kind)

    def provenance(self) -> dict[str, object]:
        """Return the provenance fields; raise ValueError if there was no target or every gradient was zero."""
        notes = self.model.axis.gathered(self.notes)
        if not notes:
            raise ValueError(NOTHING)
        if not any(self.model.axis.gathered([bool(self.any_nonzero)])):
            raise ValueError(
                f"every gradient of {self.score.label} is zero: no head of {self.model.name} changes the objective "
                f"{self.score.chosen(self.model).name!r}; try another"
            )
        return min(notes, key=lambda pair: pair[0])[1]  # the first batch is the first of the first process
