"""Claims about relevance of heads and their confidence can hold, not hold, and not be decided."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.artefacts import cases, frame, judged

from headroles.papers.voita2019 import relevance


def shares(*ends: float, untrained: float = 1.6) -> pd.DataFrame:
    columns = "layer head share share.low share.high equal"
    rows = (0, 0, 0.12, 0.11, 0.13, 0.125), (1, 3, *ends, 0.125), (2, 1, *ends, 0.125)
    return frame(columns, *rows).assign(untrained=untrained)


def ranks(low: float, high: float, untrained: float = 0.2) -> pd.DataFrame:
    row = ("rank correlation with relevance", (low + high) / 2, low, high, untrained)
    return frame("what ours ours.low ours.high untrained", row)


RULES = {  # tables with which a claim holds, does not hold, and cannot be decided
    "fig1a": (shares(0.3, 0.28, 0.32), shares(0.15, 0.14, 0.16), shares(0.2, 0.17, 0.22)),
    "fig1b": (ranks(0.1, 0.5), ranks(-0.5, -0.1), ranks(-0.1, 0.4)),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "table", "answer"), cases(relevance, RULES))
def test_a_rule_says_yes_no_and_that_it_cannot_be_decided(rule, table, answer):
    judged(rule, table, answer)


def test_an_untrained_models_share_of_relevance_is_no_large_one():
    assert relevance.fig1a_claim(shares(0.19, 0.189, 0.191, untrained=1.4)).holds is True
    assert relevance.fig1a_claim(shares(0.19, 0.189, 0.191, untrained=1.6)).holds is False
    unknown = relevance.fig1a_claim(shares(0.3, 0.28, 0.32, untrained=np.nan))
    assert unknown.holds is None
    assert "layers a head has more than 1.5 equal shares; the most of any head" in unknown.why
    assert not unknown.why.startswith("in 0 of")
    assert relevance.fig1b_claim(ranks(0.1, 0.5, untrained=0.4)).holds is None


def test_one_layer_of_six_is_not_most_layers():
    """As in the Marian, whose layer 4 alone is above what an untrained model reaches."""
    low, high = (0.15, 0.14, 0.16), (0.3, 0.28, 0.32)
    columns = "layer head share share.low share.high equal"
    verdicts = [
        relevance.fig1a_claim(
            frame(columns, *[(layer, 4, *(high if layer < many else low), 0.125) for layer in range(6)]).assign(
                untrained=1.75
            )
        )
        for many in (1, 3, 4)
    ]
    assert [verdict.holds for verdict in verdicts] == [False, False, True]
    assert verdicts[0].why.startswith("in 1 of 6 layers ")
