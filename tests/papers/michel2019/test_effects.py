"""Claims about ablation of one head, and of all but one can hold, not hold, and not be decided."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.artefacts import cases, frame, judged, worth

from headroles.papers.michel2019 import effects


def single(*relative: float) -> pd.DataFrame:
    """Effects of heads, shares of the score, each with an interval of one percent to each side."""
    middle = np.array(relative)
    columns = {"kind": "enc-self", "layer": 0, "head": range(len(middle)), "relative": middle}
    return worth(pd.DataFrame(columns | {"relative.low": middle - 0.01, "relative.high": middle + 0.01}))


def redundant(near: int, far: int, significant: int = 8, better: int = 4) -> pd.DataFrame:
    return worth(frame("significant near far of better", (significant, near, far, 96, better)))


def kept(p: float, *costs: tuple[float, float, float]) -> pd.DataFrame:
    rows = [("enc-self", layer, p if layer else 0.5, *cost, 0.027) for layer, cost in enumerate(costs)]
    return worth(frame("kind layer p cost cost.low cost.high little", *rows))


RULES = {  # tables with which a claim holds, does not hold, and cannot be decided
    "fig1": (single(*[0.001] * 20, 0.2), single(*[0.1] * 20), single(0.1, 0.001, 0.2, 0.002)),
    "table1": (redundant(88, 2), redundant(2, 88), redundant(40, 40)),
    "table2": (
        kept(0.001, *[(0.0, -0.01, 0.01)] * 3, (1, 0.5, 2)),
        kept(0.001, *[(0.0, -0.01, 0.01)] * 2, *[(1, 0.5, 2)] * 2),
        kept(0.5, *[(0.02, 0, 0.1)] * 4),  # none is worse at p < 0.01, and none is sure to be as good
    ),
    "table5": (
        kept(0.001, *[(0.0, -0.01, 0.01)] * 2, *[(1, 0.5, 2)] * 2),
        kept(0.001, (0.0, -0.01, 0.01), *[(1, 0.5, 2)] * 3),
        kept(0.5, *[(0.02, 0, 0.1)] * 4),
    ),
    "table3": (
        kept(0.5, *[(0.0, -0.01, 0.01)] * 3), kept(0.001, *[(0.1, 0.05, 0.2)] * 3), kept(0.5, *[(0.0, -0.1, 0.1)] * 3)
    ),
    "table6": (
        kept(0.5, *[(0.0, -0.01, 0.01)] * 3), kept(0.001, *[(0.1, 0.05, 0.2)] * 3), kept(0.5, *[(0.0, -0.1, 0.1)] * 3)
    ),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "table", "answer"), cases(effects, RULES))
def test_a_rule_says_yes_no_and_that_it_cannot_be_decided(rule, table, answer):
    judged(rule, table, answer)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("ends", [(-0.01, 0.01), (0.02, 0.1), (np.nan, np.nan)])
def test_where_all_heads_are_worth_little_it_shows_nothing_that_one_is(name, ends):
    assert getattr(effects, f"{name}_claim")(worth(RULES[name][0], *ends)).holds is None


def test_half_of_the_significant_heads_must_be_for_the_better():
    """The paper's 4 of 8 are; of one head, or of none, it cannot be said."""
    assert effects.table1_claim(redundant(90, 0, 8, 4)).holds is True
    assert [effects.table1_claim(redundant(90, 0, *of)).holds for of in ((0, 0), (1, 0), (13, 0), (26, 26))] == [
        *(None, None, False, False)
    ]
    assert "nan" not in effects.table1_claim(redundant(90, 0, 0, 0)).why


@pytest.mark.parametrize("name", ["table2", "table3", "table5", "table6"])
def test_one_head_is_not_enough_where_it_is_surely_worse(name):
    """As in the Marian: little is lost in all layers, and in most of them it is lost at the paper's p."""
    rule = getattr(effects, f"{name}_claim")
    little = [(0.01, 0.005, 0.02)] * 18
    assert rule(kept(0.5, *little)).holds is True
    assert rule(kept(0.001, *little)).holds is None
    gained = [(-0.01, -0.02, -0.005)] * 18  # sure, and for the better
    assert rule(kept(0.001, *gained)).holds is True
