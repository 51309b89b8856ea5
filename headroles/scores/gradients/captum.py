"""Attribution: any method of captum, with the heads' masks as its input."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel
from headroles.models.replacements import Word
from headroles.scores.gradients.base import GradientScore, HeadGradients
from headroles.scores.lrp import lrp_rules
from headroles.scores.objectives import Targets, held
from headroles.tables.arguments import one_of

METHODS = (  # of captum that need only a function
    *("Deconvolution", "DeepLift", "DeepLiftShap", "FeatureAblation", "GradientShap"),
    *("GuidedBackprop", "InputXGradient", "IntegratedGradients", "KernelShap", "Lime", "Occlusion", "Saliency"),
    *("ShapleyValueSampling", "ShapleyValues"),
)
DRAWN = ("GradientShap", "KernelShap", "Lime", "ShapleyValueSampling")  # at random
BY_MODULES = ("DeepLift", "DeepLiftShap", "GuidedBackprop", "Deconvolution")  # of these, with rules for modules
COPIES = 8  # perturbed copies of a batch in one forward pass, by default


@dataclass(frozen=True)
class Attribution(GradientScore):
    """Attribution of the target (averaged over steps) to each head's mask, by a captum method.

    A method with a baseline starts from masks of zeros. DeepLift has rules for torch's own non-linear modules only, and
    takes softmax and layer norm as plain gradients. The provenance field `delta` is the part of the effect of masking
    all heads that the attributions miss. Columns are `attribution[method]` and `attribution[method].size`, the mean of
    absolute values.

    Args:
        method: name of a class of `captum.attr` such as "IntegratedGradients", "ShapleyValueSampling",
            "FeatureAblation" (heads masked one by one) or "DeepLift".
        options: (name, value) pairs for its `attribute`.
        replacement: replacement of a masked head's output, "zero" or "uniform".
        objective: name or instance of the target; default: the model's own.
    """

    method: str = "IntegratedGradients"
    options: tuple[tuple[str, object], ...] = ()
    replacement: Word = "zero"

    def __post_init__(self) -> None:
        one_of("method", self.method, METHODS)
        one_of("replacement", self.replacement, ("zero", "uniform"))

    @property
    def label(self) -> str:
        """Column name, with the method."""
        return f"attribution[{self.method}]"

    def fit(self, model: HeadModel, batches: Iterable[Batch]) -> Targets:
        """Return an object that computes the targets of a corpus."""
        if self.method in BY_MODULES:
            model.check_unsharded(self.label)
        return super().fit(model, batches)

    def notes(self, model: HeadModel, target: Targets, batch: Batch, /) -> dict[str, object]:
        """Return the objective and, if the method has one, captum's convergence delta on the first batch."""
        notes = super().notes(model, target, batch)
        with _captum(model, batch):
            run = _Run(self, model, target, batch)
            if not run.method.has_convergence_delta():
                return notes
            _, delta = run.method.attribute(run.masks, **run.arguments, return_convergence_delta=True)
            change = run.target(run.masks, run.rows) - run.target(torch.zeros_like(run.masks), run.rows)
        return notes | {"delta": f"{float((delta.abs().sum() / change.abs().sum()).detach()):.4f}"}

    def head_gradients(self, model: HeadModel, target: Targets, batch: Batch) -> HeadGradients:
        """Compute the attributions as one step per example; draws do not depend on its batch."""
        explained = list[tuple[Tensor, Tensor]]()
        for part in map(batch.take, torch.arange(len(batch.numbers)).split(1)) if self.method in DRAWN else [batch]:
            with _captum(model, part):
                run = _Run(self, model, target, part)
                explained.append((run.method.attribute(run.masks, **run.arguments).detach(), run.target.counted))
        attributions, counted = (torch.cat(parts)[:, None] for parts in zip(*explained, strict=True))
        return HeadGradients(None, attributions, counted.float(), counted)


class _Run:
    """A captum method and its arguments on one batch."""

    def __init__(self, score: Attribution, model: HeadModel, target: Targets, batch: Batch) -> None:
        import captum.attr

        self.target = _Target(model, target, held(model, target, batch), score.replacement)
        self.method = getattr(captum.attr, score.method)(self.target)
        self.masks = torch.ones(len(batch.numbers), len(model.gated), device=model.device, requires_grad=True)
        self.rows = torch.arange(len(self.masks), device=model.device)
        parameters = inspect.signature(self.method.attribute).parameters
        self.arguments: dict[str, object] = {"additional_forward_args": (self.rows,)}
        if "baselines" in parameters:
            self.arguments["baselines"] = torch.zeros_like(self.masks)
        if "perturbations_per_eval" in parameters:
            self.arguments["perturbations_per_eval"] = COPIES
        self.arguments |= dict(score.options)


class _Target(nn.Module):
    """The mean target of the examples at `rows`, as a function of the masks of their heads."""

    def __init__(self, model: HeadModel, target: Targets, batch: Batch, replacement: Word) -> None:
        super().__init__()
        self.model, self.target, self.batch, self.replacement = model, target, batch, replacement
        self.module = model.model  # a submodule: DeepLift searches for non-linear ones
        self.counted = torch.zeros(len(batch.numbers), dtype=torch.bool, device=model.device)  # has a step that counts

    def forward(self, masks: Tensor, rows: Tensor) -> Tensor:
        """Return the targets, [example], for masks [example, heads] and rows [example]."""
        if self.model.one_example_per_batch and len(rows) > 1:
            return torch.cat([self(mask, row) for mask, row in zip(masks.split(1), rows.split(1), strict=True)])
        batch = self.batch.take(rows)
        with self.model.mask(masks, replacement=self.replacement):
            explained = self.target.targets(self.model.forward(batch), batch)
        self.counted[rows] = explained.counted.any(-1).to(rows.device)  # masks do not change which steps count
        values = torch.where(explained.counted, explained.values, 0.0)
        return values.sum(-1) / explained.counted.sum(-1).clamp(min=1)


@contextmanager
def _captum(model: HeadModel, batch: Batch) -> Iterator[None]:
    """Take gradients to the masks only, seed random numbers by the batch, and ignore captum's warning about hooks."""
    rules = lrp_rules(model, "gradient")
    with torch.random.fork_rng(), torch.enable_grad(), rules, warnings.catch_warnings():
        state = np.random.get_state()  # captum draws from NumPy's and from torch's
        try:
            torch.manual_seed(batch.numbers[0])
            np.random.seed(batch.numbers[0])
            warnings.filterwarnings("ignore", "Setting forward, backward hooks")
            yield
        finally:
            np.random.set_state(state)
