"""Plots show exactly the table: the artists are asked, never the pixels."""

from __future__ import annotations

import re
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from headroles import plots
from headroles.analysis import role_rules
from headroles.tables import frame

GREEN, BLUE, VERMILION = "#029e73", "#0173b2", "#d55e00"

pytestmark = pytest.mark.usefixtures("nothing_shown")


def whole(message: str) -> str:
    return f"^{re.escape(message)}$"


def index(**sizes: tuple[int, int]) -> pd.MultiIndex:
    return frame.index(
        {(kind.replace("_", "-"), layer): wide for kind, (deep, wide) in sizes.items() for layer in range(deep)}
    )


def column(index: pd.MultiIndex, *, seed: int = 0, name: str = "confidence") -> pd.Series:
    return pd.Series(np.random.default_rng(seed).random(len(index)), index, name=name)


def mesh(ax: Any) -> np.ma.MaskedArray:
    return ax.collections[0].get_array()


def cells(ax: Any) -> dict[tuple[int, int], str]:
    """Texts by (row, column) of the cell they are in."""
    return {(int(text.get_position()[1]), int(text.get_position()[0])): text.get_text() for text in ax.texts}


def words(labels: Any) -> list[str]:
    return [label.get_text() for label in labels]


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
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) == ("encoder self-attention", "head", "layer")
    assert ax.collections[0].colorbar.ax.get_ylabel() == "confidence"
    assert not ax.texts
    assert not ax.patches


def test_heatmap_does_not_depend_on_the_order_of_rows() -> None:
    values = column(index(enc_self=(3, 4)))
    assert np.array_equal(mesh(plots.heatmap(values.sample(frac=1, random_state=1))), mesh(plots.heatmap(values)))


@pytest.mark.parametrize(
    ("kind", "title"),
    [("enc-self", "encoder self-attention"), ("dec-self", "decoder self-attention"), ("cross", "cross-attention")],
)
def test_heatmap_draws_the_kind_asked_for(kind: Any, title: str) -> None:
    values = column(index(enc_self=(2, 3), dec_self=(2, 3), cross=(2, 3)))
    ax = plots.heatmap(values, kind=kind, label="how sure")
    assert np.array_equal(mesh(ax), values.loc[kind].to_numpy().reshape(2, 3))
    assert ax.get_title() == title
    assert ax.collections[0].colorbar.ax.get_ylabel() == "how sure"


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


def test_heatmap_writes_the_values() -> None:
    values = pd.Series([0.123, -0.5, -0.001, np.nan], index(dec_self=(2, 2)))
    ax = plots.heatmap(values, annotate=True)
    assert cells(ax) == {(0, 0): "0.12", (0, 1): "−0.50", (1, 0): "0.00"}
    assert ax.collections[0].colorbar.ax.get_ylabel() == ""


def test_heatmap_writes_whole_numbers_and_truth_values() -> None:
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


def test_limits_of_a_scale_around_zero_stay_around_zero() -> None:
    where = index(enc_self=(1, 2))
    effects = pd.Series([-0.1, 0.3], where, name="ablation[loss]")
    assert plots.heatmap(effects, vmax=2).collections[0].get_clim() == (-2, 2)
    assert plots.heatmap(effects, vmin=-1, vmax=2).collections[0].get_clim() == (-2, 2)
    assert plots.heatmap(pd.Series([-0.3, -0.1], where)).collections[0].get_clim() == (-0.3, 0.3)
    assert plots.heatmap(pd.Series([np.inf, 3.0], where, name="ablation[loss]")).collections[0].get_clim() == (
        -3,
        3,
    )


def test_a_map_of_one_kind_has_the_scale_of_all_kinds() -> None:
    values = column(index(enc_self=(2, 3), cross=(2, 3)))
    maps = [plots.heatmap(values, kind=kind) for kind in ("enc-self", "cross")]
    assert [ax.collections[0].get_clim() for ax in maps] == [(0, values.max())] * 2


def test_harm_of_an_effect_and_of_other_columns() -> None:
    from headroles.tables.declared import harm

    assert [harm(name) for name in ("importance", "ablation[loss]", "ablation[own]", None)] == [0, 1, -1, 0]


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


def test_heatmap_draws_on_given_axes() -> None:
    figure, (left, right) = plt.subplots(1, 2)
    values = column(index(enc_self=(2, 3)))
    assert plots.heatmap(values, ax=right) is right
    assert not left.collections
    assert plt.get_fignums() == [figure.number]


