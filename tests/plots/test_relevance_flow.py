"""What is drawn of relevance is exactly the table: the artists are asked, never the pixels."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers import zoo
from helpers.drawn import assert_within_the_page, cells, mesh, words
from matplotlib.colors import to_hex

from headroles.models.head_model import HeadModel
from headroles.plots import relevance_flow
from headroles.scores.lrp import conservation_report
from headroles.tables import frame

SIZE = "relevance[cp].size"
WAYS = ["leaves", "source", "biases", "residue"]
pytestmark = pytest.mark.usefixtures("nothing_shown")


def assert_apart(ax: Any, labels: list[Any]) -> None:
    """No text lies over another."""
    ax.figure.canvas.draw()
    boxes = [label.get_window_extent() for label in labels if label.get_text()]
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]


# relevance


def column(*, deep: int = 2, wide: int = 4, kinds: Any = ("enc-self",), name: Any = SIZE, seed: int = 0) -> pd.Series:
    """Shares of a layer."""
    index = frame.index({(kind, layer): wide for kind in kinds for layer in range(deep)})
    values = pd.Series(np.random.default_rng(seed).random(len(index)), index, name=name)
    return values / values.groupby(["kind", "layer"]).transform("sum")


def bar(ax: Any) -> Any:
    return ax.collections[0].colorbar


def marks(ax: Any) -> list[float]:
    """Where there is a line across the colour bar."""
    return [line.get_ydata()[0] for line in bar(ax).ax.lines]


def test_relevance_sorts_the_heads_of_each_layer_and_names_them() -> None:
    values = pd.Series([0.1, 0.3, 0.2, 0.4, 0.25, 0.5, 0.0, 0.25], column().index, name=SIZE)
    ax = relevance_flow.relevance(values)
    assert mesh(ax).tolist() == [[0.4, 0.3, 0.2, 0.1], [0.5, 0.25, 0.25, 0.0]]
    numbers = ["3", "1", "2", "0", "1", "0", "3", "2"]
    assert cells(ax) == {(row, place): numbers[4 * row + place] for row in range(2) for place in range(4)}
    assert ax.get_ylim() == (0, 2)  # layer 0 is the lowest
    title = "size of relevance (cp)\nencoder self-attention"
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) == (title, "rank in the layer", "layer")


def test_relevance_draws_the_kind_asked_for() -> None:
    values = column(kinds=frame.KINDS)
    ax = relevance_flow.relevance(values, kind="cross")
    assert np.array_equal(mesh(ax), -np.sort(-values.loc["cross"].to_numpy().reshape(2, 4), axis=1))
    assert ax.get_title() == "size of relevance (cp)\ncross-attention"


def test_relevance_of_both_signs_is_drawn_around_zero_and_has_no_uniform_share() -> None:
    values = pd.Series([-0.5, 0.2, 0.1, -0.2, 0.4, 0.3, 0.2, 0.1], column().index, name="relevance[cp]")
    ax = relevance_flow.relevance(values)
    assert mesh(ax)[0].tolist() == [0.2, 0.1, -0.2, -0.5]
    assert ax.collections[0].get_clim() == (-0.5, 0.5)
    assert bar(ax).ax.get_ylabel() == "relevance (cp)"
    assert marks(ax) == []
    assert "uniform" not in words(bar(ax).ax.get_yticklabels())


@pytest.mark.slow
@pytest.mark.parametrize(("deep", "wide"), [(1, 8), (12, 12), (3, 1)])
def test_the_uniform_share_is_marked_on_the_colour_bar(deep: int, wide: int) -> None:
    ax = relevance_flow.relevance(column(deep=deep, wide=wide))
    assert marks(ax) == [1 / wide]
    labels = dict(zip(bar(ax).get_ticks(), words(bar(ax).ax.get_yticklabels()), strict=True))
    assert labels.pop(1 / wide) == "uniform"
    assert [float(text.replace("−", "-")) for text in labels.values()] == pytest.approx([*labels])
    low, high = bar(ax).ax.get_ylim()
    assert all(low <= tick <= high for tick in labels)
    assert_apart(ax, bar(ax).ax.get_yticklabels())


def test_shares_of_what_is_explained_have_no_uniform_share() -> None:
    ax = relevance_flow.relevance(column() * 0.9)
    assert marks(ax) == []
    assert bar(ax).ax.get_ylabel() == "size of relevance (cp)"


def test_heads_without_relevance_come_last_and_are_hatched() -> None:
    values = column()
    values.iloc[[1, 4, 5]] = np.nan
    values /= values.groupby("layer").transform("sum")
    ax = relevance_flow.relevance(values)
    assert mesh(ax).mask.tolist() == [[False, False, False, True], [False, False, True, True]]
    hatched = [(patch.get_xy(), patch.get_hatch()) for patch in ax.patches]
    assert hatched == [((3, 0), "////"), ((2, 1), "////"), ((3, 1), "////")]
    assert sorted(cells(ax)[0, place] for place in range(3)) == ["0", "2", "3"]
    assert marks(ax) == []  # 1/3 in one layer, 1/2 in the other: there is no one uniform share
    assert "share of the layer" in bar(ax).ax.get_ylabel()


def test_a_layer_without_relevance_does_not_hide_the_uniform_share() -> None:
    values = column(deep=3)
    values.loc["enc-self", 1] = np.nan
    assert marks(relevance_flow.relevance(values)) == [0.25]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deep", "scale", "name", "label"),
    [
        (6, 1, "relevance[cp].size", "size of relevance (cp)\nshare of the layer"),
        (2, 1, "relevance[voita-exact].size", "size of relevance\n(voita-exact)\nshare of the layer"),
        (6, 1, None, "share of the layer"),
        *(
            (6, 0.5, name, label)
            for name, label in (("relevance[cp-gate]", "relevance (cp-gate)"), (3, "3"), (None, ""))
        ),
        (6, 0.5, "relevance[gradient].high", "relevance (gradient), high"),
    ],
)
def test_the_bar_has_the_columns_name_and_says_where_it_shows_shares(deep, scale, name, label) -> None:
    values = scale * column(deep=deep, name=name)
    assert bar(relevance_flow.relevance(values)).ax.get_ylabel() == label


@pytest.mark.slow
def test_relevance_has_room_for_its_words() -> None:
    for deep, wide in ((2, 4), (24, 16)):
        values = column(deep=deep, wide=wide, name="relevance[voita-exact].size")
        assert_within_the_page(relevance_flow.relevance(values))


def test_relevance_draws_on_given_axes_and_leaves_the_table_as_it_was() -> None:
    figure, (left, right) = plt.subplots(1, 2)
    values = column()
    before = values.copy()
    assert relevance_flow.relevance(values, ax=right) is right
    assert not left.collections
    assert plt.get_fignums() == [figure.number]
    pd.testing.assert_series_equal(values, before)


# conservation


def report(encoder: int, decoder: int, *, seed: int = 0) -> pd.DataFrame:
    """A report of numbers of both signs, of a model of so many layers."""
    layers = [*(("decoder", i) for i in range(decoder)[::-1]), *(("encoder", i) for i in range(encoder)[::-1])]
    index = pd.MultiIndex.from_tuples([("output", 0), *layers, ("input", 0)], names=["part", "layer"])
    made = pd.DataFrame(np.random.default_rng(seed).normal(size=(len(index), 4)), index, WAYS)
    made.insert(0, "arrives", made.sum(axis=1))
    return made


def bars(ax: Any) -> list[list[tuple[float, float]]]:
    """(left, width) of the bars, by column of the report."""
    return [[(patch.get_x(), patch.get_width()) for patch in container] for container in ax.containers]


def widths(ax: Any) -> Any:
    return np.array([[width for _, width in each] for each in bars(ax)]).T


def approx(table: pd.DataFrame) -> Any:
    """The table but for rounding: matplotlib keeps a bar's width as the difference of its ends."""
    return pytest.approx(table.to_numpy(), rel=0, abs=1e-14)


