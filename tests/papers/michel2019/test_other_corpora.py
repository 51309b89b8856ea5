"""Claims about effects on other corpora can hold, not hold, and not be decided."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.artefacts import cases, frame, judged, worth
from scipy import stats

from headroles.papers.bench import Bench
from headroles.papers.michel2019 import other_corpora

ROOT = Path(__file__).resolve().parents[3]


def correlated(low: float, high: float, untrained: float = 0.1) -> pd.DataFrame:
    columns = "pearson pearson.rest spearman spearman.low spearman.high corpus"
    table = frame(columns, (0.1, 0.1, 0.1, -1, 1, "a"), (0.9, 0.3, 0.5, low, high, "a"))
    return worth(table.assign(**{"heads of": ["all", "enc-self"], "untrained": untrained}))


RULES = {  # tables with which a claim holds, does not hold, and cannot be decided
    "fig2": (correlated(0.2, 0.7), correlated(-0.7, -0.2), correlated(-0.1, 0.7)),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "table", "answer"), cases(other_corpora, RULES))
def test_a_rule_says_yes_no_and_that_it_cannot_be_decided(rule, table, answer):
    judged(rule, table, answer)


@pytest.mark.parametrize("ends", [(-0.01, 0.01), (0.02, 0.1), (np.nan, np.nan)])
def test_where_all_heads_are_worth_little_it_shows_nothing_that_one_is(ends):
    assert other_corpora.fig2_claim(worth(correlated(0.2, 0.7), *ends)).holds is None


def test_an_agreement_that_untrained_models_have_shows_nothing():
    assert other_corpora.fig2_claim(correlated(0.2, 0.7, untrained=0.1)).holds is True
    verdicts = [other_corpora.fig2_claim(correlated(0.2, 0.7, untrained)) for untrained in (0.5, 0.94, np.nan)]
    assert [verdict.holds for verdict in verdicts] == [None, None, None]
    assert "untrained models reach 0.94" in verdicts[1].why
    assert other_corpora.fig2_claim(correlated(-0.7, -0.2, untrained=-0.9)).holds is False


def test_the_agreement_of_an_untrained_marian_is_that_of_its_table():
    """Spearman's correlation over its 48 encoder heads, by scipy."""
    place = ROOT / "figures/multi30k-en-de"
    bench = Bench([place])
    bench.untrained = Bench([place / "untrained"])
    effects = [
        pd.read_parquet(place / "untrained" / study / "ablation-loss-head-zero.parquet")["ablation[loss]"]["enc-self"]
        for study in ("ablation", "ablation-mscoco")
    ]
    rows = other_corpora.fig2(bench).table
    assert rows["untrained"].iloc[0] == pytest.approx(stats.spearmanr(*effects)[0])
    assert rows["untrained"].iloc[0] > rows.loc[rows["heads of"] == "enc-self", "spearman"].max()
