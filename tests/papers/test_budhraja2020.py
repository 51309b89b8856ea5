"""Claims about pruning and fine-tuning can hold, not hold, and not be decided."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.artefacts import cases, frame, gained, judged, tuned

from headroles.papers import budhraja2020


def chance(low: float, high: float) -> pd.DataFrame:
    columns = "of tuned share heads cost cost.low cost.high"
    rows = ("here", False, 0.5, 36, 0.2, 0.1, 0.3), ("here", True, 0.5, 36, 0.02, low, high)
    return tuned(frame(columns, *rows))


def places(middle: tuple[float, float], consecutive: tuple[float, float]) -> pd.DataFrame:
    rows = [
        (name, f"{name} x", 36, sum(ends) / 2, *ends)
        for name, ends in (("middle", middle), ("consecutive", consecutive))
    ]
    return tuned(frame("question taken heads gain low high", *rows))


def moved(p: float, cv: float, whole: float = 0.01) -> pd.DataFrame:
    row = {"of": "moved[all] of heads", "cv": cv, "largest over mean": 1 + cv, "w": 0.5, "p": p}
    return tuned(pd.DataFrame([row | {"moved": 0.02, "moved.whole": whole}]))


RULES = {  # tables with which a claim holds, does not hold, and cannot be decided
    "claim1": (chance(0, 0.02), chance(0.1, 0.2), chance(0, 0.1)),
    "claim2": (gained(0.001, -0.001, 0.003), gained(0.1, 0.08, 0.12), gained(0.01, -0.05, 0.07)),
    "claim3": (
        places((0.1, 0.2), (0.1, 0.2)), places((-0.2, -0.1), (0.1, 0.2)), places((-0.1, 0.2), (0.1, 0.2))
    ),
    "claim4": (moved(0.5, 0.05), moved(0.001, 0.3), moved(0.5, 0.3)),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "table", "answer"), cases(budhraja2020, RULES))
def test_a_rule_says_yes_no_and_that_it_cannot_be_decided(rule, table, answer):
    judged(rule, table, answer)


@pytest.mark.parametrize(
    ("rule", "table"),
    [
        (budhraja2020.claim1_claim, tuned(chance(0.1, 0.2), epochs=0.17)),
        (budhraja2020.claim2_claim, tuned(gained(0.1, 0.08, 0.12), epochs=np.nan)),
        (budhraja2020.claim3_claim, tuned(places((0.1, 0.2), (0.1, 0.2)), epochs=1)),
        (budhraja2020.claim4_claim, tuned(moved(0.001, 0.3), epochs=1)),
    ],
)
def test_what_was_not_trained_alike_is_not_compared(rule, table):
    verdict = rule(table)
    assert (verdict.holds, verdict.comparable, verdict.answer) == (None, False, "not comparable")
