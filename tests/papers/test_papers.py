"""The papers: their numbers, what is there, each claim's rule, artefacts of saved tables, toys, all without torch."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import matplotlib

matplotlib.use("agg")

import numpy as np
import pandas as pd
import pytest
from helpers import zoo
from helpers.commands import run
from helpers.letters import corpus, tokens_of

import headroles as hr
from headroles.papers.artefact import (
    Interval,
    Reproduced,
    beside,
    every,
    of_wmt,
    on_balance,
    prediction_bound,
    printed,
    provided,
    share,
    some,
)
from headroles.papers.bench import UNREPEATED, Bench, gains, metric_of, of_kind, stake
from headroles.papers.claims import PAPERS, Control, artefacts, controls, decided, reproduce
from headroles.papers.needs import Missing
from headroles.papers.preparation import material
from headroles.papers.reproduction import TOYS
from headroles.papers.tiny import workflows
from headroles.papers.voita2019 import relevance
from headroles.papers.workflow import Workflow
from headroles.tables import frame as heads
from headroles.tables.io import load_table, save_table

ROOT = Path(__file__).resolve().parents[2]
WANTED = {  # what is listed in the papers
    "voita2019": "fig1a fig1b fig1c fig2 fig3 fig4 fig5 fig6 fig7 fig8 fig9 fig10 table1 table2 rare gates",
    "michel2019": "fig1 fig2 fig3 fig4 fig5 fig6 table1 table2 table3 table4 table5 table6 heads_share",
    "budhraja2020": "claim1 claim2 claim3 claim4",
}


def claims_of(paper: str) -> ModuleType:
    """The functions that judge the claims of a paper, from whichever of its modules."""
    claims = ModuleType(paper)
    for name, make in artefacts(paper).items():
        setattr(claims, f"{name}_claim", getattr(sys.modules[make.__module__], f"{name}_claim"))
    return claims


CLAIMS = {paper: claims_of(paper) for paper in PAPERS}
voita2019, michel2019, budhraja2020 = CLAIMS.values()


def whole(message: str) -> str:
    return f"^{re.escape(message)}$"


# --- three answers ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_interval_with_the_bound_inside_is_undecided():
    ends = (1.1, 2), (0, 0.9), (0.5, 2), (np.nan, 2)
    assert [Interval(1, *pair).above(1) for pair in ends] == [True, False, None, None]
    assert [Interval(1, *pair).below(1) for pair in ends] == [False, True, None, None]


@pytest.mark.parametrize(
    ("parts", "all_", "any_", "balance"),
    [
        ([True, True], True, True, True),
        ([True, None], None, True, True),
        ([False, None], False, None, False),
        ([True, False], False, True, None),
        ([False, False], False, False, False),
        ([None], None, None, None),
        ([], None, None, None),
    ],
)
def test_answers_are_joined(parts, all_, any_, balance):
    assert (every(parts), some(parts), on_balance(parts)) == (all_, any_, balance)


def test_interval_minus_is_as_wide_as_both():
    difference = Interval(5, 4, 7).minus(Interval(3, 2, 5))
    assert difference == pytest.approx((2, 2 - np.hypot(1, 2), 2 + np.hypot(2, 1)))


def test_interval_widened_grows_with_the_comparisons():
    assert Interval(1, 0, 3).widened(1) == pytest.approx((1, 0, 3))
    value, low, high = Interval(1, 0, 3).widened(8)
    assert (value, 1 - low, high - 1) == pytest.approx((1, 1.395, 2.790), abs=0.002)  # z of .025 / 8 over that of .025


def test_interval_of_a_row_scaled_and_of_a_share():
    row = {"a": 2, "a.low": 1, "a.high": 4}
    assert Interval.of(row, "a").scaled(-10) == (-20, -40, -10)
    assert share(8, 10) == pytest.approx((0.8, 0.490, 0.943), abs=0.001)
    assert np.isnan(share(0, 0)).all()


def test_interval_format():
    assert (f"{Interval(0.126)}", f"{Interval(1.5, 1, 2):.1f}") == ("0.13", "1.5 [1.0, 2.0]")
    assert (f"{Interval(-0.001)}", f"{Interval(np.nan)}") == ("0.00", "undefined")


# --- the papers' numbers ------------------------------------------------------------------------------------------


def names() -> list[str]:
    return sorted(path.stem for path in (ROOT / "headroles" / "papers" / "numbers").glob("*.csv"))


@pytest.mark.parametrize("name", names())
def test_numbers_say_where_they_are_from(name):
    table = printed(name)
    paper, _, artefact = name.partition("-")
    assert len(table)
    if paper in PAPERS:
        assert re.match(rf"{paper[:-4].capitalize()} et al\. {paper[-4:]}, ", table.attrs["source"])
        assert artefact in artefacts(paper)
    else:
        assert table.attrs["source"].startswith("NOT Budhraja et al.: Prasanna et al. 2020")


def test_there_are_no_numbers_of_budhraja():
    assert [name for name in names() if name.startswith("budhraja")] == []


def test_the_layers_of_fig10_add_up_to_the_kinds_of_fig9():
    thirds, kinds = printed("voita2019-fig10"), of_wmt("voita2019-fig9")
    for kind in ("dec-self", "cross"):
        assert thirds.filter(like=kind).sum(axis=1).tolist() == kinds[kind].tolist()
    assert (thirds.drop(columns="of") <= 16).all(axis=None)
    assert kinds["heads"].is_monotonic_decreasing


def test_the_functions_of_fig8_are_those_of_fig1c_and_add_up():
    table = printed("voita2019-fig8").set_index("heads")
    assert table.filter(like="paper.").sum(axis=1).tolist() == table.index.tolist()
    for row in printed("voita2019-fig1c").itertuples():
        assert table.loc[48, f"paper.{row.function}"] == row.paper


def test_the_sizes_of_table2_are_points_of_fig9():
    kinds = ["corpus", "enc-self", "dec-self", "cross"]
    rows = printed("voita2019-table2").query("scratch == scratch")
    assert len(rows.merge(printed("voita2019-fig9")[kinds], on=kinds)) == len(rows) == 7


def test_michels_tables_have_the_significant_layers_the_text_counts():
    assert printed("michel2019-table5")["paper.sure"].sum() == 9  # "half of 18 layers" are not
    assert printed("michel2019-table1")["paper"].gt(0).sum() == 4  # of 8
    assert not printed("michel2019-table3")["paper.sure"].any()
    assert not printed("michel2019-table6")["paper.sure"].any()


def test_numbers_there_are_none_of():
    with pytest.raises(FileNotFoundError, match=whole(f"no numbers of 'fig'; known: {', '.join(names())}")):
        printed("fig")


def test_numbers_stand_beside_ours():
    found = beside(pd.DataFrame({"layer": [0, 1], "share": [0.3, 0.2]}), "voita2019-fig1a", "layer")
    assert found["paper"][1] == 0.20
    assert np.isnan(found["paper"][0])
    assert found.attrs["source"].startswith("Voita et al. 2019, Fig. 1a")


# --- what there is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paper", PAPERS)
def test_every_artefact_is_there_with_its_claim(paper):
    assert set(artefacts(paper)) == set(WANTED[paper].split())
    for name, make in artefacts(paper).items():
        assert len(inspect.getsource(make).splitlines()) <= 35
        assert inspect.getdoc(make)
        claim = getattr(CLAIMS[paper], f"{name}_claim")
        assert claim.text.endswith(".")
        assert re.match(r"(Holds if|The rule of)", claim.rule)


@pytest.mark.parametrize("paper", PAPERS)
def test_without_tables_every_artefact_says_what_is_missing(paper, tmp_path):
    found = reproduce(Bench([tmp_path]), tmp_path, paper)
    lacking = found[(found["paper"] != "voita2019") | (found["artefact"] != "fig6")]  # which is a formula
    assert not lacking["made"].any()
    text = rf"no table of .* in {re.escape(str(tmp_path))}; make one with (headroles .+|hr\.(\w+)\(.+, study=\.\.\.\))"
    said = [re.fullmatch(text, why) for why in lacking["why"]]
    assert [why for why, match in zip(lacking["why"], said, strict=True) if not match] == []
    assert [match[2] for match in said if match[2] and not callable(getattr(hr, match[2], None))] == []


def test_what_there_is_not():
    known = ", ".join(artefacts("voita2019"))
    with pytest.raises(ValueError, match=whole(f"unknown artefact 'fig99' of voita2019; known: {known}")):
        reproduce(Bench([]), "nowhere", "voita2019", "fig99")
    with pytest.raises(ValueError, match=whole("unknown paper 'vaswani2017'; known: " + ", ".join(PAPERS))):
        artefacts("vaswani2017")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match=whole("no folder nowhere; give the folder of a study")):
        Bench(["nowhere"]).table("single")


# --- the rules ------------------------------------------------------------------------------------------------------


def frame(columns: str, *rows: tuple[object, ...]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=columns.split())


def shares(*ends: float, untrained: float = 1.6) -> pd.DataFrame:
    columns = "layer head share share.low share.high equal"
    return frame(columns, (0, 0, 0.12, 0.11, 0.13, 0.125), (1, 3, *ends, 0.125)).assign(untrained=untrained)


def worth(table: pd.DataFrame, low: float = 0.4, high: float = 0.6) -> pd.DataFrame:
    """A table of a model whose heads together are worth so much of the score."""
    return table.assign(**{"all": (low + high) / 2, "all.low": low, "all.high": high})


def functions(*counts: tuple[float, float]) -> pd.DataFrame:
    rows = [("positional", 3, 3, 4, 12), ("syntactic", 2, 2, 2, 12), *(("rare", 1, *each, 12) for each in counts)]
    return frame("function heads sure possible of", *rows)


def dependencies(low: float, high: float) -> pd.DataFrame:
    """All four of subjects and objects alike; amod is no better than its baseline."""
    rows = [
        (one, way, (low + high) / 2, low, high, 0.4) for one in ("nsubj", "obj") for way in ("dep>head", "head>dep")
    ]
    return frame("relation way ours low high baseline", *rows, ("amod", "dep>head", 0.7, 0.69, 0.71, 0.7))


def sizes(low: float, high: float) -> pd.DataFrame:
    rows = (48, 48, 0, 0, 0), (24, 48, 0, 0, 0), (10, 48, 0.02, low, high)
    return worth(frame("heads of cost cost.low cost.high", *rows))


def left(*few: float) -> pd.DataFrame:
    return frame("heads none", (48, 34), (30, 18), few)


def kinds(*small: float, half: tuple[int, int, int] = (9, 31, 32)) -> pd.DataFrame:
    return frame("heads of enc-self dec-self cross", (144, 144, 48, 48, 48), (72, 144, *half), (36, 144, *small))


def thirds(*counts: float) -> pd.DataFrame:
    names_ = [f"{kind} {third}" for kind in ("dec-self", "cross") for third in ("lower", "middle", "upper")]
    row = dict(zip(names_, counts, strict=True)) | {f"{name}.of": 16 for name in names_}
    return pd.DataFrame([row | {"heads": 40, "of": 96}])


def scratch(low: float, high: float, steps: float = 900) -> pd.DataFrame:
    columns = "heads of finetuned gap gap.low gap.high steps.finetuned steps.scratch"
    return frame(columns, (72, 144, 30, (low + high) / 2, low, high, 454, steps))


def score(*effect: float) -> pd.DataFrame:
    return frame("layer head rarity rarity.low rarity.high", (0, 2, *effect), (1, 0, 0.1, 0.1, 0.1))


def single(*relative: float) -> pd.DataFrame:
    """Effects of heads, shares of the score, each with an interval of one percent to each side."""
    middle = np.array(relative)
    columns = {"kind": "enc-self", "layer": 0, "head": range(len(middle)), "relative": middle}
    return worth(pd.DataFrame(columns | {"relative.low": middle - 0.01, "relative.high": middle + 0.01}))


def redundant(near: int, far: int) -> pd.DataFrame:
    return worth(frame("significant near far of better", (8, near, far, 48, 1)))


def kept(p: float, *costs: tuple[float, float, float]) -> pd.DataFrame:
    rows = [("enc-self", layer, p if layer else 0.5, *cost, 0.027) for layer, cost in enumerate(costs)]
    return worth(frame("kind layer p cost cost.low cost.high little", *rows))


def correlated(low: float, high: float) -> pd.DataFrame:
    columns = "pearson pearson.rest spearman spearman.low spearman.high corpus"
    table = frame(columns, (0.1, 0.1, 0.1, -1, 1, "a"), (0.9, 0.3, 0.5, low, high, "a"))
    return worth(table.assign(**{"heads of": ["all", "enc-self"]}))


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


def chance(low: float, high: float) -> pd.DataFrame:
    columns = "of tuned share heads cost cost.low cost.high"
    rows = ("here", False, 0.5, 36, 0.2, 0.1, 0.3), ("here", True, 0.5, 36, 0.02, low, high)
    return tuned(frame(columns, *rows))


def tuned(table: pd.DataFrame, epochs: float = 3) -> pd.DataFrame:
    return table.assign(steps=1000, epochs=epochs)


def gained(*gain: float) -> pd.DataFrame:
    rows = [("importance", 36, *gain, 0.9, 0.1, 0.2), ("effect", 36, 0.0, -0.001, 0.001, 0.9, -0.1, 0.1)]
    return tuned(frame("strategy heads gain gain.low gain.high whole untuned.low untuned.high", *rows))


def places(middle: tuple[float, float], consecutive: tuple[float, float]) -> pd.DataFrame:
    rows = [
        (name, f"{name} x", 36, sum(ends) / 2, *ends)
        for name, ends in (("middle", middle), ("consecutive", consecutive))
    ]
    return tuned(frame("question taken heads gain low high", *rows))


def moved(p: float, cv: float, whole: float = 0.01) -> pd.DataFrame:
    row = {"of": "moved[all] of heads", "cv": cv, "largest over mean": 1 + cv, "w": 0.5, "p": p}
    return tuned(pd.DataFrame([row | {"moved": 0.02, "moved.whole": whole}]))


def ranks(low: float, high: float, untrained: float = 0.2) -> pd.DataFrame:
    row = ("rank correlation with relevance", (low + high) / 2, low, high, untrained)
    return frame("what ours ours.low ours.high untrained", row)


def commonest(low: float, high: float) -> pd.DataFrame:
    return frame("relation share low high paper", ("nsubj", 0.4, low, high, 0.35))


def attention(share: float) -> pd.DataFrame:
    return frame("what ours", ("attention of all parameters", share))


RULES = {  # the rule: a table with which it holds, one with which it does not, one with which it cannot be told
    (voita2019, "fig1a"): (shares(0.3, 0.28, 0.32), shares(0.15, 0.14, 0.16), shares(0.2, 0.17, 0.22)),
    (voita2019, "fig1b"): (ranks(0.1, 0.5), ranks(-0.5, -0.1), ranks(-0.1, 0.4)),
    (voita2019, "fig1c"): (functions((1, 1)), functions((0, 0)), functions((0, 2))),
    (voita2019, "fig2"): tuple(functions(each).assign(corpus="b") for each in ((1, 1), (0, 0), (np.nan, np.nan))),
    (voita2019, "fig3"): (commonest(0.36, 0.5), commonest(0.1, 0.3), commonest(0.3, 0.4)),
    (voita2019, "fig4"): (dependencies(0.6, 0.7), dependencies(0.41, 0.45), dependencies(0.45, 0.55)),
    (voita2019, "table1"): (dependencies(0.5, 0.7), dependencies(0.41, 0.45), dependencies(0.45, 0.55)),
    (voita2019, "fig5"): tuple(frame("queries hits", (20, hits)) for hits in (19, 2, 11)),
    (voita2019, "rare"): (score(0.6, 0.55, 0.65), score(0.2, 0.1, 0.3), score(0.5, 0.4, 0.6)),
    (voita2019, "fig7"): (sizes(0.0, 0.02), sizes(0.04, 0.1), sizes(0.0, 0.05)),
    (voita2019, "fig8"): (left(8, 0), frame("heads none", (48, 2), (12, 10)), left(8, 5)),
    (voita2019, "fig9"): (kinds(3, 14, 19), kinds(20, 8, 8), kinds(11, 12, 13, half=(22, 24, 26))),
    (voita2019, "fig10"): (
        thirds(9, 5, 2, 1, 4, 14), thirds(9, 5, 2, 14, 4, 1), thirds(5, 5, 5, 1, 4, 14)
    ),
    (voita2019, "table2"): (scratch(1, 2), scratch(-2, -1), scratch(-0.5, 0.5)),
    (voita2019, "gates"): tuple(frame("of undecided closed", (288, count, 9)) for count in (5, 80, 25)),
    (michel2019, "fig1"): (single(*[0.001] * 20, 0.2), single(*[0.1] * 20), single(0.1, 0.001, 0.2, 0.002)),
    (michel2019, "table1"): (redundant(40, 2), redundant(2, 40), redundant(20, 20)),
    (michel2019, "table2"): (
        kept(0.5, *[(0.0, -0.01, 0.01)] * 3, (1, 0.5, 2)),
        kept(0.001, *[(0.0, -0.01, 0.01)] * 2, *[(1, 0.5, 2)] * 2),
        kept(0.5, *[(0.02, 0, 0.1)] * 4),  # none is worse at p < 0.01, and none is sure to be as good
    ),
    (michel2019, "table5"): (
        kept(0.001, *[(0.0, -0.01, 0.01)] * 2, *[(1, 0.5, 2)] * 2),
        kept(0.001, (0.0, -0.01, 0.01), *[(1, 0.5, 2)] * 3),
        kept(0.5, *[(0.02, 0, 0.1)] * 4),
    ),
    (michel2019, "table3"): (
        kept(0.5, *[(0.0, -0.01, 0.01)] * 3), kept(0.001, *[(0.1, 0.05, 0.2)] * 3), kept(0.5, *[(0.0, -0.1, 0.1)] * 3)
    ),
    (michel2019, "table6"): (
        kept(0.5, *[(0.0, -0.01, 0.01)] * 3), kept(0.001, *[(0.1, 0.05, 0.2)] * 3), kept(0.5, *[(0.0, -0.1, 0.1)] * 3)
    ),
    (michel2019, "fig2"): (correlated(0.2, 0.7), correlated(-0.7, -0.2), correlated(-0.1, 0.7)),
    (michel2019, "fig3"): (curve(0, 0.02), curve(0.1, 0.2), curve(0, 0.1)),
    (michel2019, "fig6"): (curve(0, 0.02), curve(0.1, 0.2), curve(0, 0.1)),
    (michel2019, "fig4"): (of_kinds(0.2, 0.8), of_kinds(0.8, 0.2), of_kinds(0.5, 0.5)),
    (michel2019, "fig5"): (epochs(0.5, 0.95), epochs(1.1, 0.9), epochs(0.93, 0.95)),
    (michel2019, "table4"): tuple(
        frame("batch speedup speedup.low speedup.high", (1, 0.9, 0.8, 1), (64, 1.1, low, high))
        for low, high in ((1.05, 1.2), (0.8, 0.9), (0.9, 1.2))
    ),
    (michel2019, "heads_share"): (attention(0.33), attention(0.1), None),
    (budhraja2020, "claim1"): (chance(0, 0.02), chance(0.1, 0.2), chance(0, 0.1)),
    (budhraja2020, "claim2"): (gained(0.001, -0.001, 0.003), gained(0.1, 0.08, 0.12), gained(0.01, -0.05, 0.07)),
    (budhraja2020, "claim3"): (
        places((0.1, 0.2), (0.1, 0.2)), places((-0.2, -0.1), (0.1, 0.2)), places((-0.1, 0.2), (0.1, 0.2))
    ),
    (budhraja2020, "claim4"): (moved(0.5, 0.05), moved(0.001, 0.3), moved(0.5, 0.3)),
}  # fmt: skip


ANSWERS = (True, False, None)
CASES = [
    pytest.param(
        getattr(module, f"{name}_claim"), table, answer, id=f"{module.__name__.rpartition('.')[2]} {name} {answer}"
    )
    for (module, name), tables in RULES.items()
    for table, answer in zip(tables, ANSWERS, strict=True)
    if table is not None  # a rule over counts always tells
]


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "table", "answer"), CASES)
def test_a_rule_says_yes_no_and_that_it_cannot_be_decided(rule, table, answer):
    verdict = rule(table)
    assert verdict.holds is answer
    assert re.search(r"\d", verdict.why)
    assert "nan" not in verdict.why


@pytest.mark.parametrize("name", ["fig1", "table1", "table2", "table3", "table5", "table6", "fig2"])
def test_where_all_heads_are_worth_little_it_shows_nothing_that_one_is(name):
    table = RULES[michel2019, name][0]
    assert [
        getattr(michel2019, f"{name}_claim")(worth(table, *ends)).holds for ends in ((-0.01, 0.01), (0.02, 0.1))
    ] == [
        None,
        None,
    ]
    assert getattr(michel2019, f"{name}_claim")(worth(table, np.nan, np.nan)).holds is None


def test_an_untrained_models_share_of_relevance_is_no_large_one():
    assert voita2019.fig1a_claim(shares(0.19, 0.189, 0.191, untrained=1.4)).holds is True
    assert voita2019.fig1a_claim(shares(0.19, 0.189, 0.191, untrained=1.6)).holds is False
    assert voita2019.fig1a_claim(shares(0.3, 0.28, 0.32, untrained=np.nan)).holds is None
    assert voita2019.fig1b_claim(ranks(0.1, 0.5, untrained=0.4)).holds is None


@pytest.mark.parametrize(
    ("rule", "table"),
    [
        (voita2019.table2_claim, scratch(-2, -1, steps=4540)),
        (voita2019.table2_claim, scratch(1, 2, steps=np.nan)),
        (budhraja2020.claim1_claim, tuned(chance(0.1, 0.2), epochs=0.17)),
        (budhraja2020.claim2_claim, tuned(gained(0.1, 0.08, 0.12), epochs=np.nan)),
        (budhraja2020.claim3_claim, tuned(places((0.1, 0.2), (0.1, 0.2)), epochs=1)),
        (budhraja2020.claim4_claim, tuned(moved(0.001, 0.3), epochs=1)),
    ],
)
def test_what_was_not_trained_alike_is_not_compared(rule, table):
    verdict = rule(table)
    assert (verdict.holds, verdict.comparable, verdict.answer) == (None, False, "not comparable")


def test_a_difference_in_either_direction_is_one():
    ends = (-0.01, 0.01), (-0.2, -0.1), (-0.1, 0.01)
    assert [Interval(0, *pair).within(0.03) for pair in ends] == [True, False, None]
    assert [provided(True, None), provided(True, True), provided(False, None)] == [None, True, False]
    loses = gained(0.001, -0.001, 0.003)
    loses.loc[1, ["gain", "gain.low", "gain.high"]] = -0.2, -0.21, -0.19
    assert budhraja2020.claim2_claim(loses).holds is None  # no strategy is better than chance, but one is worse


def test_prediction_bound_is_seldom_exceeded():
    draws = np.random.default_rng(0).normal(size=(2000, 6))
    over = [last > prediction_bound(row) for *row, last in draws]
    assert np.mean(over) == pytest.approx(0.01, abs=0.006)
    assert np.isnan(prediction_bound([1.0]))


def test_every_claim_has_its_three_tables():
    claims = {(CLAIMS[paper], name) for paper, names_ in WANTED.items() for name in names_.split()}
    assert claims - set(RULES) == {(voita2019, "fig6")}


def test_formulas_that_are_not_the_papers_fail_its_claim():
    table = artefacts("voita2019")["fig6"](Bench([])).table
    assert voita2019.fig6_claim(table).holds is True
    assert table["ours P(0)"].tolist() == pytest.approx([0.232, 0.039, 0.858], abs=5e-4)
    assert voita2019.fig6_claim(table.assign(**{"ours P(0)": 0.5})).holds is False


def test_the_rules_hold_on_the_papers_own_numbers():
    kinds_ = of_wmt("voita2019-fig9")
    whole_ = {"enc-self": 48, "dec-self": 48, "cross": 48, "of": 144, "heads": 144}
    kinds_ = pd.concat([pd.DataFrame([whole_]), kinds_], ignore_index=True)
    assert voita2019.fig9_claim(kinds_).holds is True
    layers = printed("voita2019-fig10").assign(heads=kinds_["heads"][1:].to_numpy())
    layers = layers.assign(**{f"{name}.of": 16 for name in layers if name.endswith(("er", "le"))})
    assert voita2019.fig10_claim(layers).holds is True
    counts = printed("voita2019-fig8").rename(columns={"paper.none": "none"})
    assert voita2019.fig8_claim(counts).holds is True
    sinks = counts.assign(none=0, sink=counts["none"])
    assert voita2019.fig8_claim(sinks) == voita2019.fig8_claim(counts)
    bleu = printed("voita2019-fig7").assign(cost=lambda rows: 1 - rows["paper"] / 29.6).dropna(subset="paper")
    bleu = worth(bleu.assign(**{"cost.low": bleu["cost"], "cost.high": bleu["cost"]}))
    assert voita2019.fig7_claim(bleu).holds is True
    for name in ("table2", "table5", "table3", "table6"):
        rows = printed(f"michel2019-{name}")
        rows = rows.assign(cost=-rows["paper"], p=np.where(rows["paper.sure"] == 1, 0.001, 0.5), little=np.nan)
        told = getattr(michel2019, f"{name}_claim")(worth(rows.assign(**{"cost.low": np.nan, "cost.high": np.nan})))
        assert told.holds is None  # they are printed without intervals, and p >= 0.01 is no equivalence


# --- finding tables -------------------------------------------------------------------------------------------------


def put(path: Path, columns: dict[str, object], signature: str = "model:m|metric:Loss()|text:t") -> Path:
    table = pd.DataFrame(columns)
    table.attrs["signatures"] = dict.fromkeys(table, signature)
    return save_table(table, path)


def test_the_papers_metric_comes_first_then_the_study_then_its_own_domain(tmp_path):
    study = tmp_path / "captions-en-de"
    one = {"ablation[loss]": [1.0]}
    files = ["ablation-bleu-single-zero", "ablation-loss-single-zero", "captions/ablation-loss-single-zero"]
    files += ["a/ablation-loss-single-zero"]
    for name in (*files, "papers/x/ablation-bleu-single-zero", ".sweeps/ablation-bleu-single-zero", "other"):
        put(study / f"{name}.parquet", one)
    bench = Bench([study])
    assert [table.attrs["file"] for table in bench.tables("single")] == [
        str(study / f"{name}.parquet") for name in files
    ]
    bench.used = []
    assert metric_of(bench.table("single")) == "bleu"
    assert bench.used == [study / "ablation-bleu-single-zero.parquet"]
    for name in files[1:]:
        put(study / "untrained" / f"{name}.parquet", one)
    untrained = [Path(table.attrs["file"]).parent for table in Bench([study / "untrained"]).tables("single")]
    assert untrained == [study / "untrained" / name for name in (".", "captions", "a")]


def test_a_table_is_known_by_its_columns_and_rows(tmp_path):
    put(tmp_path / "a" / "contest.parquet", {"strategy": ["importance", "random"], "tuned": [True, True]})
    columns = {"strategy": ["middle", "ends"], "tuned": [True, True], "value.low": [0.1, 0.2]}
    put(tmp_path / "b" / "contest.parquet", columns)
    put(tmp_path / "heads.parquet", {"confidence": [0.5]})
    bench = Bench([tmp_path])
    assert bench.table("contest").attrs["file"] == str(tmp_path / "a" / "contest.parquet")
    assert bench.table("places").attrs["file"] == str(tmp_path / "b" / "contest.parquet")
    with pytest.raises(Missing, match="^no table of scores with confidence and relevance in "):
        bench.table("relevance")


@pytest.mark.parametrize(("corpus", "known"), [("pud", True), ("ewt", False), (None, False)])
def test_scores_without_resamples_are_as_stable_as_the_roles_beside_them(tmp_path, corpus, known):
    """The scores of this repository have no resamples; roles of another corpus say nothing about them."""
    minilm = ROOT / "figures" / "minilm"
    shutil.copy(minilm / "pud" / "heads.parquet", tmp_path)
    if corpus:
        shutil.copy(minilm / corpus / "roles.parquet", tmp_path)
    found = artefacts("voita2019")["fig1c"](Bench([tmp_path]))
    counts = found.table.set_index("function")
    assert counts["heads"].tolist() == [2, 6, 0]
    assert found.verdict.holds is (False if known else None)
    sure, possible = counts.loc["syntactic", ["sure", "possible"]]
    if known:
        stable = load_table(tmp_path / "roles.parquet").filter(regex=r"^syntactic.*\.stability$").max(axis=1)
        assert (sure, possible) == ((stable >= 0.95).sum(), (stable >= 0.05).sum()) == (5, 8)
    else:
        assert np.isnan([sure, possible]).all()


def test_less_of_a_loss_is_a_gain():
    differences = np.array([[1, 0.5, 2]])
    assert gains(differences, "loss").tolist() == [[-1, -2, -0.5]]
    assert gains(differences, "bleu").tolist() == [[1, 0.5, 2]]


def test_a_model_without_an_encoder():
    table = heads.table({"a": [1.0]}, heads.index({("dec-self", 0): 1}), "s")
    with pytest.raises(Missing, match=whole("the paper shows enc-self heads; the table has dec-self")):
        of_kind(table)


def test_material_is_read_from_one_folder(tmp_path):
    for name in ("train", "dev", "test", "other"):
        for side in ("source", "target"):
            (tmp_path / f"{name}.{side}.txt").write_text(f"{name} {side}\n" * 3)
    found = material(tmp_path, limit=2)
    assert [len(found.train), found.other[0].text, found.other[0].target.text] == [2, "other source", "other target"]
    assert found.trees is None
    (tmp_path / "trees.text.conllu").write_text("")
    (tmp_path / "trees.more.conllu").write_text("")
    message = "expected trees.source.* and trees.target.* in {}; got trees.more.conllu, trees.text.conllu"
    with pytest.raises(ValueError, match=whole(message.format(tmp_path))):
        material(tmp_path)
    message = (
        f"no train in {tmp_path / 'x'}; a folder of data has train, dev and test: .tsv with labels, or .source.txt and "
        ".target.txt; and if you have them other, trees and other_trees (.conllu), sentences"
    )
    with pytest.raises(FileNotFoundError, match=whole(message)):
        material(tmp_path / "x")


# --- from saved tables ----------------------------------------------------------------------------------------------


def pruned(folder: Path) -> Path:
    """A study with what became of an encoder of 48 heads."""
    columns = {"heads": [144, 120, 106], "of": 144, "enc-self": [48, 24, 10], "dec-self": 48, "cross": 48}
    columns |= {"value": [30.0, 30.1, 29.9], "low": [29, 29.1, 28.9], "high": [31, 31.1, 30.9]}
    columns |= {"change": [0, 0.1, -0.1], "change.low": [0, -0.1, -0.3], "change.high": [0, 0.3, 0.1]}
    put(folder / "sizes-l0-enc-self.parquet", columns, "model:m|metric:BLEU(beams=1)")
    curve_ = {"order": "enc-self by importance", "closed": [0, 48], "share": [0, 1], "value": [30.0, 20.0]}
    curve_ |= {"low": [29, 19], "high": [31, 21], "change": [0, -10], "change.low": [0, -11], "change.high": [0, -9]}
    put(folder / "curves-bleu-each.parquet", curve_, "model:m|metric:BLEU(beams=1)")
    return folder


def test_an_artefact_is_written_with_its_claim_and_what_it_is_from(tmp_path):
    study = pruned(tmp_path / "mine")
    found = reproduce(Bench([study]), study, "voita2019", "fig7", command="headroles reproduce")
    assert found.to_dict("records") == [
        {
            "paper": "voita2019", "artefact": "fig7", "made": True, "holds": True, "answer": "yes",
            "why": "with 10 of 48 heads left 0.3 [-0.3, 1.0] % of the control's score is lost, 33 % without any and "
            "without training",
            "controls": "untrained: not asked; shuffled: not asked",
        }
    ]  # fmt: skip
    place = study / "papers" / "voita2019"
    table = load_table(place / "fig7.parquet").set_index("heads")
    assert table.loc[48, ["value", "paper", "paper.subtitles"]].tolist() == [30.0, 29.60, 32.40]
    assert table.loc[10, ["change", "paper"]].tolist() == [-0.1, 29.45]
    assert heads.provenance(table, "value") == "model:m|metric:BLEU(beams=1)"
    assert heads.provenance(table, "paper").startswith("Voita et al. 2019, Fig. 7")
    facts = json.loads((place / "fig7.json").read_text())
    assert facts["holds"] is True
    assert facts["answer"] == "yes"
    assert facts["controls"]["untrained"] == {
        "yes": 0, "of": 0, "why": "no tables of an untrained model", "passes": False
    }  # fmt: skip
    assert facts["tables"] == ["mine/sizes-l0-enc-self.parquet", "mine/curves-bleu-each.parquet"]
    assert facts["command"] == "headroles reproduce"
    assert (place / "fig7.png").read_bytes().startswith(b"\x89PNG")
    (study / "sizes-l0-enc-self.parquet").unlink()
    again = reproduce(Bench([study]), study, "voita2019", "fig7")
    assert not again["made"].any()
    assert list(place.iterdir()) == []  # nothing is left of what can no longer be made


@pytest.mark.slow
def test_drawing_again_needs_no_torch(tmp_path):
    study = pruned(tmp_path / "mine")
    code = (
        "import sys\nclass Blocked:\n def find_spec(self, name, *_):\n"
        "  if name in ('torch', 'transformers'): raise ImportError\n"
        "sys.meta_path.insert(0, Blocked())\n"
        f"sys.argv = ['headroles', 'reproduce', 'voita2019', 'fig7', '--from', {str(study)!r}]\n"
        "from headroles.cli.main import main\nmain()"
    )
    environment = os.environ | {"COLUMNS": "200", "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fig7" in done.stdout
    assert f"written: {study / 'papers'}, 1 of 1 artefacts" in done.stdout


# --- negative controls ----------------------------------------------------------------------------------------------


def of_heads(**columns: object) -> pd.DataFrame:
    """A table of a translation model, six layers of eight heads of each kind, from functions of a head."""
    index = heads.index({(kind, layer): 8 for kind in ("enc-self", "dec-self", "cross") for layer in range(6)})
    return pd.DataFrame({name: [float(rule(*head)) for head in index] for name, rule in columns.items()}, index)


def effects(noise: int) -> pd.DataFrame:
    """Effects of heads that are alike on all corpora, but for a little noise."""
    random = np.random.default_rng(noise)
    found = of_heads(**{"ablation[loss]": lambda _, layer, head: layer + head + random.normal(scale=0.5)})
    return found.assign(**{"ablation[loss].p": 0.5, "ablation[loss].holm": 1.0})


def put_heads(path: Path, table: pd.DataFrame, text: str = "t") -> None:
    signature = f"model:m|corpus:{text}|text:{text}|metric:Loss()|intact:2.0"
    table.attrs["signatures"] = dict.fromkeys(table, signature)
    save_table(table, path)


@pytest.fixture
def telling(tmp_path: Path) -> Bench:
    """A study in which the kinds, the layers and the single heads that matter are plain to see."""
    for number, name in enumerate(("ablation", "other")):
        put_heads(tmp_path / name / "ablation-loss-single-zero.parquet", effects(number), name)
    columns = {"order": np.repeat(["importance", "random 0", "random 1"], 3), "closed": [0, 58, 144] * 3}
    columns |= {"share": [0, 0.4, 1] * 3, "value": [2, 2.01, 5, *[2, 3, 5] * 2], "low": 2, "high": 2}
    columns |= {"change": [0, 0.01, 3, *[0, 1, 3] * 2], "change.low": [0, 0, 2.9, *[0, 0.9, 2.9] * 2]}
    put(tmp_path / "curves-loss.parquet", columns | {"change.high": [0, 0.02, 3.1, *[0, 1.1, 3.1] * 2]})
    stays = {
        "enc-self": lambda layer, head: layer == 5 and head < 3,
        "dec-self": lambda layer, head: layer < 2 and head < 7,
        "cross": lambda layer, head: layer > 3 or (layer == 3 and head < 3),
    }
    columns = {f"survival[l0 {size}]": lambda kind, *head: stays[kind](*head) for size in (36,)}
    columns["survival[l0 36].open"] = columns["survival[l0 36]"]
    put_heads(tmp_path / "survival-l0.parquet", of_heads(**columns))
    counts = {"heads": [144, 36], "of": 144, "enc-self": [48, 3], "dec-self": [48, 14], "cross": [48, 19]}
    put(tmp_path / "sizes-l0.parquet", counts | {"value": 2.0, "low": 2.0, "high": 2.0})
    return Bench([tmp_path])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["voita2019 fig9", "voita2019 fig10", "michel2019 fig2"])
def test_a_claim_about_which_heads_holds_of_no_shuffled_heads(telling, name):
    paper, _, artefact = name.partition(" ")
    make = artefacts(paper)[artefact]
    assert make(telling).verdict.holds is True
    told = controls(make(telling), make, telling)
    assert (told["shuffled"].of, told["shuffled"].passes) == (20, False)
    assert decided(make(telling).verdict, told) == make(telling).verdict


@pytest.mark.slow
def test_a_rule_that_an_untrained_model_passes_is_none(telling):
    make = artefacts("michel2019")["fig2"]
    telling.untrained = telling
    told = controls(make(telling), make, telling)
    assert told["untrained"].passes
    verdict = decided(make(telling).verdict, told)
    assert verdict.holds is None
    assert verdict.why.endswith("; but the rule holds of its negative control too (untrained: yes in 1 of 1)")
    telling.untrained = Bench([telling.folders[0] / "ablation"])  # one corpus, no curve
    found = controls(make(telling), make, telling)["untrained"]
    assert (found.of, found.why.partition(",")[0]) == (0, "Fig. 2 compares two corpora")


def test_chance_may_say_yes_once_in_twenty():
    assert [Control(yes, 20, "").passes for yes in (0, 1, 2)] == [False, False, True]
    assert [Control(0, 0, "").passes, Control(1, 1, "").passes] == [False, True]


def collected() -> pd.DataFrame:
    """The committed answers on negative controls."""
    return pd.read_csv(ROOT / "figures" / "quality" / "negative-controls.csv", keep_default_na=False)


ASKED = {  # which rules of real studies were asked of an untrained model: all that need no pruning and no training
    "multi30k-en-de": {
        "michel2019": "fig1 fig2 fig3 fig4 fig6 table1 table2 table5",
        "voita2019": "fig1a fig1b fig1c fig2 fig4 fig5 rare table1",
    },
    "minilm-sst2": {
        "michel2019": "fig1 fig3 fig6 table1 table3 table6",
        "voita2019": "fig1a fig1b fig1c fig2 fig4 rare table1",
    },
    "paper-size": {"michel2019": "fig1 table1", "voita2019": "fig1a fig1b fig1c fig4 rare table1"},
}
ONCE = [(study, paper, name) for study, rules in ASKED.items() for paper in rules for name in rules[paper].split()]


def test_no_rule_holds_of_the_controls_that_were_run():
    table = collected()
    toys_ = table[table["study"].isin(["translation", "classifier"])]
    assert set(toys_["paper"] + " " + toys_["artefact"]) == {
        f"{paper} {name}" for paper, names_ in WANTED.items() for name in names_.split()
    }
    asked = toys_[toys_["of"] > 0].groupby(["paper", "artefact"])["of"].sum()
    unasked = {("voita2019", "fig6"), ("michel2019", "heads_share")}  # a formula, a count
    assert set(zip(toys_["paper"], toys_["artefact"], strict=True)) - set(asked.index) == unasked
    assert not toys_["passes"].any()
    assert not (table["passes"] & (table["answer"] == "yes")).any()


def test_rules_of_real_studies_are_asked_of_an_untrained_model():
    table = collected()
    real = table[~table["study"].isin(["translation", "classifier"]) & (table["control"] == "untrained")]
    keys = ["study", "paper", "artefact"]
    assert set(real[real["of"] == 1][keys].itertuples(index=False, name=None)) == set(ONCE)
    assert not real["passes"].any()
    trained = set()
    for row in real[real["of"] == 0].itertuples():
        exempt = getattr(CLAIMS[row.paper], f"{row.artefact}_claim").exempt
        assert row.why == (exempt or UNREPEATED)
        trained |= set() if exempt else {f"{row.paper} {row.artefact}"}
    assert trained == {
        *("budhraja2020 claim1", "budhraja2020 claim2", "budhraja2020 claim3", "budhraja2020 claim4"),
        *("michel2019 fig5", "voita2019 fig7", "voita2019 fig8", "voita2019 fig9", "voita2019 fig10"),
        "voita2019 table2",
    }


def test_the_collected_controls_are_those_of_the_studies():
    table = collected()
    for study in ASKED:
        rows = table[table["study"] == study].set_index(["paper", "artefact", "control"])
        files = sorted((ROOT / "figures" / study).glob("papers/*/*.json"))
        told = {path: json.loads(path.read_text()) for path in files}
        assert len(rows) == 2 * len(files)
        for facts in told.values():
            for name, control in facts["controls"].items():
                row = rows.loc[(facts["paper"], facts["artefact"], name)]
                assert row[["yes", "of", "why", "passes"]].to_dict() == control
                assert row["answer"] == facts["answer"]


@pytest.mark.parametrize(("study", "paper", "name"), ONCE)
def test_committed_tables_of_untrained_models_give_the_committed_answers(study, paper, name):
    folders = [ROOT / "figures" / study, *([ROOT / "figures" / "minilm"] if study == "minilm-sst2" else [])]
    bench = Bench([folder / "untrained" for folder in folders], shared=Bench(folders))
    verdict = artefacts(paper)[name](bench).verdict
    facts = json.loads((ROOT / "figures" / study / "papers" / paper / f"{name}.json").read_text())
    assert facts["controls"]["untrained"]["why"] == f"{verdict.answer}: {verdict.why}"
    assert verdict.holds is not True
    weights = {
        signature.partition("|weights:")[2].partition("|")[0]
        for path in bench.used
        for signature in load_table(path).attrs["signatures"].values()
        if "untrained" in path.parts
    }
    trained = {signature.partition("|weights:")[2].partition("|")[0] for signature in facts["signatures"]}
    assert weights - {""}
    assert not weights & trained - {""}


def test_what_takes_training_is_said_not_to_be_repeated(tmp_path):
    for path in (tmp_path, tmp_path / "untrained"):
        put(path / "ablation-loss-single-zero.parquet", {"ablation[loss]": [1.0]})
    bench = Bench([tmp_path / "untrained"], shared=Bench([tmp_path]))
    with pytest.raises(Missing, match=whole("pruning and training are not repeated for an untrained model")):
        bench.table("sizes")
    with pytest.raises(Missing, match="^no table of a translation model pruned to several sizes in "):
        bench.shared.table("sizes")
    assert bench.table("single")["ablation[loss]"].tolist() == [1.0]


def test_what_all_heads_are_worth_is_measured_as_their_effects_are(tmp_path):
    for metric, last in (("bleu", 10.0), ("loss", 5.0)):
        columns = {"order": "importance", "closed": [0, 4], "share": [0, 1], "value": [20.0, last], "change": [0, -9]}
        columns |= {"low": 0, "high": 0, "change.low": [0, -9], "change.high": [0, -9]}
        put(tmp_path / f"curves-{metric}.parquet", columns)
    assert [stake(Bench([tmp_path]), metric)["all"] for metric in ("loss", "bleu", "chrf")] == [-9, 0.45, 0.45]


def test_of_a_score_of_zero_nothing_can_be_lost():
    table = curve(0, 0.02).assign(**{name: np.nan for name in ("cost", "cost.low", "cost.high")})
    assert michel2019.fig3_claim(table) == (
        None,
        "the score of the whole model is 0, of which nothing can be lost",
        True,
    )


# --- toys -----------------------------------------------------------------------------------------------------------

DRAWN = [
    "fig1a",
    "fig1b",
    "fig1c",
    "fig2",
    "fig3",
    "fig4",
    "fig5",
    "fig6",
    "fig7",
    "fig8",
    "fig9",
    "fig10",
    "gates",
    "fig1",
    "claim1",
    "claim3",
    "claim4",
]


class Made(NamedTuple):
    """An artefact of a toy: the toy's name, and all but its files."""

    toy: str
    artefact: Reproduced


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Workflow]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relevance, "COUNT", 2)  # untrained models
        toys = workflows(tmp_path_factory.mktemp("toys"))
    return {name: replace(toy, keep=(0.2,)) for name, toy in toys.items()}  # trainings of one size