def test_heatmap_leaves_the_table_as_it_was() -> None:
    values = column(index(enc_self=(2, 3)))
    before = values.copy()
    plots.heatmap(values, order="sorted", annotate=True)
    pd.testing.assert_series_equal(values, before)


def test_heatmaps_share_one_scale_and_one_bar() -> None:
    values = column(index(enc_self=(2, 3), dec_self=(2, 3), cross=(2, 3)))
    values.loc["dec-self"] = np.nan
    first, last = plots.heatmaps(values, annotate=True)
    assert [first.get_title(), last.get_title()] == ["encoder self-attention", "cross-attention"]
    limits = (0, values.max())
    assert first.collections[0].get_clim() == last.collections[0].get_clim() == limits
    assert np.array_equal(mesh(last), values.loc["cross"].to_numpy().reshape(2, 3))
    assert len(first.figure.axes) == 3  # two maps, one colour bar
    assert len(first.texts) == len(last.texts) == 6


def test_heatmap_errors() -> None:
    both = column(index(enc_self=(1, 2), cross=(1, 2)))
    one = both.loc[["enc-self"]]
    with pytest.raises(ValueError, match=whole("no single kind: got kind=None; expected one of enc-self, cross")):
        plots.heatmap(both)
    with pytest.raises(ValueError, match=whole("no single kind: got kind='dec-self'; expected one of enc-self")):
        plots.heatmap(one, kind="dec-self")
    with pytest.raises(ValueError, match=whole("unknown order: got 'rank'; expected 'head' or 'sorted'")):
        plots.heatmap(one, order="rank")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError,
        match=whole(
            "not a column of numbers: got a DataFrame (confidence) with 2 rows, index kind, layer, head; "
            "expected one such as heads['confidence']"
        ),
    ):
        plots.heatmap(one.to_frame())  # type: ignore[arg-type]
    with pytest.raises(
        ValueError,
        match=whole(
            "not a column of numbers: got a Series (object) with 2 rows, index kind, layer, head; "
            "expected one such as heads['confidence']"
        ),
    ):
        plots.heatmap(one.astype(object))
    with pytest.raises(ValueError, match=whole("nothing to draw: 'confidence' has no value for any of 2 heads")):
        plots.heatmap(one * np.nan)
    with pytest.raises(ValueError, match=whole("nothing to draw: 'confidence' has no value for any of 4 heads")):
        plots.heatmaps(both * np.nan)
    with pytest.raises(
        ValueError,
        match=whole("not a head table: got [0.1, 0.2]; expected one row per head, indexed by kind, layer and head"),
    ):
        plots.heatmap([0.1, 0.2])  # type: ignore[arg-type]
    for wrong, said in [
        (one.reset_index(drop=True), "2 rows, index None"),
        (one.iloc[:0], "0 rows, index kind, layer, head"),
        (pd.concat([one, one]), "4 rows, index kind, layer, head"),
    ]:
        expected = "expected one row per head, indexed by kind, layer and head"
        message = f"not a head table: got a Series (float64) with {said}; {expected}"
        with pytest.raises(ValueError, match=whole(message)):
            plots.heatmap(wrong)
    assert plt.get_fignums() == []  # an error leaves no empty figure behind


# roles


def table_of_roles() -> pd.DataFrame:
    """Two layers of three heads; the last has no role."""
    held = {
        "positional[-1]": {(0, 0): (0.95, 1.0)},
        "positional[+1]": {(0, 1): (0.9, 0.5)},
        "syntactic[nsubj dep>head]": {(0, 0): (0.4, 1.0)},
        "syntactic[advmod head>dep]": {(1, 0): (1.0, 1.0)},
        "syntactic[nmod:poss dep>head]": {(1, 1): (0.3, 1.0)},
        "syntactic[ccomp head>dep]": {(1, 1): (0.3, 0.94)},
        "rare": {(0, 2): (0.66, 0.95), (1, 0): (0.6, 1.0)},
        "sink[first]": {(1, 1): (0.5, 1.0)},
        "sink[special]": {(1, 1): (0.8, 1.0)},
        "alignment[monotone]": {},
        "copying": {(0, 1): (0.7, float("nan"))},
    }
    table = pd.DataFrame(index=index(enc_self=(2, 3)))
    for name, where in held.items():
        rows = [where.get((layer, head)) for _, layer, head in table.index]
        table[name] = [row is not None for row in rows]
        table[f"{name}.value"] = [row[0] if row else 0.05 for row in rows]
        table[f"{name}.stability"] = [row[1] if row else 1.0 for row in rows]
    return table


