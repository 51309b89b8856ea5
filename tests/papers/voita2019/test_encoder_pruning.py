"""Claims about pruning of the encoder can hold, not hold, and not be decided."""

from __future__ import annotations

import pandas as pd
import pytest
from helpers.artefacts import cases, frame, judged, worth

from headroles.papers.bench import Bench
from headroles.papers.voita2019 import encoder_pruning


def sizes(low: float, high: float) -> pd.DataFrame:
    rows = (48, 48, 0, 0, 0), (24, 48, 0, 0, 0), (10, 48, 0.02, low, high)
    return worth(frame("heads of cost cost.low cost.high", *rows))


def left(*few: float) -> pd.DataFrame:
    return frame("heads none", (48, 34), (30, 18), few)


FORMULAS = encoder_pruning.fig6(Bench([])).table
RULES = {  # tables with which a claim holds, does not hold, and cannot be decided
    "fig6": (FORMULAS, FORMULAS.assign(**{"ours P(0)": 0.5}), None),
    "fig7": (sizes(0.0, 0.02), sizes(0.04, 0.1), sizes(0.0, 0.05)),
    "fig8": (left(8, 0), frame("heads none", (48, 2), (12, 10)), left(8, 5)),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "table", "answer"), cases(encoder_pruning, RULES))
def test_a_rule_says_yes_no_and_that_it_cannot_be_decided(rule, table, answer):
    judged(rule, table, answer)


def test_formulas_are_the_papers():
    assert FORMULAS["ours P(0)"].tolist() == pytest.approx([0.232, 0.039, 0.858], abs=5e-4)
