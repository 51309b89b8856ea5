"""Figures of relations show the table."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers.relations import effects, index, told

import headroles as hr
from headroles import plots
from headroles.analysis.role_rules import VERDICTS
from headroles.tables import frame


def test_drift_is_drawn_as_it_is_counted():
    before = told(index(layers=1, many=6), rarity=[1, 1, 1, 0, 0, 0])
    after = told(frame.index({("enc-self", 0): [0, 1, 3, 5]}), rarity=[1, 0, 1, 0])
    (ax,) = hr.plots.role_changes(hr.role_changes(before, {6: before, 4: after}))
    heights = {bar.get_label(): [part.get_height() for part in bar] for bar in ax.containers}
    assert heights == {"kept": [3, 1], "new": [0, 1], "lost": [0, -1], "pruned": [0, -1], "_not measured": [0, 0]}
    assert [label.get_text() for label in ax.get_xticklabels()] == ["6", "4"]
    assert all(tick == int(tick) for tick in ax.get_yticks())  # heads are whole
    assert ax.get_ylim()[1] > 3  # the tallest bar ends below the title


def role_tests():
    """A table of role tests: a head that is its role, one that does something else, and both together."""
    rows = [("enc-self:0:0", "a"), ("enc-self:0:1", "b"), ("all 2", "all")]
    labels = pd.MultiIndex.from_tuples(rows, names=["heads", "role"])
    columns = {}
    costs = {"removed": [3.0, 2, 4], "removed_local": [1, 1.5, 2.5], "uniform": [2, 1, 3], "wrong": [4, 3, 5]}
    costs |= {"placebo_removed": [0.1, 0.2, 0.3], "placebo_pattern": [0.4, 0.3, 0.2]}
    for name, values in {**costs, "role_pattern": [0, 2.5, 2]}.items():
        columns[name] = values
        columns |= {f"{name}.low": np.array(values) - 0.5, f"{name}.high": np.array(values) + 0.5}
    verdicts = [VERDICTS[0], VERDICTS[2], f"{VERDICTS[1]}; 1 of 2 members pass"]
    return frame.signed(pd.DataFrame(columns, index=labels).assign(verdict=verdicts), "metric:Loss()")


@pytest.mark.parametrize(("sets", "heads"), [(False, ["a  enc-self:0:0", "b  enc-self:0:1"]), (True, ["all  all 2"])])
def test_costs_of_roles_are_those_of_the_table(sets, heads):
    table = role_tests()
    ax = plots.role_costs(table, sets=sets)
    assert [text.get_text() for text in ax.get_yticklabels()] == heads
    rows = table.iloc[2:] if sets else table.iloc[:2]
    names = ["removed", "removed_local", "uniform", "wrong", "placebo_removed", "placebo_pattern", "role_pattern"]
    lines = [line for line in ax.lines if line.get_marker() in "sv^DXPo"]
    assert [line.get_xdata()[0] for line in lines] == [row[name] for _, row in rows.iterrows() for name in names]
    ends = [list(line.get_xdata()) for line in ax.lines if line.get_marker() == "None" and len(line.get_ydata()) == 2]
    expected = [[row[f"{name}.low"], row[f"{name}.high"]] for _, row in rows.iterrows() for name in names]
    assert [pair for pair in ends if pair in expected] == expected
    own = [line for line in lines if line.get_marker() == "o"]
    passes = rows["verdict"].str.startswith("its role is")
    assert [line.get_markerfacecolor() != "white" for line in own] == passes.tolist()
    plt.close(ax.figure)


def test_a_mark_is_filled_after_holm_and_a_row_says_what_matters():
    where = index(layers=3, many=8)
    roles = told(where, rarity=[1, 1, 1, 0, 0, 0, 0, 0] * 3)
    table = hr.relate(roles, effects(where, loss=range(24), bleu=range(24)), n_permutations=99)
    table[["p", "holm"]] = [[0.01, 0.04], [0.03, 0.06]]
    ax = hr.plots.relation(table)
    marks = [mark for mark in ax.lines if mark.get_marker() == "o"]
    assert [mark.get_markerfacecolor() == "white" for mark in marks] == [False, True]
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend[-2:] == ["p < 0.05 within layers, after Holm's correction", "p ≥ 0.05, or too few heads"]
    rows = [label.get_text() for label in ax.get_yticklabels()]
    assert rows == [f"effect on {metric}\nas a cost: above 0 is harm" for metric in ("loss", "BLEU")]
    loss, bleu = (mark.get_xdata()[0] for mark in marks)
    assert (loss, bleu) == pytest.approx((table["auc"].iloc[0], 1 - table["auc"].iloc[1]))


def test_effects_of_a_head_a_group_and_a_layer_are_rows_of_their_own():
    where = index(layers=3, many=8)
    columns = {f"ablation[loss{unit}]": range(24) for unit in ("", " group", " layer", " all_but_one")}
    outcomes = frame.table(columns, where, "model:m|metric:loss")
    table = hr.relate(told(where, rarity=[1, 1, 1, 0, 0, 0, 0, 0] * 3), outcomes, n_permutations=99)
    ax = hr.plots.relation(table)
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "effect on loss\nas a cost: above 0 is harm",
        "effect on loss of its group\nas a cost: above 0 is harm",
        "effect on loss of its layer\nas a cost: above 0 is harm",
        "effect on loss, kept alone\nsmaller values matter more",
    ]
    assert len({mark.get_ydata()[0] for mark in ax.lines if mark.get_marker() == "o"}) == 4
