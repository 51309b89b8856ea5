"""Figures of strategies, speed and training show the table."""

from __future__ import annotations

import pandas as pd
import pytest
from helpers.drawn import marks

from headroles import plots

pytestmark = pytest.mark.usefixtures("nothing_shown")
CONTEST = pd.DataFrame(
    [
        {"strategy": name, "heads": size, "tuned": tuned, "value": mean, "value.low": mean - 1, "value.high": mean + 2}
        for name, size, tuned, mean in [
            ("all heads", 8, False, 10.0), ("all heads", 8, True, 11.0), ("importance", 4, False, 7.0),
            ("importance", 4, True, 9.0), ("random", 4, False, 3.0), ("random", 4, True, 8.0),
        ]
    ]
)  # fmt: skip


def test_the_comparison_has_a_panel_per_number_of_heads_and_a_mark_per_choice_and_seed():
    seeds = CONTEST[["strategy", "heads", "tuned", "value"]].assign(seed=0)
    axes = plots.contest(CONTEST, seeds, label="BLEU")
    assert [ax.get_title() for ax in axes] == ["4 heads left"]
    values = [bars.lines[0].get_xdata().tolist() for bars in axes[0].containers]
    assert values == [[7.0, 3.0], [9.0, 8.0]]
    spread = [[segment[:, 0].tolist() for segment in bars.lines[2][0].get_segments()] for bars in axes[0].containers]
    assert spread == [[[6.0, 9.0], [2.0, 5.0]], [[8.0, 11.0], [7.0, 10.0]]]
    assert sorted(line.get_xdata()[0] for line in axes[0].lines if line.get_linestyle() == ":") == [10.0, 11.0]
    single = [
        line.get_xdata().tolist() for line in axes[0].lines if line.get_marker() == "|" and len(line.get_xdata()) == 2
    ]
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