def bands(ax: Any) -> dict[tuple[int, int], list[tuple[str, tuple[float, ...]]]]:
    """The bands of each (layer, head), from the top: text and colour."""
    found: dict[tuple[int, int], list[tuple[float, str, tuple[float, ...]]]] = {}
    for patch, text in zip(ax.patches, ax.texts, strict=True):
        x, y = text.get_position()
        assert patch.get_x() < x < patch.get_x() + patch.get_width()
        assert patch.get_y() < y < patch.get_y() + patch.get_height()
        found.setdefault((int(y), int(x)), []).append((-y, text.get_text(), patch.get_facecolor()[:3]))
    return {cell: [band[1:] for band in sorted(each)] for cell, each in found.items()}


def tint(colour: str, value: float) -> Any:
    return pytest.approx([1 - (0.15 + 0.85 * value) * (1 - part) for part in to_rgb(colour)])


def test_roles_labels_and_colours_every_role_of_every_head() -> None:
    ax = plots.roles(table_of_roles())
    drawn = bands(ax)
    assert {cell: [text for text, _ in each] for cell, each in drawn.items()} == {
        (0, 0): ["−1", "s→v"],
        (0, 1): ["+1?", "copying"],
        (0, 2): ["rare"],
        (1, 0): ["v→adv", "rare"],
        (1, 1): ["nmod:poss↑", "ccomp↓?", "sink"],
    }
    assert drawn[0, 0][0][1] == tint(BLUE, 0.95)
    assert drawn[0, 0][1][1] == tint(GREEN, 0.4)
    assert drawn[0, 2][0][1] == tint(VERMILION, 0.66)
    assert drawn[1, 1][2][1] == tint("#cc78bc", 0.8)  # of two kinds of sink, the larger score
    assert drawn[0, 1][1][1] == tint("#56b4e9", 0.7)  # a family of the user's own
    assert mesh(ax).tolist() == [[0, 0, 0], [0, 0, 0]]  # the pale cells behind
    assert ax.get_ylim() == (0, 2)
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) == ("encoder self-attention", "head", "layer")


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
    assert words(plots.roles(table).get_legend().get_texts()) == [
        "rare (2): at the rarest token",
        "no role (4)",
        "score 0, ½, 1",
    ]


def test_roles_draws_a_table_without_a_single_role_held_and_absent_heads() -> None:
    where = frame.index({("cross", 0): 2, ("cross", 1): 1})
    table = pd.DataFrame({"rare": False, "rare.value": 0.1, "rare.stability": 1.0, "confidence": 0.5}, where)
    ax = plots.roles(table)
    assert not ax.patches
    assert mesh(ax).tolist() == [[0, 0], [0, None]]
    assert words(ax.get_legend().get_texts())[:1] == ["no role (3)"]


def test_roles_draws_the_kind_on_given_axes() -> None:
    table = pd.concat(
        [table_of_roles().assign(rare=False), table_of_roles().rename({"enc-self": "cross"}, level="kind")]
    )
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
    assert {
        cell: [text for text, _ in each] for cell, each in bands(plots.roles(role_rules.roles(scores))).items()
    } == {
        (0, 0): ["−1", "+1", "rare", "sink"],
        (1, 0): ["rare", "sink"],
    }


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


def test_roles_errors() -> None:
    table = pd.DataFrame({"confidence": 0.5}, index(enc_self=(1, 2)))
    with pytest.raises(
        ValueError,
        match=whole(
            "no roles in the table: got a DataFrame (confidence) with 2 rows, index kind, layer, head; "
            "make them with hr.roles(heads)"
        ),
    ):
        plots.roles(table)
    with pytest.raises(ValueError, match=whole("no single kind: got kind='cross'; expected one of enc-self")):
        plots.roles(table, kind="cross")
    assert plt.get_fignums() == []


# attention


def test_attention_shows_the_weights_with_tokens_on_both_axes() -> None:
    weights = pd.DataFrame([[0.1, 0.9, 0.0], [0.3, 0.3, 0.4]], index=["the", "the"], columns=["$5", "la", "la"])
    ax = plots.attention(weights, vmax=1)
    assert np.array_equal(mesh(ax), weights.to_numpy())
    assert words(ax.get_yticklabels()) == ["the", "the"]
    assert words(ax.get_xticklabels()) == [r"\$5", "la", "la"]  # no mathematics in a token
    assert ax.get_ylim() == (2, 0)  # the sentence is read downwards
    assert ax.get_aspect() == 1
    assert ax.collections[0].get_clim() == (0, 1)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    assert ax.collections[0].colorbar.ax.get_ylabel() == "weight"


