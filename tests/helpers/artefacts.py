"""Artefacts of the papers with their claims, and tables made for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

from headroles.papers.reproduction import artefacts
from headroles.papers.verdicts import Verdict
from headroles.tables.io import save_table

WANTED = {  # what is listed in the papers
    "voita2019": "fig1a fig1b fig1c fig2 fig3 fig4 fig5 fig6 fig7 fig8 fig9 fig10 table1 table2 rare gates",
    "michel2019": "fig1 fig2 fig3 fig4 fig5 fig6 table1 table2 table3 table4 table5 table6 heads_share",
    "budhraja2020": "claim1 claim2 claim3 claim4",
}


def frame(columns: str, *rows: tuple[object, ...]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=columns.split())


def with_cost_of_all(table: pd.DataFrame, low: float = 0.4, high: float = 0.6) -> pd.DataFrame:
    """A table of a model in which removing all heads costs so much of the score."""
    return table.assign(**{"all": (low + high) / 2, "all.low": low, "all.high": high})


def cases(module: ModuleType, rules: dict[str, tuple[pd.DataFrame | None, ...]]) -> list[Any]:
    """Every claim of a module with each of its three tables and the answer; a rule over counts always decides."""
    made = artefacts(module.__name__.split(".")[2])
    assert set(rules) == set(made)
    return [
        pytest.param(getattr(module, f"{name}_claim"), table, answer, id=f"{name} {answer}")
        for name, tables in rules.items()
        for table, answer in zip(tables, (True, False, None), strict=True)
        if table is not None
    ]


def judged(rule: Callable[[pd.DataFrame], Verdict], table: pd.DataFrame, answer: bool | None) -> None:
    """The rule gives this answer of the table, with numbers."""
    verdict = rule(table)
    assert verdict.holds is answer
    assert re.search(r"\d", verdict.why)
    assert "nan" not in verdict.why


def tuned(table: pd.DataFrame, epochs: float = 3) -> pd.DataFrame:
    return table.assign(steps=1000, epochs=epochs)


def gained(*gain: float) -> pd.DataFrame:
    rows = [("importance", 36, *gain, 0.9, 0.1, 0.2), ("effect", 36, 0.0, -0.001, 0.001, 0.9, -0.1, 0.1)]
    return tuned(frame("strategy heads gain gain.low gain.high whole untuned.low untuned.high", *rows))


def put(path: Path, columns: dict[str, object], signature: str = "model:m|metric:Loss()|text:t") -> Path:
    table = pd.DataFrame(columns)
    table.attrs["signatures"] = dict.fromkeys(table, signature)
    return save_table(table, path)
