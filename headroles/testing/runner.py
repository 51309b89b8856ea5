"""The runner: every check of this library on one model, and a table of the results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from traceback import walk_tb
from typing import NamedTuple

import pandas as pd
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging as theirs

from headroles.testing import checks
from headroles.testing.case import Case, NotAsked


class Check(NamedTuple):
    """The area of a check, its function, and how far off its result may be."""

    area: str
    check: Callable[[Case], float]
    allowed: float


class Result(NamedTuple):
    """The result of a check, in the columns of the table."""

    holds: str
    off: float
    why: str


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
    "loss": Check("ablation", checks.loss, 1e-4),
    "generation": Check("ablation", checks.generation, 1e-4),
    "forward": Check("relevance", checks.forward, 0),
    "conserved": Check("relevance", checks.conserved, checks.RESIDUE),
    "slopes": Check("pruning", checks.head_gradients, checks.SLOPE),
    "chosen": Check("pruning", checks.chosen, 0),
    "cut": Check("removal", checks.cut, 1e-4),
}


def check_model(model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None) -> pd.DataFrame:
    """Check which features of this library a model supports.

    The checks run on a copy in float32, which shares the memory of weights that are float32; two of them run in float64
    where rounding is too large. Texts are a few sentences if the folder of the model has a tokenizer, else random
    tokens. Warnings and progress bars of copies are not shown.

    Args:
        model: A transformers model.
        inputs: Arguments of a forward with two examples; by default random ones.

    Returns:
        A table with a row per check. `area` is scores, ablation, relevance, pruning or removal. `holds` is "yes"; "no"
        (numbers would be wrong); "refused" (the library raises an error); or "not asked" (the model does not do what
        is checked). `off` is the difference from an independent result, `allowed` its limit, `why` the reason unless
        `holds` is "yes".

    Example:
        >>> table = hr.check_model(model)
        >>> table[table["holds"] != "yes"]
    """
    try:
        with _quiet():
            case = Case(model, inputs)
            rows = {name: _result(check, case) for name, check in CHECKS.items()}
    except Exception as error:  # noqa: BLE001 - a model may raise anything
        rows = dict.fromkeys(CHECKS, _failed(error))
    table = pd.DataFrame(list(rows.values()), index=pd.Index(rows, name="check"))
    table.insert(0, "area", [check.area for check in CHECKS.values()])
    table.insert(3, "allowed", [check.allowed for check in CHECKS.values()])
    return table


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence logs and progress bars of the many models that are copied, saved and loaded."""
    ours, shown, loud = logging.getLogger("headroles"), theirs.is_progress_bar_enabled(), theirs.get_verbosity()
    before = ours.level
    try:
        ours.setLevel(logging.ERROR)
        theirs.set_verbosity_error()
        theirs.disable_progress_bar()
        yield
    finally:
        ours.setLevel(before)
        theirs.set_verbosity(loud)
        if shown:
            theirs.enable_progress_bar()


def _result(check: Check, case: Case) -> Result:
    try:
        off = check.check(case)
    except Exception as error:  # noqa: BLE001 - a model may raise anything
        return _failed(error)
    if off <= check.allowed:
        return Result("yes", off, "")
    claim = (check.check.__doc__ or "").splitlines()[0].removeprefix("Check that ")
    return Result("no", off, f"{off:.2g} off, {check.allowed:.2g} allowed: {claim}")


def _failed(error: Exception) -> Result:
    message = " ".join(str(error).split())
    if isinstance(error, NotAsked):
        return Result("not asked", float("nan"), message)
    frame = [*walk_tb(error.__traceback__)][-1][0]  # where it was raised: in this package, or in a library
    if isinstance(error, ValueError | TypeError) and str(frame.f_globals.get("__name__")).startswith("headroles"):
        return Result("refused", float("nan"), message)
    return Result("no", float("nan"), f"{type(error).__name__}: {message}")
