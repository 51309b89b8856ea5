"""Maps of heads show exactly the table, and their words fit."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers.drawn import cells, column, index, mesh, table_of_roles, words
from matplotlib.colors import to_rgb

from headroles import plots
from headroles.analysis import role_rules
from headroles.tables import frame

GREEN, BLUE, VERMILION = "#029e73", "#0173b2", "#d55e00"
pytestmark = pytest.mark.usefixtures("nothing_shown")


def patches(ax: Any) -> list[tuple[float, float, float, float]]:
    return [(*patch.get_xy(), patch.get_width(), patch.get_height()) for patch in ax.patches]


# heatmap
def test_heatmap_shows_the_table_with_layer_0_at_the_bottom() -> None:
    values = column(index(enc_self=(6, 12)))
    ax = plots.heatmap(values)
    assert np.array_equal(mesh(ax), values.to_numpy().reshape(6, 12))
    assert ax.get_ylim() == (0, 6)  # row 0, layer 0, is the lowest
    assert ax.get_xlim() == (0, 12)
    assert words(ax.get_yticklabels()) == [str(layer) for layer in range(6)]
    assert words(ax.get_xticklabels()) == [str(head) for head in range(12)]
    title = "confidence\nencoder self-attention"
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) == (title, "head", "layer")
    assert ax.collections[0].colorbar.ax.get_ylabel() == "confidence\n(0 to 1)"
    assert not ax.texts
    assert not ax.patches


@pytest.mark.parametrize(
    ("kind", "title"),
    [("enc-self", "encoder self-attention"), ("dec-self", "decoder self-attention"), ("cross", "cross-attention")],
)
def test_heatmap_draws_the_kind_asked_for(kind: Any, title: str) -> None:
    values = column(index(enc_self=(2, 3), dec_self=(2, 3), cross=(2, 3)))
    ax = plots.heatmap(values, kind=kind, label="how sure\n(a share)")
    assert np.array_equal(mesh(ax), values.loc[kind].to_numpy().reshape(2, 3))
    assert ax.get_title() == f"how sure\n{title}"
    assert ax.collections[0].colorbar.ax.get_ylabel() == "how sure\n(a share)"
    assert plots.heatmap(values, kind=kind, label="").get_title() == title


def test_heatmap_sorts_the_heads_of_each_layer_and_texts_follow() -> None:
    values = pd.Series([0.1, 0.3, np.nan, 0.2, 0.5, 0.5], index(enc_self=(2, 3)), name="x")
    texts = pd.Series([f"{layer}.{head}" for _, layer, head in values.index], values.index)
    ax = plots.heatmap(values, order="sorted", annotate=texts)
    assert mesh(ax)[0].tolist() == [0.3, 0.1, None]
    assert mesh(ax)[1].tolist() == [0.5, 0.5, 0.2]
    assert cells(ax) == {(0, 0): "0.1", (0, 1): "0.0", (1, 0): "1.1", (1, 1): "1.2", (1, 2): "1.0"}
    assert patches(ax) == [(2, 0, 1, 1)]  # the head without a value comes last and is hatched
    assert ax.get_xlabel() == "rank in the layer"
    assert words(ax.get_xticklabels()) == ["1", "2", "3"]


def test_heatmap_writes_values_whole_numbers_and_draws_truth_values() -> None:
    values = pd.Series([0.123, -0.5, -0.001, np.nan], index(dec_self=(2, 2)))
    ax = plots.heatmap(values, annotate=True)
    assert cells(ax) == {(0, 0): "0.12", (0, 1): "−0.50", (1, 0): "0.00"}
    assert ax.collections[0].colorbar.ax.get_ylabel() == ""
    where = index(enc_self=(1, 2))
    assert cells(plots.heatmap(pd.Series([1, 20], where), annotate=True)) == {(0, 0): "1.00", (0, 1): "20.00"}
    assert mesh(plots.heatmap(pd.Series([True, False], where))).tolist() == [[1.0, 0.0]]


def test_heatmap_takes_texts_for_some_heads_of_many_kinds() -> None:
    values = column(index(enc_self=(2, 2), cross=(2, 2)))
    texts = pd.Series({("cross", 1, 0): "a", ("enc-self", 0, 0): "b"}).rename_axis(frame.LEVELS)
    drawn = cells(plots.heatmap(values, kind="cross", annotate=texts))
    assert {cell: text for cell, text in drawn.items() if text} == {(1, 0): "a"}


def test_heatmap_leaves_absent_heads_blank_and_hatches_heads_without_value() -> None:
    ragged = frame.index({("enc-self", 0): 3, ("enc-self", 1): 1, ("enc-self", 3): 2})
    values = pd.Series([1.0, np.nan, 3.0, 4.0, 5.0, 6.0], ragged)
    ax = plots.heatmap(values, annotate=True)
    rows = [[1, None, 3], [4, None, None], [None, None, None], [5, 6, None]]
    assert mesh(ax).tolist() == rows
    assert patches(ax) == [(1, 0, 1, 1)]
    assert ax.patches[0].get_hatch() == "////"
    assert (1, 0) in cells(ax)
    assert (1, 1) not in cells(ax)
    assert words(ax.get_yticklabels()) == ["0", "1", "2", "3"]


def test_heatmap_scale() -> None:
    where = index(enc_self=(1, 2))
    one_sign = plots.heatmap(pd.Series([0.2, 0.8], where)).collections[0]
    two_signs = plots.heatmap(pd.Series([-0.1, 0.3], where)).collections[0]
    given = plots.heatmap(pd.Series([-0.1, 0.3], where), vmin=0, vmax=2, cmap="Greys").collections[0]
    assert (one_sign.get_clim(), one_sign.get_cmap().name) == ((0, 0.8), "YlGnBu")
    assert (two_signs.get_clim(), two_signs.get_cmap().name) == ((-0.3, 0.3), "BrBG")
    assert (given.get_clim(), given.get_cmap().name) == ((0, 2), "Greys")


def reds(ax: Any) -> list[float]:
    """How much redder than blue each cell of a map is, layer by layer."""
    ax.figure.canvas.draw()
    return [red - blue for red, _, blue, _ in ax.collections[0].get_facecolors().round(2)]


@pytest.mark.slow
@pytest.mark.parametrize(  # -2: closing the third head helps
    ("metric", "harm", "others"),
    [("bleu", -1, 0.0), ("loss", 1, 0.0), ("loss", 1, -2.0), ("accuracy rest", -1, -2.0), ("perplexity", 1, 2.0)],
)
def test_red_is_harm_and_white_no_effect_whatever_the_metric_and_the_signs(metric, harm, others) -> None:
    effects = pd.Series([0, 6.89 * harm, others * harm, 0], index(enc_self=(1, 4)), name=f"ablation[{metric}]")
    ax = plots.heatmap(effects)
    far = ax.collections[0].get_clim()[1]
    assert ax.collections[0].get_clim() == (-far, far) == (-6.89, 6.89)
    zero, most, small, same = reds(ax)
    assert zero == same == pytest.approx(0, abs=0.03)  # white
    assert most > 0.4
    assert small == pytest.approx(zero) if others == 0 else 0.05 < abs(small) < most
    assert small * others >= 0


def test_a_map_without_any_effect_is_white_and_harm_alone_is_red_too() -> None:
    for values, colour in (([0, 0], [0, 0]), ([-0.2, -0.2], [0.5, 0.5])):
        effects = pd.Series(values, index(enc_self=(1, 2)), name="ablation[bleu]")
        assert reds(plots.heatmap(effects)) == pytest.approx(colour, abs=0.15)


def test_limits_of_a_scale_around_zero_stay_around_zero_and_are_of_all_kinds() -> None:
    where = index(enc_self=(1, 2))
    effects = pd.Series([-0.1, 0.3], where, name="ablation[loss]")
    assert plots.heatmap(effects, vmax=2).collections[0].get_clim() == (-2, 2)
    assert plots.heatmap(effects, vmin=-1, vmax=2).collections[0].get_clim() == (-2, 2)
    assert plots.heatmap(pd.Series([-0.3, -0.1], where)).collections[0].get_clim() == (-0.3, 0.3)
    assert plots.heatmap(pd.Series([np.inf, 3.0], where, name="ablation[loss]")).collections[0].get_clim() == (-3, 3)
    values = column(index(enc_self=(2, 3), cross=(2, 3)))
    maps = [plots.heatmap(values, kind=kind) for kind in ("enc-self", "cross")]
    assert [ax.collections[0].get_clim() for ax in maps] == [(0, values.max())] * 2


@pytest.mark.slow
@pytest.mark.parametrize(("deep", "wide"), [(1, 4), (32, 4), (6, 24)])
def test_texts_fit_their_cells(deep: int, wide: int) -> None:
    ax = plots.heatmap(column(index(enc_self=(deep, wide))), annotate=True)
    ax.figure.canvas.draw()
    assert len(ax.texts) == deep * wide
    cell = ax.get_window_extent().width / wide
    assert max(text.get_window_extent().width for text in ax.texts) < cell
    assert min(text.get_fontsize() for text in ax.texts) >= 4


def test_texts_that_could_not_be_read_are_dropped() -> None:
    ax = plt.figure(figsize=(2, 2)).add_subplot()
    assert not plots.heatmap(column(index(enc_self=(16, 16))), annotate=True, ax=ax).texts


def test_heatmap_draws_rows_of_any_order_on_given_axes_and_leaves_the_table_as_it_was() -> None:
    figure, (left, right) = plt.subplots(1, 2)
    values = column(index(enc_self=(3, 4)))
    mixed = values.sample(frac=1, random_state=1)
    before = mixed.copy()
    assert plots.heatmap(mixed, annotate=True, ax=right) is right
    assert np.array_equal(mesh(right), values.to_numpy().reshape(3, 4))
    assert not left.collections
    assert plt.get_fignums() == [figure.number]
    pd.testing.assert_series_equal(mixed, before)
    plots.heatmap(mixed, order="sorted")
    pd.testing.assert_series_equal(mixed, before)


def test_heatmaps_share_one_scale_and_one_bar() -> None:
    values = column(index(enc_self=(2, 3), dec_self=(2, 3), cross=(2, 3)))
    values.loc["dec-self"] = np.nan
    first, last = plots.heatmaps(values, annotate=True)
    titles = [f"confidence\n{kind}" for kind in ("encoder self-attention", "cross-attention")]
    assert [first.get_title(), last.get_title()] == titles
    limits = (0, values.max())
    assert first.collections[0].get_clim() == last.collections[0].get_clim() == limits
    assert np.array_equal(mesh(last), values.loc["cross"].to_numpy().reshape(2, 3))
    assert len(first.figure.axes) == 3  # two maps, one colour bar
    assert len(first.texts) == len(last.texts) == 6


def bands(ax: Any) -> dict[tuple[int, int], list[tuple[str, tuple[float, ...]]]]:
    """The bands of each (layer, head), from the top: text and colour."""
    found: dict[tuple[int, int], list[tuple[float, str, tuple[float, ...]]]] = {}
    for patch, text in zip(ax.patches, ax.texts, strict=True):
        x, y = text.get_position()
        assert patch.get_x() < x < patch.get_x() + patch.get_width()
        assert patch.get_y() < y < patch.get_y() + patch.get_height()
        found.setdefault((int(y), int(x)), []).append((-y, text.get_text(), patch.get_facecolor()[:3]))
    return {cell: [band[1:] for band in sorted(each)] for cell, each in found.items()}


def texts_of(drawn: dict[tuple[int, int], list[Any]]) -> dict[tuple[int, int], list[str]]:
    return {cell: [text for text, _ in each] for cell, each in drawn.items()}


def tint(colour: str, value: float) -> Any:
    return pytest.approx([1 - (0.15 + 0.85 * value) * (1 - part) for part in to_rgb(colour)])


def test_roles_labels_and_colours_every_role_of_every_head() -> None:
    ax = plots.roles(table_of_roles())
    drawn = bands(ax)
    assert texts_of(drawn) == {
        (0, 0): ["−1", "s→v"], (0, 1): ["+1?", "copying"], (0, 2): ["rare"], (1, 0): ["v→adv", "rare"],
        (1, 1): ["nmod:poss↑", "ccomp↓?", "sink"]
    }  # fmt: skip
    assert drawn[0, 0][0][1] == tint(BLUE, 0.95)
    assert drawn[0, 0][1][1] == tint(GREEN, 0.4)
    assert drawn[0, 2][0][1] == tint(VERMILION, 0.66)
    assert drawn[1, 1][2][1] == tint("#cc78bc", 0.8)  # of two kinds of sink, the larger score
    assert drawn[0, 1][1][1] == tint("#56b4e9", 0.7)  # a family of the user's own
    assert mesh(ax).tolist() == [[0, 0, 0], [0, 0, 0]]  # the pale cells behind
    assert ax.get_ylim() == (0, 2)
    title = "roles of heads, encoder self-attention"
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) == (title, "head", "layer")


def test_bands_fill_their_cell() -> None:
    ax = plots.roles(table_of_roles())
    inside = [box for box in patches(ax) if (int(box[0]), int(box[1])) == (1, 1)]  # three bands
    assert sum(height for *_, height in inside) == pytest.approx(0.92)
    assert min(low for _, low, *_ in inside) == pytest.approx(1.04)
    assert {(round(left, 9), round(wide, 9)) for left, _, wide, _ in inside} == {(1.04, 0.92)}


def test_unstable_roles_are_in_italics_and_texts_stand_out() -> None:
    ax = plots.roles(table_of_roles())
    style = {text.get_text(): (text.get_fontstyle(), text.get_color()) for text in ax.texts}
    assert style["+1?"] == ("italic", "white")
    assert style["ccomp↓?"] == ("italic", "0.15")
    assert style["−1"] == ("normal", "white")
    assert style["s→v"] == ("normal", "0.15")
    assert style["rare"][0] == "normal"  # 0.95 is stable
    unsure = table_of_roles().assign(**{"sink[special].stability": 0.9})
    assert "sink" in words(plots.roles(unsure).texts)  # the other one is sure, if smaller


def test_the_legend_explains_and_counts() -> None:
    assert words(plots.roles(table_of_roles()).get_legend().get_texts()) == [
        "positional (2): at a fixed offset",
        "syntactic (3): along a dependency;\ns subject, o object, v verb, a adjective,\nn noun, adv adverb",
        "rare (2): at the rarest token",
        "sink (1): at a special or the first token",
        "copying (1)",  # no head has the role alignment
        "no role (1)",
        "score 0, ½, 1",
        "kept in < 95 % of resamples",
    ]


def test_the_legend_can_be_left_out_and_names_no_doubt_where_there_is_none() -> None:
    table = table_of_roles().filter(regex="^rare").assign(**{"rare.stability": np.nan})  # without resamples
    assert plots.roles(table, legend=False).get_legend() is None
    legend = words(plots.roles(table).get_legend().get_texts())
    assert legend == ["rare (2): at the rarest token", "no role (4)", "score 0, ½, 1"]


def test_roles_draws_a_table_without_a_single_role_held_and_absent_heads() -> None:
    where = frame.index({("cross", 0): 2, ("cross", 1): 1})
    table = pd.DataFrame({"rare": False, "rare.value": 0.1, "rare.stability": 1.0, "confidence": 0.5}, where)
    ax = plots.roles(table)
    assert not ax.patches
    assert mesh(ax).tolist() == [[0, 0], [0, None]]
    assert words(ax.get_legend().get_texts())[:1] == ["no role (3)"]


def test_roles_draws_the_kind_on_given_axes() -> None:
    tables = [table_of_roles().assign(rare=False), table_of_roles().rename({"enc-self": "cross"}, level="kind")]
    table = pd.concat(tables)
    figure, (left, right) = plt.subplots(1, 2, figsize=(16, 4))
    assert plots.roles(table, kind="cross", legend=False, ax=right) is right
    assert (1, 2) not in bands(right)
    assert bands(right)[0, 2][0][0] == "rare"
    assert not left.patches
    assert plt.get_fignums() == [figure.number]


def test_roles_draws_what_hr_roles_makes() -> None:
    where = index(dec_self=(2, 2))
    names = ["position[-1]", "position[+1]", "rarity", "sink[first]"]
    scores = frame.table({name: [0.95, 0.1, 0.6, np.nan] for name in names}, where, "signed")
    drawn = texts_of(bands(plots.roles(role_rules.roles(scores))))
    assert drawn == {(0, 0): ["−1", "+1", "rare", "sink"], (1, 0): ["rare", "sink"]}


@pytest.mark.slow
def test_role_texts_fit_a_large_model() -> None:
    where = index(dec_self=(8, 32))
    on = np.random.default_rng(0).random((2, len(where))) < 0.2
    table = pd.DataFrame(index=where)
    for name, held in zip(["positional[-1]", "syntactic[advmod dep>head]"], on, strict=True):
        table[name], table[f"{name}.value"], table[f"{name}.stability"] = held, 0.9, 0.9
    ax = plots.roles(table)
    ax.figure.canvas.draw()
    assert len(ax.texts) == on.sum()
    cell = ax.get_window_extent().width / 32
    assert max(text.get_window_extent().width for text in ax.texts) < cell


# maps of many heads
def roles_of(deep: int, wide: int, held: dict[str, dict[tuple[int, int], float]]) -> pd.DataFrame:
    """Roles of decoder heads with their scores; all heads have a score of 0.05 besides."""
    table = pd.DataFrame(index=index(dec_self=(deep, wide)))
    for name, where in held.items():
        scores = [where.get((layer, head)) for _, layer, head in table.index]
        table[name] = [score is not None for score in scores]
        table[f"{name}.value"] = [0.05 if score is None else score for score in scores]
        table[f"{name}.stability"] = 1.0
    return table


def sinks(deep: int, wide: int) -> dict[tuple[int, int], float]:
    return {(layer, head): 0.9 for layer in range(deep) for head in range(wide) if (layer + head) % 2}


@pytest.mark.parametrize(("deep", "across"), [(16, False), (17, True), (80, True)])
def test_many_layers_go_to_the_right(deep: int, across: bool) -> None:
    values = column(index(dec_self=(deep, 3)))
    ax = plots.heatmap(values)
    grid = values.to_numpy().reshape(deep, 3)
    assert np.array_equal(mesh(ax), grid.T if across else grid)
    assert (ax.get_xlabel(), ax.get_ylabel()) == (("layer", "head") if across else ("head", "layer"))
    assert ax.get_xlim() == (0, deep if across else 3)
    assert ax.figure.get_size_inches()[0] < 9  # a page
    roles = plots.roles(roles_of(deep, 3, {"induction": {(deep - 1, 2): 0.7}}))
    (band,) = patches(roles)
    assert (int(band[0]), int(band[1])) == ((deep - 1, 2) if across else (2, deep - 1))


def test_a_map_of_many_layers_hatches_and_sorts_and_writes_where_the_head_is() -> None:
    values = pd.Series(np.arange(40.0), index(dec_self=(20, 2)), name="x")
    values.loc["dec-self", 18, 1] = np.nan
    ax = plots.heatmap(values, annotate=True)
    assert patches(ax) == [(18, 1, 1, 1)]
    assert cells(ax)[0, 19] == "38.00"
    ax = plots.heatmap(values, order="sorted")
    assert mesh(ax)[0, 19] == 39  # the largest of the last layer
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("layer", "rank in the layer")


@pytest.mark.slow
@pytest.mark.parametrize(("deep", "wide"), [(30, 9), (32, 32), (16, 32), (80, 64)])
def test_of_many_heads_only_roles_besides_the_sink_have_a_colour_and_a_text(deep: int, wide: int) -> None:
    held = {(8, 0): 0.6, (14, 3): 0.7}, {(15, 1): 0.8, (15, 2): 0.7}
    table = roles_of(deep, wide, {"sink[first]": sinks(deep, wide), "duplicate": held[0], "induction": held[1]})
    ax = plots.roles(table)
    ax.figure.canvas.draw()
    across = deep > 16
    places = {(int(x), int(y)) if across else (int(y), int(x)) for x, y, *_ in patches(ax)}
    assert places == {*held[0], *held[1]}  # (layer, head)
    marks = ax.collections[1].get_paths()
    corners = {tuple(path.vertices.min(0).astype(int)) for path in marks}
    assert corners == {key if across else key[::-1] for key in sinks(deep, wide)}
    assert max(np.ptp(path.vertices, axis=0).max() for path in marks) < 0.4  # of a cell
    assert sorted(words(ax.texts)) == ([] if deep == 80 else ["dup", "dup", "ind", "ind"])
    cell = ax.get_window_extent().width / (deep if across else wide)
    assert all(text.get_window_extent().width < cell and text.get_fontsize() >= 5 for text in ax.texts)
    legend = words(ax.get_legend().get_texts())
    assert "duplicate (2): at the same token before\nL14H3, L8H0" in legend
    assert "induction (2): after the same token before\nL15H1, L15H2" in legend
    assert legend.index(f"sink ({len(corners)}): at a special or the first token") == 2  # after what heads do besides


def test_where_roles_are_known_without_the_sink_it_is_a_mark_in_the_corner() -> None:
    index = frame.index({("dec-self", layer): 2 for layer in range(2)})
    columns = {"sink[first]": [0.9, 0.8, 0.7, 0.1], "position[-1]": [0.0] * 4, "position-nosink[-1]": [0.95, 0, 0, 1]}
    ax = plots.roles(role_rules.roles(frame.table(columns, index, "made:by hand")))
    found = bands(ax)
    assert texts_of(found) == {(0, 0): ["−1"], (1, 1): ["−1"]}
    assert found[0, 0][0][1] == tint(BLUE, 0.95)
    corners = {tuple(path.vertices.min(0).astype(int)) for path in ax.collections[1].get_paths()}
    assert corners == {(0, 0), (1, 0), (0, 1)}  # (head, layer)
    legend = words(ax.get_legend().get_texts())
    assert legend[:2] == ["positional (2): at a fixed offset", "sink (3): at a special or the first token"]


def test_the_legend_of_many_heads_names_the_five_strongest() -> None:
    held = {(layer, 0): 0.6 + layer / 100 for layer in range(20)}
    legend = words(plots.roles(roles_of(20, 1, {"induction": held})).get_legend().get_texts())
    assert legend[0].endswith("\nL19H0, L18H0, L17H0, L16H0, L15H0, and 15 more")
