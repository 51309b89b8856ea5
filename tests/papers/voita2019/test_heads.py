"""Claims about functions of heads can hold, not hold, and not be decided."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.artefacts import cases, frame, judged

from headroles.papers.voita2019 import heads


def functions(*counts: tuple[float, float]) -> pd.DataFrame:
    rows = [("positional", 3, 3, 4, 12), ("syntactic", 2, 2, 2, 12), *(("rare", 1, *each, 12) for each in counts)]
    return frame("function heads sure possible of", *rows)


def commonest(low: float, high: float) -> pd.DataFrame:
    return frame(
        "relation share low high paper", *((one, 0.4, low, high, 0.35) for one in ("nsubj", "obj", "amod", "advmod"))
    )


def dependencies(low: float, high: float) -> pd.DataFrame:
    """All four of subjects and objects alike; amod is no better than its baseline."""
    rows = [
        (one, way, (low + high) / 2, low, high, 0.4) for one in ("nsubj", "obj") for way in ("dep>head", "head>dep")
    ]
    return frame("relation way ours low high baseline", *rows, ("amod", "dep>head", 0.7, 0.69, 0.71, 0.7))


RULES = {  # tables with which a claim holds, does not hold, and cannot be decided
    "fig1c": (functions((1, 1)), functions((0, 0)), functions((0, 2))),
    "fig2": tuple(functions(each).assign(corpus="b") for each in ((1, 1), (0, 0), (np.nan, np.nan))),
    "fig3": (commonest(0.36, 0.5), commonest(0.1, 0.3), commonest(0.3, 0.4)),
    "fig4": (dependencies(0.6, 0.7), dependencies(0.41, 0.45), dependencies(0.45, 0.55)),
    "table1": (dependencies(0.5, 0.7), dependencies(0.41, 0.45), dependencies(0.45, 0.55)),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "table", "answer"), cases(heads, RULES))
def test_a_rule_says_yes_no_and_that_it_cannot_be_decided(rule, table, answer):
    judged(rule, table, answer)


def test_relations_that_are_missing_are_not_found():
    """Trees with the relation dobj have no obj: subjects alone are not both."""
    table = dependencies(0.5, 0.7)
    assert heads.table1_claim(table.query("relation != 'obj'")).holds is None
    assert heads.table1_claim(table.assign(ours=table["ours"].where(table["relation"] != "obj"))).holds is None
    assert heads.fig3_claim(commonest(0.36, 0.5).query("relation == 'amod'")).holds is None


def test_the_best_of_many_heads_must_be_better_than_the_best_of_many_by_chance():
    """48 heads whose interval is a tenth wide to each side: the best is 0.2 above 0.4 now and then."""
    table = dependencies(0.51, 0.71)
    assert heads.fig4_claim(table).holds is True
    assert heads.fig4_claim(table.assign(of=48)).holds is None
