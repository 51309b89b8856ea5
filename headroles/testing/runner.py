"""The suite: every law put to one model, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pandas as pd
from torch import Tensor
from transformers import PreTrainedModel

from headroles.testing import checks as closing
from headroles.testing import checks as cutting
from headroles.testing import checks as relevance
from headroles.testing import checks as seeing
from headroles.testing.case import Case, NotAsked


class Law(NamedTuple):
    """What a law is of, how it is checked, and how far off its answer may be."""

    of: str
    check: Callable[[Case], float]
    allowed: float


LAWS: dict[str, Law] = {
    "sites": Law("scores", seeing.sites, 0),
    "rows": Law("scores", seeing.rows, 1e-5),
    "sums": Law("scores", seeing.sums, 1e-5),
    "masks": Law("scores", seeing.masks, 1e-4),
    "confidence": Law("scores", seeing.confidence, 1e-5),
    "identity": Law("ablation", closing.identity, 0),
    "zero": Law("ablation", closing.zero, 1e-4),
    "batched": Law("ablation", closing.batched, 1e-4),
    "effects": Law("ablation", closing.effects, 1e-4),
    "generation": Law("ablation", closing.generation, 1e-4),
    "forward": Law("relevance", relevance.forward, 0),
    "conserved": Law("relevance", relevance.conserved, 1e-4),
    "slopes": Law("pruning", relevance.slopes, 1e-2),
    "chosen": Law("pruning", cutting.chosen, 0),
    "cut": Law("shrinking", cutting.cut, 1e-4),
}


def conform(model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None) -> pd.DataFrame:
    """Put every law of this project to a model: does what it is used for hold of it? A row per law.

    `of`: what the law is of (scores, ablation, relevance, pruning, shrinking). `holds`: "yes"; "no", the numbers would
    be wrong; "refused", the library says that it cannot; "not asked", the law is of something that the model does not
    do. `off`: how far what was found is from what was told independently, and how far it may be, `allowed`. `why`: the
    reason where it is not "yes". `inputs` are arguments of a forward with two examples, by default random ones. The
    model is copied, in float32, and stays as it is.
    """
    try:
        case = Case(model, inputs)
        rows = {name: _answer(law, case) for name, law in LAWS.items()}
    except Exception as error:  # noqa: BLE001 - a model may raise anything
        rows = dict.fromkeys(LAWS, _failed(error))
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.insert(0, "of", [law.of for law in LAWS.values()])
    table.insert(3, "allowed", [law.allowed for law in LAWS.values()])
    return table.rename_axis("law")


def _answer(law: Law, case: Case) -> dict[str, Any]:
    try:
        off = law.check(case)
    except Exception as error:  # noqa: BLE001 - a model may raise anything
        return _failed(error)
    if off <= law.allowed:
        return {"holds": "yes", "off": off, "why": ""}
    return {"holds": "no", "off": off, "why": f"{off:.2g} off, {law.allowed:.2g} allowed: {_claim(law)}"}


def _claim(law: Law) -> str:
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
