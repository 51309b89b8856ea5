"""Claims about curves, speed and the course of training can hold, not hold, and not be decided."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.artefacts import cases, frame, judged

from headroles.papers.michel2019 import curves


def curve(low: float, high: float) -> pd.DataFrame:
    columns = "order share cost cost.low cost.high paper paired"
    rows = ("importance", 0, 0, 0, 0, np.nan, True), ("importance", 0.4, 0.02, low, high, 0.4, True)
    return frame(columns, *rows, ("importance", 1, 0.9, 0.8, 1, np.nan, True))


def of_kinds(dec: float, cross: float) -> pd.DataFrame:
    costs = {"enc-self": 0.02, "dec-self": dec, "cross": cross}
    rows = [(kind, 0.8, cost, cost - 0.05, cost + 0.05) for kind, cost in costs.items()]
    return frame("kind share cost cost.low cost.high", ("enc-self", 0, 0, 0, 0), *rows)


def epochs(first: float, last: float) -> pd.DataFrame:
    rows = [
        (epoch, value, value - 0.03, value + 0.03, True)
        for epoch, value in zip((1, 2, 4, 7, 10), np.linspace(first, last, 5), strict=True)
    ]
    return frame("epoch kept kept.low kept.high paired", *rows)


def attention(share: float) -> pd.DataFrame:
    return frame("what ours", ("attention of all parameters", share))


RULES = {  # tables with which a claim holds, does not hold, and cannot be decided
    "fig3": (curve(0, 0.02), curve(0.1, 0.2), curve(0, 0.1)),
    "fig6": (curve(0, 0.02), curve(0.1, 0.2), curve(0, 0.1)),
    "fig4": (of_kinds(0.2, 0.8), of_kinds(0.8, 0.2), of_kinds(0.5, 0.5)),
    "fig5": (epochs(0.5, 0.95), epochs(1.1, 0.9), epochs(0.93, 0.95)),
    "table4": tuple(
        frame("batch speedup speedup.low speedup.high", (1, 0.9, 0.8, 1), (64, 1.1, low, high))
        for low, high in ((1.05, 1.2), (0.8, 0.9), (0.9, 1.2))
    ),
    "heads_share": (attention(0.33), attention(0.1), None),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "table", "answer"), cases(curves, RULES))
def test_a_rule_says_yes_no_and_that_it_cannot_be_decided(rule, table, answer):
    judged(rule, table, answer)


def test_of_a_score_of_zero_nothing_can_be_lost():
    table = curve(0, 0.02).assign(**{name: np.nan for name in ("cost", "cost.low", "cost.high")})
    assert curves.fig3_claim(table) == (None, "the score of the whole model is 0, of which nothing can be lost", True)