@pytest.mark.slow
@pytest.mark.parametrize("length", [4, 60])
def test_tokens_do_not_overlap(length: int) -> None:
    tokens = ["unbelievably" if place % 7 == 0 else "the" for place in range(length)]
    ax = plots.attention(pd.DataFrame(np.eye(length), tokens, tokens))
    ax.figure.canvas.draw()
    across = [label.get_window_extent() for label in ax.get_xticklabels()]
    up = [label.get_window_extent() for label in ax.get_yticklabels()]
    assert len(across) == len(up) == length
    assert all(left.x1 <= right.x0 for left, right in zip(across, across[1:], strict=False))
    assert all(lower.y1 <= upper.y0 for upper, lower in zip(up, up[1:], strict=False))
    figure = ax.figure.bbox
    assert min(box.y0 for box in across) >= figure.y0
    assert min(box.x0 for box in up) >= figure.x0


def test_attention_draws_on_given_axes_and_names_what_the_table_names() -> None:
    ax = plt.figure().add_subplot()
    weights = pd.DataFrame(np.eye(2), pd.Index(["a", "b"], name="target"), pd.Index(["c", "d"], name="source"))
    assert plots.attention(weights, ax=ax) is ax
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("source", "target")
    assert len(plt.get_fignums()) == 1


def test_attention_errors() -> None:
    for wrong, said in [
        (pd.DataFrame(), "a DataFrame (no columns) with 0 rows, index None"),
        ("abc", "'abc'"),
    ]:
        message = f"not a table of weights: got {said}; expected a row per query token, a column per key token"
        with pytest.raises(ValueError, match=whole(message)):
            plots.attention(wrong)  # type: ignore[arg-type]


# offsets


def distances() -> pd.DataFrame:
    rows = [("obj", -30, 1, 0.1), ("obj", -11, 1, 0.1), ("obj", 1, 8, 0.8), ("amod", -1, 1500, 0.75)]
    return pd.DataFrame([*rows, ("amod", 12, 500, 0.25)], columns=["relation", "offset", "count", "share"])


def heights(ax: Any) -> dict[int, float]:
    return {
        round(patch.get_x() + patch.get_width() / 2): pytest.approx(patch.get_height())
        for patch in ax.patches
        if patch.get_height()
    }


def test_offsets_draws_one_histogram_per_relation_with_gathered_tails() -> None:
    left, right = plots.offsets(distances())
    assert (left.get_title(), right.get_title()) == ("obj (n = 10)", "amod (n = 2,000)")
    assert heights(left) == {-11: 0.2, 1: 0.8}
    assert heights(right) == {-1: 0.75, 11: 0.25}
    assert left.get_xticks().tolist() == [-11, -5, 0, 5, 11]
    assert words(left.get_xticklabels()) == ["<−10", "−5", "0", "+5", ">+10"]
    assert (left.get_xlim(), left.get_ylim()) == (right.get_xlim(), right.get_ylim())
    assert (left.get_xlabel(), left.get_ylabel()) == ("offset of the head (words)", "share")


def test_offsets_takes_a_limit_and_axes() -> None:
    figure, axes = plt.subplots(2, 1)
    drawn = plots.offsets(distances(), limit=4, axes=axes)
    assert drawn == list(axes)
    assert heights(drawn[0]) == {-5: 0.2, 1: 0.8}
    assert words(drawn[0].get_xticklabels()) == ["<−4", "−2", "0", "+2", ">+4"]
    assert plt.get_fignums() == [figure.number]


def test_offsets_errors() -> None:
    message = "the table has 2 relations and needs as many axes; got 1"
    with pytest.raises(ValueError, match=whole(message)):
        plots.offsets(distances(), axes=[plt.figure().add_subplot()])
    message = (
        "not a table of hr.data.offsets: got a DataFrame (relation, offset, count) with 5 rows, index None; "
        "expected columns count, offset, relation, share"
    )
    with pytest.raises(ValueError, match=whole(message)):
        plots.offsets(distances().drop(columns="share"))


# dependency


def syntax() -> pd.DataFrame:
    """Two relations scored, the second only one way and without an interval; a third that the corpus does not have."""
    return pd.DataFrame(
        {
            "syntax[obj dep>head]": [0.2, 0.8, np.nan, 0.5],
            "syntax[obj dep>head].low": [0.1, 0.7, np.nan, 0.4],
            "syntax[obj dep>head].high": [0.3, 0.85, np.nan, 0.6],
            "syntax[obj dep>head].baseline": 0.4,
            "syntax[obj dep>head].words": 1390.0,
            "syntax[obj head>dep]": [0.2, 0.3, 0.6, 0.5],
            "syntax[obj head>dep].low": [0.1, 0.2, 0.5, 0.4],
            "syntax[obj head>dep].high": [0.3, 0.4, 0.7, 0.6],
            "syntax[obj head>dep].baseline": 0.3,
            "syntax[nmod:poss head>dep]": [0.2, 0.3, 0.4, 0.9],
            "syntax[nmod:poss head>dep].baseline": 0.1,
            "syntax[expl head>dep]": np.nan,
        },
        index(enc_self=(2, 2)),
    )


