"""Claims about relevance, confidence and functions of heads can hold, not hold, and not be decided."""

from __future__ import annotations

import shutil
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from helpers.artefacts import cases, frame, judged

from headroles.papers import voita2019_heads
from headroles.papers.bench import Bench
from headroles.tables.io import load_table

matplotlib.use("agg")
FIGURES = Path(__file__).resolve().parents[2] / "figures"


def shares(*ends: float, untrained: float = 1.6) -> pd.DataFrame:
    columns = "layer head share share.low share.high equal"
    rows = (0, 0, 0.12, 0.11, 0.13, 0.125), (1, 3, *ends, 0.125), (2, 1, *ends, 0.125)
    return frame(columns, *rows).assign(untrained=untrained)


def ranks(low: float, high: float, untrained: float = 0.2) -> pd.DataFrame:
    row = ("rank correlation with relevance", (low + high) / 2, low, high, untrained)
    return frame("what ours ours.low ours.high untrained", row)


def functions(*counts: tuple[float, float]) -> pd.DataFrame:
    rows = [("positional", 3, 3, 4, 12), ("syntactic", 2, 2, 2, 12), *(("rare", 1, *each, 12) for each in counts)]
    return frame("function heads sure possible of", *rows)


def commonest(low: float, high: float) -> pd.DataFrame:
    relations = ("nsubj", "obj", "amod", "advmod")
    return frame("relation share low high paper", *((one, 0.4, low, high, 0.35) for one in relations))


def dependencies(low: float, high: float) -> pd.DataFrame:
    """All four of subjects and objects alike; amod is no better than its baseline."""
    ways = [(relation, way) for relation in ("nsubj", "obj") for way in ("dep>head", "head>dep")]
    rows = [(*way, (low + high) / 2, low, high, 0.4) for way in ways]
    return frame("relation way ours low high baseline", *rows, ("amod", "dep>head", 0.7, 0.69, 0.71, 0.7))


def rarities(*effect: float) -> pd.DataFrame:
    return frame("layer head rarity rarity.low rarity.high", (0, 2, *effect), (1, 0, 0.1, 0.1, 0.1))


RULES = {  # tables with which a claim holds, does not hold, and cannot be decided
    "fig1a": (shares(0.3, 0.28, 0.32), shares(0.15, 0.14, 0.16), shares(0.2, 0.17, 0.22)),
    "fig1b": (ranks(0.1, 0.5), ranks(-0.5, -0.1), ranks(-0.1, 0.4)),
    "fig1c": (functions((1, 1)), functions((0, 0)), functions((0, 2))),
    "fig2": tuple(functions(each).assign(corpus="b") for each in ((1, 1), (0, 0), (np.nan, np.nan))),
    "fig3": (commonest(0.36, 0.5), commonest(0.1, 0.3), commonest(0.3, 0.4)),
    "fig4": (dependencies(0.6, 0.7), dependencies(0.41, 0.45), dependencies(0.45, 0.55)),
    "table1": (dependencies(0.5, 0.7), dependencies(0.41, 0.45), dependencies(0.45, 0.55)),
    "fig5": tuple(frame("queries hits", (20, hits)) for hits in (19, 2, 11)),
    "rare": (rarities(0.6, 0.55, 0.65), rarities(0.2, 0.1, 0.3), rarities(0.5, 0.4, 0.6)),
}


@pytest.mark.parametrize(("rule", "table", "answer"), cases(voita2019_heads, RULES))
def test_a_rule_says_yes_no_and_undecided(rule, table, answer):
    judged(rule, table, answer)


def test_fig1a_the_share_of_an_untrained_model_is_not_large():
    assert voita2019_heads.fig1a_claim(shares(0.19, 0.189, 0.191, untrained=1.4)).holds is True
    assert voita2019_heads.fig1a_claim(shares(0.19, 0.189, 0.191, untrained=1.6)).holds is False
    unknown = voita2019_heads.fig1a_claim(shares(0.3, 0.28, 0.32, untrained=np.nan))
    assert unknown.holds is None
    assert "layers a head has more than 1.5 equal shares; the most of any head" in unknown.why
    assert not unknown.why.startswith("in 0 of")
    assert voita2019_heads.fig1b_claim(ranks(0.1, 0.5, untrained=0.4)).holds is None


@pytest.mark.parametrize(("many", "answer"), [(1, False), (3, False), (4, True)])
def test_fig1a_one_layer_of_six_is_not_most_layers(many, answer):
    """As in the Marian, whose layer 4 alone is above what an untrained model reaches."""
    low, high = (0.15, 0.14, 0.16), (0.3, 0.28, 0.32)
    rows = [(layer, 4, *(high if layer < many else low), 0.125) for layer in range(6)]
    table = frame("layer head share share.low share.high equal", *rows).assign(untrained=1.75)
    verdict = voita2019_heads.fig1a_claim(table)
    assert verdict.holds is answer
    assert verdict.why.startswith(f"in {many} of 6 layers ")


def test_relations_that_are_missing_are_not_found():
    """Trees with the relation dobj have no obj: subjects alone are not both."""
    table = dependencies(0.5, 0.7)
    assert voita2019_heads.table1_claim(table.query("relation != 'obj'")).holds is None
    without = table.assign(ours=table["ours"].where(table["relation"] != "obj"))
    assert voita2019_heads.table1_claim(without).holds is None
    assert voita2019_heads.fig3_claim(commonest(0.36, 0.5).query("relation == 'amod'")).holds is None


def test_fig4_the_best_of_many_heads_must_exceed_the_best_of_many_by_chance():
    """48 heads whose interval is a tenth wide to each side: the best is 0.2 above 0.4 now and then."""
    table = dependencies(0.51, 0.71)
    assert voita2019_heads.fig4_claim(table).holds is True
    assert voita2019_heads.fig4_claim(table.assign(of=48)).holds is None


@pytest.mark.parametrize(("corpus", "known"), [("pud", True), ("ewt", False), (None, False)])
def test_fig1c_scores_without_resamples_are_as_stable_as_the_roles_beside_them(tmp_path, corpus, known):
    """The scores of this repository have no resamples; roles of another corpus say nothing about them."""
    shutil.copy(FIGURES / "minilm" / "pud" / "heads.parquet", tmp_path)
    if corpus:
        shutil.copy(FIGURES / "minilm" / corpus / "roles.parquet", tmp_path)
    found = voita2019_heads.fig1c(Bench([tmp_path]))
    counts = found.table.set_index("function")
    assert counts["heads"].tolist() == [2, 6, 0]
    assert found.verdict.holds is (False if known else None)
    sure, possible = counts.loc["syntactic", ["sure", "possible"]]
    if known:
        stable = load_table(tmp_path / "roles.parquet").filter(regex=r"^syntactic.*\.stability$").max(axis=1)
        assert (sure, possible) == ((stable >= 0.95).sum(), (stable >= 0.05).sum()) == (5, 8)
    else:
        assert np.isnan([sure, possible]).all()