def test_the_bars_are_as_wide_as_the_table_says() -> None:
    table = report(6, 6)
    ax = relevance_flow.conservation(table)
    assert widths(ax) == approx(table[WAYS])


def test_what_is_negative_is_left_of_zero_and_nothing_lies_over_another() -> None:
    table = report(2, 3)
    for row, parts in enumerate(zip(*bars(relevance_flow.conservation(table)), strict=True)):
        right, left = 0.0, 0.0
        for start, width in parts:
            assert start == (right if width > 0 else left)
            right, left = right + max(width, 0), left + min(width, 0)
        values = table[WAYS].iloc[row]
        assert (left, right) == pytest.approx((values.clip(upper=0).sum(), values.clip(lower=0).sum()))


def test_the_black_line_is_at_what_arrives() -> None:
    table = report(2, 2)
    ax = relevance_flow.conservation(table)
    lines = ax.collections[0].get_segments()
    assert [line[0, 0] for line in lines] == table["arrives"].tolist()
    middles = [patch.get_y() + patch.get_height() / 2 for patch in ax.containers[0]]
    assert [line[:, 1].mean() for line in lines] == pytest.approx(middles)
    assert ax.lines[0].get_xdata() == [0, 0]  # and a thin one at zero


@pytest.mark.parametrize(
    ("layers", "rows"),
    [((2, 2), ["output", "decoder 1", "decoder 0", "encoder 1", "encoder 0", "input"]),
     ((2, 0), ["output", "encoder 1", "encoder 0", "input"]), ((0, 1), ["output", "decoder 0", "input"])],
)  # fmt: skip
def test_rows_go_from_the_input_up_to_the_output(layers: tuple[int, int], rows: list[str]) -> None:
    ax = relevance_flow.conservation(report(*layers))
    assert words(ax.get_yticklabels()) == rows
    heights = [ax.transData.transform((0, tick))[1] for tick in ax.get_yticks()]
    assert heights == sorted(heights, reverse=True)
    middles = [patch.get_y() + patch.get_height() / 2 for patch in ax.containers[0]]
    assert [*ax.get_yticks()] == pytest.approx(middles)


