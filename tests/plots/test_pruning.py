"""Figures of pruning show exactly their tables: the artists are asked, not the pixels."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
from helpers.drawn import marks

from headroles import plots
from headroles.plots.pruning import densities
from headroles.tables import frame

pytestmark = pytest.mark.usefixtures("nothing_shown")
SIZES = pd.DataFrame(
    {"heads": [12, 9, 4], "of": 12, "enc-self": [6, 4, 1], "cross": [6, 5, 3], "value": [30.0, 29.5, 20.0],
     "low": [29.0, 28.0, 18.0], "high": [31.0, 31.5, 23.0]}
)  # fmt: skip


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


def test_each_kind_is_a_line():
    ax = plots.by_kind(SIZES)
    assert [marks(line) for line in ax.lines] == [[(0, 6), (3, 4), (8, 1)], [(0, 6), (3, 5), (8, 3)]]
    assert [line.get_label() for line in ax.lines] == ["encoder self-attention", "cross-attention"]


FUNCTIONS = pd.DataFrame(
    [("enc-self", "none", 3, 6), ("enc-self", "positional", 2, 6), ("enc-self", "several", 1, 6)]
    + [("enc-self", "positional", 1, 2), ("enc-self", "none", 1, 2), ("cross", "none", 6, 6)],
    columns=["kind", "function", "count", "heads"],
)


def test_functions_are_piled_up_to_the_number_of_heads_and_none_is_left_out():
    ax = plots.functions(FUNCTIONS)
    boxes = {bars.get_label(): [(bar.get_y(), bar.get_height()) for bar in bars] for bars in ax.containers}
    assert boxes == {"no role": [(0, 3), (0, 1)], "positional": [(3, 2), (1, 1)], "several": [(5, 1), (2, 0)]}
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["6", "2"]
    assert sorted(text.get_text() for text in ax.texts if text.get_text()) == ["1", "1", "1", "2", "3"]
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
    columns = {"survival[a]": [1, 0, 1, 1, 1, 1, 0, 0, 0], "survival[a].open": 0.5}
    columns |= {"survival[b]": [0, 0, 0, 1, 0, 0, 1, 1, 1]}
    ax = plots.by_layer(frame.table(columns, index, "made up"))
    assert ax.collections[0].get_array().reshape(2, 2).tolist() == [[2, 0], [3, 1]]
    assert [text.get_text() for text in ax.texts] == ["2", "0", "3", "1"]
    assert not ax.yaxis_inverted()


def test_gates_are_a_row_per_head_and_a_column_per_step():
    places = product((0, 5), (0, 1), (0, 1))
    rows = [("enc-self", layer, head, step, step / 10 + head / 100) for step, layer, head in places]
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


COMPARED = pd.DataFrame(
    [
        {"strategy": name, "heads": size, "tuned": tuned, "value": mean, "value.low": mean - 1, "value.high": mean + 2}
        for name, size, tuned, mean in [
            ("all heads", 8, False, 10.0), ("all heads", 8, True, 11.0), ("importance", 4, False, 7.0),
            ("importance", 4, True, 9.0), ("random", 4, False, 3.0), ("random", 4, True, 8.0),
        ]
    ]
)  # fmt: skip


def test_the_comparison_has_a_panel_per_number_of_heads_and_a_mark_per_choice_and_seed():
    seeds = COMPARED[["strategy", "heads", "tuned", "value"]].assign(seed=0)
    axes = plots.compare_pruning(COMPARED, seeds, label="BLEU")
    assert [ax.get_title() for ax in axes] == ["4 heads left"]
    values = [bars.lines[0].get_xdata().tolist() for bars in axes[0].containers]
    assert values == [[7.0, 3.0], [9.0, 8.0]]
    spread = [[segment[:, 0].tolist() for segment in bars.lines[2][0].get_segments()] for bars in axes[0].containers]
    assert spread == [[[6.0, 9.0], [2.0, 5.0]], [[8.0, 11.0], [7.0, 10.0]]]
    assert sorted(line.get_xdata()[0] for line in axes[0].lines if line.get_linestyle() == ":") == [10.0, 11.0]
    strokes = [line.get_xdata().tolist() for line in axes[0].lines if line.get_marker() == "|"]
    single = [stroke for stroke in strokes if len(stroke) == 2]
    assert [7.0, 3.0] in single
    assert [9.0, 8.0] in single
    assert [tick.get_text() for tick in axes[0].get_yticklabels()] == ["importance", "random"]


def test_speeds_are_lines_by_batch_and_way_beside_what_operations_allow():
    rows = [
        (share, way, batch, 1 + share * batch, 0.9, 2.0, 1 + share)
        for share in (0.0, 0.5) for way in ("gates", "cut") for batch in (1, 4)
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["share", "way", "batch", "speedup", "speedup.low", "speedup.high", "allowed"])
    ax = plots.efficiency(table)
    lines = {line.get_label(): marks(line) for line in ax.lines if not line.get_label().startswith("_")}
    assert lines["removed, batch 4"] == [(0.0, 1.0), (0.5, 3.0)]
    assert lines["masked, batch 1"] == [(0.0, 1.0), (0.5, 1.5)]
    assert lines["removed: allowed by operations"] == [(0.0, 1.0), (0.5, 1.5)]


def test_checkpoints_within_an_epoch_have_their_part_of_it():
    table = pd.DataFrame({"epoch": [0.25, 1.5], "share": 0.0, "value": [0.5371, 0.62], "kept": 1.0})
    ax = plots.dynamics(table, label="accuracy")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["0.25 (0.537)", "1.5 (0.62)"]


def test_the_course_of_a_training_is_a_line_per_epoch_and_when_it_settles():
    rows = [(epoch, share, epoch * 10.0 * (1 - share), 1 - share) for epoch in (1.0, 2.0) for share in (0.0, 1.0)]
    ax = plots.dynamics(pd.DataFrame(rows, columns=["epoch", "share", "value", "kept"]), label="BLEU")
    lines = {line.get_label(): marks(line) for line in ax.lines if not line.get_label().startswith("_")}
    assert lines == {"1 (10)": [(0.0, 1.0), (1.0, 0.0)], "2 (20)": [(0.0, 1.0), (1.0, 0.0)]}
    order = pd.DataFrame({"epoch": [1, 2], "roles[rare]": [0, 3], "roles[sink]": [0, 0]})
    for name, value in (("all", 0.5), ("within", 0.4)):
        order[[name, f"{name}.low", f"{name}.high"]] = [[value, value - 0.1, value + 0.1], [1, 1, 1]]
    left, right = plots.settling(order)
    assert [line.get_ydata().tolist() for line in left.lines] == [[0.5, 1], [0.4, 1]]
    assert {line.get_label(): line.get_ydata().tolist() for line in right.lines} == {"rare": [0, 3]}
