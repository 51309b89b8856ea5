"""Figures of pruning show exactly their tables: the artists are asked, not the pixels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.drawn import marks
from helpers.messages import whole

from headroles import plots
from headroles.plots.sparsity import densities
from headroles.tables import frame

pytestmark = pytest.mark.usefixtures("nothing_shown")
SIZES = pd.DataFrame(
    {
        "heads": [12, 9, 4],
        "of": 12,
        "enc-self": [6, 4, 1],
        "cross": [6, 5, 3],
        "value": [30.0, 29.5, 20.0],
        "low": [29.0, 28.0, 18.0],
        "high": [31.0, 31.5, 23.0],
    }
)


def test_sizes_stand_where_they_are_with_their_intervals_and_the_control_across():
    ax = plots.survival(SIZES, label="BLEU")
    bars = ax.containers[0]
    assert marks(bars.lines[0]) == [(0, 30.0), (3, 29.5), (8, 20.0)]
    ends = [segment[:, 1].tolist() for segment in bars.lines[2][0].get_segments()]
    assert ends == [[29.0, 31.0], [28.0, 31.5], [18.0, 23.0]]
    assert [line.get_ydata()[0] for line in ax.lines if line.get_linestyle() == ":"] == [30.0]
    assert ax.get_ylabel() == "BLEU"
    top = ax.child_axes[0]
    ax.figure.canvas.draw()
    assert sorted(top.get_xlim()) == pytest.approx(sorted(12 - x for x in ax.get_xlim()))


def test_several_tables_are_several_lines():
    ax = plots.survival({"one": SIZES, "two": SIZES.assign(value=SIZES["value"] - 1)})
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "two"]
    assert len(ax.containers) == 2
    assert ax.get_legend().get_window_extent().x0 >= ax.get_window_extent().x1  # not over the data


def test_each_kind_is_a_line():
    ax = plots.by_kind(SIZES)
    assert [marks(line) for line in ax.lines] == [[(0, 6), (3, 4), (8, 1)], [(0, 6), (3, 5), (8, 3)]]
    assert [line.get_label() for line in ax.lines] == ["encoder self-attention", "cross-attention"]


FUNCTIONS = pd.DataFrame(
    [("enc-self", "none", 3, 6), ("enc-self", "positional", 2, 6), ("enc-self", "several", 1, 6)]
    + [("enc-self", "positional", 1, 2), ("enc-self", "none", 1, 2), ("cross", "none", 6, 6)],
    columns=["kind", "function", "count", "heads"],
)


def test_functions_are_piled_up_to_the_number_of_heads():
    ax = plots.functions(FUNCTIONS)
    boxes = {bars.get_label(): [(bar.get_y(), bar.get_height()) for bar in bars] for bars in ax.containers}
    assert boxes == {"no role": [(0, 3), (0, 1)], "positional": [(3, 2), (1, 1)], "several": [(5, 1), (2, 0)]}
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["6", "2"]
    assert sorted(text.get_text() for text in ax.texts if text.get_text()) == ["1", "1", "1", "2", "3"]
    with pytest.raises(ValueError, match=whole("no heads of kind 'dec-self' in the table: got enc-self, cross")):
        plots.functions(FUNCTIONS, kind="dec-self")


def test_no_function_is_left_out():
    ax = plots.functions(FUNCTIONS.replace({"function": {"several": "induction"}}))
    assert [bars.get_label() for bars in ax.containers] == ["no role", "positional", "induction"]


@pytest.mark.slow
def test_sizes_of_one_strategy_are_numbers_and_gates_of_many_heads_fit_a_page():
    index = frame.index({("enc-self", 0): 2})
    ax = plots.by_layer(frame.table({f"survival[l0 {size}]": [1, 0] for size in (72, 36)}, index, "made up"))
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["72", "36"]
    assert ax.get_xlabel() == "prunable heads left, by L0"
    rows = [("enc-self", layer, head, step, 0.5) for step in (0, 1) for layer in range(24) for head in range(16)]
    many = plots.gates(pd.DataFrame(rows, columns=[*frame.LEVELS, "step", "open"])).figure
    assert many.get_size_inches()[1] < 25


def test_layers_show_how_many_heads_they_have_left():
    index = frame.index({("enc-self", 0): 3, ("enc-self", 1): 3, ("cross", 0): 3})
    columns = {
        "survival[a]": [1, 0, 1, 1, 1, 1, 0, 0, 0],
        "survival[a].open": 0.5,
        "survival[b]": [0, 0, 0, 1, 0, 0, 1, 1, 1],
    }
    ax = plots.by_layer(frame.table(columns, index, "made up"))
    assert ax.collections[0].get_array().reshape(2, 2).tolist() == [[2, 0], [3, 1]]
    assert [text.get_text() for text in ax.texts] == ["2", "0", "3", "1"]
    assert not ax.yaxis_inverted()
    with pytest.raises(ValueError, match=r"^not a table of survival: got "):
        plots.by_layer(SIZES)


def test_gates_are_a_row_per_head_and_a_column_per_step():
    rows = [
        ("enc-self", layer, head, step, step / 10 + head / 100)
        for step in (0, 5)
        for layer in (0, 1)
        for head in (0, 1)
    ]
    ax = plots.gates(pd.DataFrame(rows, columns=[*frame.LEVELS, "step", "open"]))
    grid = ax.collections[0].get_array().reshape(4, 2)
    np.testing.assert_allclose(grid, [[0, 0.5], [0.01, 0.51]] * 2)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["0", "1"]


def test_densities_have_the_masses_of_the_paper_and_sum_to_one():
    ax = densities()
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == [
        "log α = 0: P(0) = 0.232, P(1) = 0.232",
        "log α = 2: P(0) = 0.039, P(1) = 0.690",
        "log α = −3: P(0) = 0.858, P(1) = 0.015",
    ]
    for line, bars in zip(ax.lines, ax.collections, strict=True):
        masses = sum(segment[1, 1] for segment in bars.get_segments())
        assert np.trapezoid(line.get_ydata(), line.get_xdata()) + masses == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("drawing", "columns", "made_by"),
    [
        (plots.survival, "heads, high, low, of, value", "hr.sparsity_sweep"),
        (plots.by_kind, "heads, of", "hr.sparsity_sweep"),
        (plots.functions, "count, function, heads, kind", "hr.sparsity_sweep with scored="),
        (plots.gates, "head, kind, layer, open, step", "hr.prune with learned gates"),
        (plots.contest, "heads, strategy, tuned, value, value.high, value.low", "hr.compare_pruning"),
        (plots.efficiency, "allowed, batch, share, speedup, speedup.high, speedup.low, way", "hr.efficiency"),
        (plots.dynamics, "epoch, kept, share, value", "hr.dynamics"),
        (plots.settling, "all, all.high, all.low, epoch, within", "hr.dynamics"),
    ],
)
def test_another_table_is_refused(drawing, columns, made_by):
    message = f"not a table of {made_by}: got a DataFrame (x) with 1 rows, index None; expected columns {columns}"
    with pytest.raises(ValueError, match=whole(message)):
        drawing(pd.DataFrame({"x": [1]}))