@pytest.fixture(scope="module")
def made(toys: dict[str, Workflow]) -> dict[tuple[str, str], Made]:
    """All artefacts of the toys, of tables computed by need: neither drawn nor asked of controls, as committed ones."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relevance, "COUNT", 2)
        for toy, workflow in toys.items():
            for paper in TOYS[toy]:
                for name, make in artefacts(paper).items():
                    if (paper, name) not in found:
                        with suppress(Missing):
                            found[paper, name] = Made(toy, make(Bench([workflow.folder], workflow)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "name"), [(paper, name) for paper in PAPERS for name in WANTED[paper].split()])
def test_every_artefact_is_made_of_toys(made, paper, name):
    artefact = made[paper, name].artefact
    assert len(artefact.table)
    assert artefact.verdict.holds in (True, False, None)
    assert re.search(r"\d|no task", artefact.verdict.why)
    assert "nan" not in artefact.verdict.why
    assert (artefact.draw is not None) == (name in DRAWN or (paper == "michel2019" and name.startswith("fig")))


@pytest.mark.slow
def test_toys_artefacts_show_the_tables_they_are_from(toys, made):
    study = toys["translation"].folder
    scores = load_table(study / "relevance" / "heads.parquet").loc["enc-self", "relevance[cp].size"]
    assert made["voita2019", "fig1a"].artefact.table["share"].tolist() == scores.groupby("layer").max().tolist()
    sizes_ = load_table(study / "pruning" / "sizes-l0.parquet")
    ours = made["voita2019", "fig9"].artefact.table.dropna(subset="enc-self")
    assert ours[["heads", "cross"]].to_numpy().tolist() == sizes_[["heads", "cross"]].to_numpy().tolist()
    layers = (
        made["voita2019", "fig10"].artefact.table.dropna(subset="cross lower").sort_values("heads", ascending=False)
    )
    assert layers.filter(regex="^cross [a-z]+$").sum(axis=1).tolist() == sizes_["cross"].tolist()[1:]
    table = made["michel2019", "fig1"].artefact.table
    effects = load_table(study / "ablation" / "ablation-loss-single-zero.parquet")
    assert table["change"].tolist() == effects.loc["enc-self", "ablation[loss]"].tolist()
    intact = float(
        dict(part.split(":", 1) for part in heads.provenance(effects, "ablation[loss]").split("|"))["intact"]
    )
    assert (table["score"] - table["change"]).to_numpy() == pytest.approx(intact)
    table = made["michel2019", "table1"].artefact.table
    assert table["significant"].sum() == (effects.loc["enc-self", "ablation[loss].p"] < 0.01).sum()
    assert made["michel2019", "fig3"].artefact.table["paired"].all()
    contest = load_table(toys["classifier"].folder / "contest" / "contest.parquet")
    contest = contest.set_index(["strategy", "heads", "tuned"])
    for row in made["budhraja2020", "claim2"].artefact.table.itertuples():
        assert row.gain == contest.loc[(row.strategy, row.heads, True), "gain"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["claim1", "claim2", "claim3", "claim4"])
def test_no_claim_about_fine_tuning_holds_of_an_untrained_toy_however_long_it_were(toys, made, name):  # noqa: ARG001
    workflow = toys["classifier"].untrained(trains=True)
    untrained = Bench([workflow.folder], workflow, shared=Bench([toys["classifier"].folder]))
    table = artefacts("budhraja2020")[name](untrained).table
    verdict = getattr(budhraja2020, f"{name}_claim")(table.assign(epochs=3.0, steps=100))
    assert verdict.answer in ("no", "cannot be said")


@pytest.mark.slow
def test_what_a_toy_lacks_is_made_of_the_other(made):
    assert made["michel2019", "table3"].toy == "classifier"
    assert made["michel2019", "table2"].toy == "translation"


@pytest.mark.slow
def test_the_command_makes_an_artefact_of_each_toy_that_has_it_and_asks_its_controls(toys, made):  # noqa: ARG001
    folder = toys["classifier"].folder.parent
    done = run("reproduce", "--tiny", "michel2019", "fig1", "--study", folder, figures=True)
    assert (done.code, "a toy translator, michel2019" in done.out) == (0, True), done.err
    for toy in toys:
        place = folder / toy / "papers" / "michel2019"
        facts = json.loads((place / "fig1.json").read_text())
        assert {path.name for path in place.iterdir()} == {"fig1.json", "fig1.parquet", "fig1.png"}
        assert facts["signatures"]
        assert {name: (control["of"], control["passes"]) for name, control in facts["controls"].items()} == {
            "untrained": (1, False),
            "shuffled": (0, False),
        }
        assert all(len(control["why"]) >= 5 for control in facts["controls"].values())


@pytest.mark.slow
def test_a_model_and_a_folder_of_data_make_what_an_artefact_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relevance, "COUNT", 2)  # untrained models
    hr.save(zoo.tiny("marian"), tokens_of("marian"), tmp_path / "model")
    (tmp_path / "data").mkdir()
    for part in ("train", "dev", "test"):
        for name, side in (("source", corpus(12)), ("target", [one.target for one in corpus(12)])):
            (tmp_path / "data" / f"{part}.{name}.txt").write_text("".join(f"{one.text}\n" for one in side))
    command = ["reproduce", "voita2019", "fig1b", "--data", tmp_path / "data", "--study", tmp_path / "study"]
    found = run(*command, "--model", tmp_path / "model")
    assert (found.code, "fig1b" in found.out) == (0, True), found.err
    table = load_table(tmp_path / "study" / "papers" / "voita2019" / "fig1b.parquet")
    scored = load_table(tmp_path / "study" / "relevance" / "heads.parquet")
    confidence = scored.loc["enc-self", "confidence"]
    assert table["ours"].tolist()[:2] == [confidence.max(), confidence.min()]


def test_a_model_wants_data_and_nothing_beside_it() -> None:
    wanted = "expected one of --from STUDY, --model MODEL with --data FOLDER, or --tiny"
    what = "headroles: nothing to reproduce the papers from: got"
    cases = {("--model", "x"): "--model", ("--tiny", "--from", "y"): "--from and --tiny", (): "no study and no model"}
    for given, got in cases.items():
        told = run("reproduce", *given)
        assert (told.code, told.err) == (2, f"{what} {got}; {wanted}\n")
