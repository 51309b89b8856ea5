"""Laws of relevance: the forward is kept, nothing is lost, and a slope is a slope."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headroles import seam
from headroles.conformance.case import Case, first
from headroles.gates import gated
from headroles.lrp import ruled
from headroles.lrp.ledger import balance, totals
from headroles.probe import without_cache

STEPS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # gates are moved by: large ones cross kinks, small ones drown in noise


def forward(case: Case) -> float:
    """Under the rules the output is that of eager attention, to the bit."""
    model, ones = case.model, torch.ones(2, case.heads, requires_grad=True)

    def output() -> Tensor:
        with gated(model, ones), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return first(model(**case.inputs, **without_cache(model))).detach()

    model.requires_grad_(False)
    with seam.attending(model, lambda _: None):
        eager = output()
    with ruled(model, "cp"):
        return float((output() - eager).abs().max())


def conserved(case: Case) -> float:
    """By the rules `cp` all relevance of a number of the output is found again in inputs and biases."""
    model = precise(case)
    report = balance(model, cast(case.inputs, model.dtype), lambda output: _largest(first(output)), "cp")
    return abs(totals(report)["residue"])


def slopes(case: Case) -> float:
    """The gradient of a gate is the change of the output when the gate is moved a little."""
    model = precise(case)
    inputs = cast(case.inputs, model.dtype)
    generator = torch.Generator().manual_seed(3)
    way = torch.randn(case.heads, generator=generator).to(model.dtype)

    def value(gates: Tensor) -> Tensor:
        with gated(model, gates), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return _some(first(model(**inputs, **without_cache(model))))

    ones = torch.ones(case.heads, dtype=model.dtype, requires_grad=True)
    with torch.enable_grad():
        slope = float(torch.autograd.grad(value(ones), ones)[0] @ way)
    with torch.no_grad():
        moved = [float(value(1 + step * way) - value(1 - step * way)) / (2 * step) for step in STEPS]
    return min(abs(slope - one) for one in moved) / max(abs(slope), 1e-30)


def precise(case: Case) -> PreTrainedModel:
    """The model in float64; in float32 where it does not run in that."""
    model: PreTrainedModel = deepcopy(case.model).double()
    try:
        case.call(model, cast(case.inputs, torch.float64))
    except (RuntimeError, NotImplementedError):
        return case.copy()
    return model


def cast(inputs: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The same arguments, numbers in another precision."""
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}


def _largest(values: Tensor) -> Tensor:
    return values.flatten(1).amax(-1).sum()


def _some(values: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return (values * torch.randn(values.shape, generator=generator).to(values)).sum()
