"""Attribution: any method of captum, with the gates as its input; captum does the work."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles.models import heads
from headroles.models.attention_hooks import exclusive
from headroles.models.batching import Batch
from headroles.models.dummy_inputs import without_cache
from headroles.models.masking import Fill, mask_heads
from headroles.scores.base import Sums
from headroles.scores.gradients.base import GradientScore, HeadGradients
from headroles.scores.lrp import lrp_rules
from headroles.scores.objectives import Explain, held

TOGETHER = 8  # perturbed copies of a batch that go through the model at once, where the caller does not say


@dataclass(frozen=True)
class Attribution(GradientScore):
    """What a method of `captum.attr` gives each head's gate for the mean of what is explained of an example.

    `method` is the name of a class such as "IntegratedGradients", "ShapleyValueSampling", "FeatureAblation" (each head
    closed alone) or "DeepLift"; `options` go to its `attribute`. Gates start from zero where the method has a baseline.
    DeepLift knows the non-linear modules of torch only: softmax and layer norm are plain gradients to it, and the
    signature's `delta`, by which what it gives misses the effect of closing all heads, says how far it applies. Columns
    are `attribution[method]` and `attribution[method].size`, the mean of absolute values.
    """

    method: str = "IntegratedGradients"
    options: tuple[tuple[str, Any], ...] = ()
    replacement: Fill = "zero"

    def __post_init__(self) -> None:
        known = methods()
        if self.method not in known:
            raise ValueError(f"captum has no method {self.method!r} for inputs; known: {', '.join(known)}")
        if self.replacement == "other":  # which examples stand side by side in a batch is no property of a head
            raise ValueError(
                "fill 'other' takes the output for another example: got it for an attribution; expected "
                "'zero' or 'uniform'; try hr.ablate(replacement='other')"
            )

    @property
    def label(self) -> str:
        """Several methods may be asked for at once."""
        return f"attribution[{self.method}]"

    def notes(self, model: PreTrainedModel, explain: Explain, batch: Batch, /) -> dict[str, object]:
        """The objective, and captum's convergence delta on the first batch, where the method has one."""
        found = super().notes(model, explain, batch)
        with _captum(model, batch):
            run = _Run(self, model, explain, batch)
            if not run.method.has_convergence_delta():
                return found
            _, delta = run.method.attribute(run.gates, **run.arguments, return_convergence_delta=True)
            change = run.of_gates(run.gates, run.rows) - run.of_gates(torch.zeros_like(run.gates), run.rows)
        return found | {"delta": f"{float((delta.abs().sum() / change.abs().sum()).detach()):.4f}"}

    def slopes(self, model: PreTrainedModel, explain: Explain, batch: Batch) -> HeadGradients:
        """The attributions as one step per example."""
        with _captum(model, batch):
            run = _Run(self, model, explain, batch)
            given = run.method.attribute(run.gates, **run.arguments).detach()
        there = run.of_gates.there[:, None]
        return HeadGradients(None, given[:, None], there.float(), there)

    def update(self, slopes: HeadGradients) -> dict[str, Tensor]:
        """The attribution of each example, and its absolute value."""
        return {"signed": slopes.gradients.double().sum(1), "size": slopes.gradients.double().abs().sum(1)}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """`attribution[method]` and `attribution[method].size`: means over examples with something to explain."""
        return {self.label: sums["signed"] / sums["steps"], f"{self.label}.size": sums["size"] / sums["steps"]}


def methods() -> list[str]:
    """The classes of captum that attribute to inputs by gradients or by perturbing them."""
    import captum.attr

    kinds = (captum.attr.GradientAttribution, captum.attr.PerturbationAttribution)
    found = {name: getattr(captum.attr, name) for name in captum.attr.__all__ if name != "LRP"}  # ours knows attention
    classes = {name: cls for name, cls in found.items() if inspect.isclass(cls) and cls not in kinds}
    return sorted(name for name, cls in classes.items() if issubclass(cls, kinds) and _of_a_function_alone(cls))


class _Run:
    """A method of captum at work on a batch."""

    def __init__(self, score: Attribution, model: PreTrainedModel, explain: Explain, batch: Batch) -> None:
        import captum.attr

        self.of_gates = _OfGates(model, explain, held(model, explain, batch), score.replacement)
        self.method = getattr(captum.attr, score.method)(self.of_gates)
        self.gates = torch.ones(
            len(batch.numbers), len(heads.head_index(model)), device=model.device, requires_grad=True
        )
        self.rows = torch.arange(len(self.gates), device=model.device)
        taken = inspect.signature(self.method.attribute).parameters
        self.arguments: dict[str, Any] = {"additional_forward_args": (self.rows,)}
        if "baselines" in taken:
            self.arguments["baselines"] = torch.zeros_like(self.gates)
        if "perturbations_per_eval" in taken:
            self.arguments["perturbations_per_eval"] = TOGETHER
        self.arguments |= dict(score.options)


class _OfGates(nn.Module):
    """The mean of what is explained of the examples at `rows`, as a function of their gates."""

    def __init__(self, model: PreTrainedModel, explain: Explain, batch: Batch, replacement: Fill) -> None:
        super().__init__()
        self.model, self.explain, self.batch, self.replacement = model, explain, batch, replacement
        self.there = torch.zeros(len(batch.numbers), dtype=torch.bool, device=model.device)  # something is explained

    def forward(self, gates: Tensor, rows: Tensor) -> Tensor:
        """[example, heads], [example] -> [example]."""
        batch = self.batch.take(rows)
        with mask_heads(self.model, gates, replacement=self.replacement):
            explained = self.explain(self.model(**batch.inputs, **without_cache(self.model)), batch)
        self.there[rows] = explained.counted.any(-1).to(rows.device)  # gates do not change what counts
        values = torch.where(explained.counted, explained.values, 0.0)
        return values.sum(-1) / explained.counted.sum(-1).clamp(min=1)


_drawing = threading.RLock()  # the states that numbers are drawn from, and warnings, are those of all threads


@contextmanager
def _captum(model: PreTrainedModel, batch: Batch) -> Iterator[None]:
    """Gradients to the gates alone; what captum draws follows from the batch; it need not say that hooks will go."""
    with exclusive(model), _drawing:
        before = np.random.get_state()  # captum draws from NumPy's state as well as from torch's
        with torch.random.fork_rng(), torch.enable_grad(), lrp_rules(model, "gradient"), warnings.catch_warnings():
            torch.manual_seed(batch.numbers[0])
            np.random.seed(batch.numbers[0])
            warnings.filterwarnings("ignore", "Setting forward, backward hooks")
            try:
                yield
            finally:
                np.random.set_state(before)


def _of_a_function_alone(cls: type) -> bool:
    """Whether a class is made from a function and nothing else."""
    parameters = list(inspect.signature(cls).parameters.values())
    return not any(parameter.default is parameter.empty for parameter in parameters[1:])
