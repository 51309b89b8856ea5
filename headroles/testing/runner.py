"""The suite: every law put to one model, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pandas as pd
from torch import Tensor
from transformers import PreTrainedModel

from headroles.testing import checks
from headroles.testing.case import Case, NotAsked


class Check(NamedTuple):
    """What a law is of, how it is checked, and how far off its answer may be."""

    of: str
    check: Callable[[Case], float]
    allowed: float


CHECKS: dict[str, Check] = {
    "sites": Check("scores", checks.sites, 0),
    "rows": Check("scores", checks.rows, 1e-5),
    "sums": Check("scores", checks.sums, 1e-5),
    "masks": Check("scores", checks.masks, 1e-4),
    "confidence": Check("scores", checks.confidence, 1e-5),
    "identity": Check("ablation", checks.identity, 0),
    "zero": Check("ablation", checks.zero, 1e-4),
    "batched": Check("ablation", checks.batched, 1e-4),
    "effects": Check("ablation", checks.effects, 1e-4),
    "generation": Check("ablation", checks.generation, 1e-4),
    "forward": Check("relevance", checks.forward, 0),
    "conserved": Check("relevance", checks.conserved, 1e-4),
    "slopes": Check("pruning", checks.slopes, 1e-2),
    "chosen": Check("pruning", checks.chosen, 0),
    "cut": Check("shrinking", checks.cut, 1e-4),
}


def check_model(model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None) -> pd.DataFrame:
    """Put every law of this project to a model: does what it is used for hold of it? A row per law.

    `of`: what the law is of (scores, ablation, relevance, pruning, shrinking). `holds`: "yes"; "no", the numbers would
    be wrong; "refused", the library says that it cannot; "not asked", the law is of something that the model does not
    do. `off`: how far what was found is from what was told independently, and how far it may be, `allowed`. `why`: the
    reason where it is not "yes". `inputs` are arguments of a forward with two examples, by default random ones. The
    model is copied, in float32, and stays as it is.
    """
    try:
        case = Case(model, inputs)
        rows = {name: _answer(law, case) for name, law in CHECKS.items()}
    except Exception as error:  # noqa: BLE001 - a model may raise anything
        rows = dict.fromkeys(CHECKS, _failed(error))
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.insert(0, "of", [law.of for law in CHECKS.values()])
    table.insert(3, "allowed", [law.allowed for law in CHECKS.values()])
    return table.rename_axis("law")


def _answer(law: Check, case: Case) -> dict[str, Any]:
    try:
        off = law.check(case)
    except Exception as error:  # noqa: BLE001 - a model may raise anything
        return _failed(error)
    if off <= law.allowed:
        return {"holds": "yes", "off": off, "why": ""}
    return {"holds": "no", "off": off, "why": f"{off:.2g} off, {law.allowed:.2g} allowed: {_claim(law)}"}


def _claim(law: Check) -> str:
    """What a law claims, in a sentence."""
    return (law.check.__doc__ or "").splitlines()[0]


def _failed(error: Exception) -> dict[str, Any]:
    said = " ".join(str(error).split())
    if isinstance(error, NotAsked):
        return {"holds": "not asked", "off": float("nan"), "why": said}
    if isinstance(error, ValueError | TypeError) and _raised_here(error):
        return {"holds": "refused", "off": float("nan"), "why": said}
    return {"holds": "no", "off": float("nan"), "why": f"{type(error).__name__}: {said}"}


def _raised_here(error: Exception) -> bool:
    """Whether this package itself says that it cannot, and not something below it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("headroles")
