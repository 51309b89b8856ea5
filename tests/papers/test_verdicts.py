"""Verdicts, intervals, and the papers' own numbers."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest

from headroles.papers.reproduction import PAPERS, artefacts
from headroles.papers.verdicts import (
    Interval,
    Missing,
    all_hold,
    any_holds,
    combine_votes,
    gains,
    most_hold,
    paper_numbers,
    prediction_bound,
    rows_of_kind,
    share,
    unless_unsure,
    with_paper,
    wmt_numbers,
)
from headroles.tables import frame as heads

matplotlib.use("agg")


ROOT = Path(__file__).resolve().parents[2]


# --- three answers ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_interval_with_the_bound_inside_is_undecided():
    ends = (1.1, 2), (0, 0.9), (0.5, 2), (np.nan, 2)
    assert [Interval(1, *pair).above(1) for pair in ends] == [True, False, None, None]
    assert [Interval(1, *pair).below(1) for pair in ends] == [False, True, None, None]


@pytest.mark.parametrize(
    ("parts", "every", "some", "votes", "most"),
    [
        ([True, True], True, True, True, True),
        ([True, None], None, True, True, None),
        ([False, None], False, None, False, False),
        ([True, False], False, True, None, False),
        ([False, False], False, False, False, False),
        ([True, True, False], False, True, None, True),
        ([None], None, None, None, None),
    ],
)
def test_answers_are_joined(parts, every, some, votes, most):
    assert (all_hold(parts), any_holds(parts), combine_votes(parts), most_hold(parts)) == (every, some, votes, most)


def test_without_parts_an_answer_is_undecided():
    assert [all_hold([]), any_holds([]), combine_votes([])] == [None, None, None]


def test_interval_minus_is_as_wide_as_both():
    difference = Interval(5, 4, 7).minus(Interval(3, 2, 5))
    assert difference == pytest.approx((2, 2 - np.hypot(1, 2), 2 + np.hypot(2, 1)))


def test_interval_widened_grows_with_the_comparisons():
    assert Interval(1, 0, 3).widened(1) == pytest.approx((1, 0, 3))
    value, low, high = Interval(1, 0, 3).widened(8)
    assert (value, 1 - low, high - 1) == pytest.approx((1, 1.395, 2.790), abs=0.002)  # z of .025 / 8 over that of .025


def test_interval_of_a_row_scaled_and_of_a_share():
    row = {"a": 2, "a.low": 1, "a.high": 4}
    assert Interval.from_row(row, "a").scaled(-10) == (-20, -40, -10)
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
    table = paper_numbers(name)
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
    thirds, kinds = paper_numbers("voita2019-fig10"), wmt_numbers("voita2019-fig9")
    for kind in ("dec-self", "cross"):
        assert thirds.filter(like=kind).sum(axis=1).tolist() == kinds[kind].tolist()
    assert (thirds.drop(columns="of") <= 16).all(axis=None)
    assert kinds["heads"].is_monotonic_decreasing


def test_the_functions_of_fig8_are_those_of_fig1c_and_add_up():
    table = paper_numbers("voita2019-fig8").set_index("heads")
    assert table.filter(like="paper.").sum(axis=1).tolist() == table.index.tolist()
    for row in paper_numbers("voita2019-fig1c").itertuples():
        assert table.loc[48, f"paper.{row.function}"] == row.paper


def test_the_sizes_of_table2_are_points_of_fig9():
    kinds = ["corpus", "enc-self", "dec-self", "cross"]
    rows = paper_numbers("voita2019-table2").query("scratch == scratch")
    assert len(rows.merge(paper_numbers("voita2019-fig9")[kinds], on=kinds)) == len(rows) == 7


def test_michels_tables_have_the_significant_layers_the_text_counts():
    assert paper_numbers("michel2019-table5")["paper.sure"].sum() == 9  # "half of 18 layers" are not
    assert paper_numbers("michel2019-table1")["paper"].gt(0).sum() == 4  # of 8
    assert not paper_numbers("michel2019-table3")["paper.sure"].any()
    assert not paper_numbers("michel2019-table6")["paper.sure"].any()


def test_numbers_stand_beside_ours():
    found = with_paper(pd.DataFrame({"layer": [0, 1], "share": [0.3, 0.2]}), "voita2019-fig1a", "layer")
    assert found["paper"][1] == 0.20
    assert np.isnan(found["paper"][0])
    assert found.attrs["source"].startswith("Voita et al. 2019, Fig. 1a")


# --- the rules ------------------------------------------------------------------------------------------------------


def test_a_difference_in_either_direction_is_one():
    ends = (-0.01, 0.01), (-0.2, -0.1), (-0.1, 0.01)
    assert [Interval(0, *pair).within(0.03) for pair in ends] == [True, False, None]
    assert [unless_unsure(True, None), unless_unsure(True, True), unless_unsure(False, None)] == [None, True, False]


def test_prediction_bound_is_seldom_exceeded():
    draws = np.random.default_rng(0).normal(size=(2000, 6))
    over = [last > prediction_bound(row) for *row, last in draws]
    assert np.mean(over) == pytest.approx(0.01, abs=0.006)
    assert np.isnan(prediction_bound([1.0]))


def test_less_of_a_loss_is_a_gain():
    differences = np.array([[1, 0.5, 2]])
    assert gains(differences, "loss").tolist() == [[-1, -2, -0.5]]
    assert gains(differences, "bleu").tolist() == [[1, 0.5, 2]]


def test_a_model_without_an_encoder():
    table = heads.table({"a": [1.0]}, heads.index({("dec-self", 0): 1}), "s")
    with pytest.raises(Missing, match="enc-self heads; the table has dec-self$"):
        rows_of_kind(table)
