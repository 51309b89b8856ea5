"""Claims about the head of rare words can hold, not hold, and not be decided."""

from __future__ import annotations

import pandas as pd
import pytest
from helpers.artefacts import cases, frame, judged

from headroles.papers.voita2019 import rare_words


def score(*effect: float) -> pd.DataFrame:
    return frame("layer head rarity rarity.low rarity.high", (0, 2, *effect), (1, 0, 0.1, 0.1, 0.1))


RULES = {  # tables with which a claim holds, does not hold, and cannot be decided
    "fig5": tuple(frame("queries hits", (20, hits)) for hits in (19, 2, 11)),
    "rare": (score(0.6, 0.55, 0.65), score(0.2, 0.1, 0.3), score(0.5, 0.4, 0.6)),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "table", "answer"), cases(rare_words, RULES))
def test_a_rule_says_yes_no_and_that_it_cannot_be_decided(rule, table, answer):
    judged(rule, table, answer)