def test_dependency_shows_the_best_heads_their_intervals_and_the_baseline() -> None:
    ax = plots.dependency(syntax())
    best, baseline = ax.containers
    assert [bar.get_height() for bar in best] == [0.8, 0.6, 0.9]
    assert [bar.get_height() for bar in baseline] == [0.4, 0.3, 0.1]
    intervals = ax.collections[0].get_segments()[:2]  # the third has none
    assert [tuple(line[:, 1]) for line in intervals] == [(0.7, 0.85), (0.5, 0.7)]
    middles = [bar.get_x() + bar.get_width() / 2 for bar in best]
    assert [line[0, 0] for line in intervals] == pytest.approx(middles[:2])
    assert words(ax.texts) == ["L0H1", "L1H0", "L1H1"]
    assert [text.xy for text in ax.texts] == [pytest.approx(at) for at in zip(middles, [0.85, 0.7, 0.9], strict=True)]
    assert words(ax.get_xticklabels()) == ["o→v\nobj\nn = 1,390", "v→o\nobj", "nmod:poss↓\nnmod:poss"]
    assert words(ax.get_legend().get_texts()) == ["best head, 95 % interval", "best fixed offset"]
    assert (ax.get_title(), ax.get_ylabel()) == ("encoder self-attention", "accuracy")


def test_dependency_draws_on_given_axes() -> None:
    table = pd.concat([syntax(), (syntax() / 2).rename({"enc-self": "cross"}, level="kind")])
    ax = plt.figure().add_subplot()
    assert plots.dependency(table, kind="cross", ax=ax) is ax
    assert [bar.get_height() for bar in ax.containers[0]] == [0.4, 0.3, 0.45]
    assert ax.get_title() == "cross-attention"
    assert len(plt.get_fignums()) == 1


def test_dependency_errors() -> None:
    table = pd.DataFrame({"confidence": 0.5, "syntax[obj dep>head].baseline": 0.5}, index(enc_self=(1, 2)))
    message = (
        "no values of syntax: got a DataFrame (confidence, syntax[obj dep>head].baseline) with 2 rows, index layer, "
        "head; make them with hr.score(..., ['syntax'])"
    )
    with pytest.raises(ValueError, match=whole(message)):
        plots.dependency(table)
    with pytest.raises(ValueError, match=whole("no single kind: got kind=None; expected one of enc-self, cross")):
        plots.dependency(pd.concat([syntax(), syntax().rename({"enc-self": "cross"}, level="kind")]))
    assert plt.get_fignums() == []


@pytest.mark.slow
def test_every_figure_can_be_rendered_and_lies_within_its_page() -> None:
    drawn = [
        plots.heatmap(column(index(enc_self=(6, 12)), name="a name that is rather long [of its detail]")),
        plots.roles(table_of_roles()),
        plots.offsets(distances())[0],
        plots.dependency(syntax()),
    ]
    for ax in drawn:
        ax.figure.canvas.draw()
        page, used = ax.figure.bbox, ax.figure.get_tightbbox(ax.figure.canvas.get_renderer())
        dpi = ax.figure.dpi
        assert used.x0 * dpi >= page.x0 - 1
        assert used.y0 * dpi >= page.y0 - 1
        assert used.x1 * dpi <= page.x1 + 1
        assert used.y1 * dpi <= page.y1 + 1


def _luminance(colour):
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3]]
    return np.dot([0.2126, 0.7152, 0.0722], linear)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["confidence", "ablation[loss]", "ablation[bleu]"])
def test_numbers_are_readable_on_every_colour(name):
    values = pd.Series(np.linspace(-1, 1, 96), frame.index({("enc-self", layer): 12 for layer in range(8)}), name=name)
    ax = plots.heatmap(values.abs() if name == "confidence" else values, annotate=True)
    ax.figure.canvas.draw()
    faces = ax.collections[0].get_facecolor()
    assert len(ax.texts) == 96
    for note in ax.texts:
        column, row = map(int, note.get_position())
        light, dark = sorted((_luminance(faces[12 * row + column]), _luminance(to_rgb(note.get_color()))), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 3.8