def test_the_title_is_the_total() -> None:
    table = report(1, 1) * 0
    table.loc[("input", 0), "leaves"], table.loc[("decoder", 0), "biases"] = 1.25, -0.301
    assert relevance_flow.conservation(table).get_title() == "inputs 125.0 %, biases −30.1 %, residue 5.1 %"
    table.loc[("decoder", 0), "biases"] = -0.2501  # a residue of 0.0001 is said as 0.0, and so is one of -0.0001
    assert relevance_flow.conservation(table).get_title() == "inputs 125.0 %, biases −25.0 %, residue 0.0 %"
    table.loc[("decoder", 0), "biases"] = -0.2499
    assert relevance_flow.conservation(table).get_title() == "inputs 125.0 %, biases −25.0 %, residue 0.0 %"


def test_the_legend_lies_outside_and_says_each_way() -> None:
    ax = relevance_flow.conservation(report(2, 2))
    said = ["arrives", "down the stream", "to the source, by cross-attention", "absorbed by biases", "residue"]
    assert words(ax.get_legend().get_texts()) == said
    ax.figure.canvas.draw()
    assert ax.get_legend().get_window_extent().x0 >= ax.get_window_extent().x1
    colours = [to_hex(container.patches[0].get_facecolor()) for container in ax.containers]
    assert colours == ["#0173b2", "#029e73", "#de8f05", "#cc78bc"]


@pytest.mark.slow
@pytest.mark.parametrize("layers", [(0, 1), (6, 6), (24, 24)])
def test_conservation_has_room_for_its_words(layers: tuple[int, int]) -> None:
    ax = relevance_flow.conservation(report(*layers))
    assert_within_the_page(ax)
    assert_apart(ax, [*ax.get_yticklabels(), *ax.get_legend().get_texts(), ax.title, ax.xaxis.label])
    assert_apart(ax, ax.get_xticklabels())
    assert {label.get_fontsize() for label in ax.get_yticklabels()} == {9}
    low, high = ax.get_xlim()
    ends = [end for each in bars(ax) for left, width in each for end in (left, left + width)]
    assert low < min(ends) < max(ends) < high


def test_the_words_of_rows_are_smaller_on_smaller_axes() -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.6), layout="constrained")
    assert relevance_flow.conservation(report(6, 6), ax=right) is right
    assert not left.containers
    assert plt.get_fignums() == [figure.number]
    assert {label.get_fontsize() < 9 for label in right.get_yticklabels()} == {True}
    assert_apart(right, right.get_yticklabels())


@pytest.mark.parametrize("rules", ["cp", "gradient"])
def test_a_real_report_is_drawn(rules: Any) -> None:
    model = zoo.tiny("marian")
    found = conservation_report.balance(
        HeadModel(model), zoo.inputs(model), lambda out: out.logits.flatten(1).amax(-1).sum(), rules
    )
    before = found.copy()
    ax = relevance_flow.conservation(found)
    assert widths(ax) == approx(found[WAYS])
    total = [f"{name} {100 * share:z.1f} %" for name, share in conservation_report.totals(found).items()]
    assert ax.get_title() == ", ".join(total).replace("-", "−")
    pd.testing.assert_frame_equal(found, before)
    assert list(found) == conservation_report.COLUMNS == ["arrives", *relevance_flow.WAYS]
    assert relevance_flow.INPUT == conservation_report.INPUT
