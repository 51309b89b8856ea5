"""A graded frame says the table's numbers with their intervals, and colours them by their values."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

import headroles as hr
from headroles import plots
from headroles.tables import frame

WHERE = frame.index({("enc-self", 0): 3})


def cells(styler: object) -> list[str]:
    return re.findall(r'class="data row\d+ col\d+"\s*>(.*?)</td>', styler.to_html())  # type: ignore[attr-defined]


def test_cells_say_number_and_interval_as_often_as_they_are_shown():
    columns = {"confidence": [0.5, 0.25, np.nan], "confidence.low": [0.4, np.nan, 0], "confidence.high": [0.6, 0.3, 1]}
    table = frame.table({**columns, "words": [3, 2, 1], "rare": [True, False, False]}, WHERE, "s")
    shown = hr.style_table(table, decimals=2)
    expected = ["0.50 [0.40, 0.60]", "3", "True", "0.25", "2", "False", "", "1", "False"]
    assert cells(shown) == expected
    assert cells(shown) == expected


def test_colours_follow_the_values_and_are_around_zero_where_signs_differ():
    table = pd.DataFrame({"up": [1.0, 2, 3], "both": [-1.0, 0, 4]})
    html = hr.style_table(table).to_html()
    colours = dict(re.findall(r"#T_\w+_(row\d_col\d) \{[^}]*background-color: (#\w+)", html))
    assert len({colours[f"row{i}_col0"] for i in range(3)}) == 3
    red, green, blue = (int(colours["row1_col1"][i : i + 2], 16) for i in (1, 3, 5))
    assert min(red, green, blue) > 230  # zero is almost white


@pytest.mark.parametrize(("name", "values"), [("ablation[bleu]", [0, -2]), ("ablation[loss all_but_one]", [0, 2])])
def test_red_is_harm_also_where_no_head_helps(name, values):
    html = hr.style_table(pd.DataFrame({name: values}, dtype=float)).to_html()
    zero, most = re.findall(r"background-color: #(\w{6})", html)
    assert min(bytes.fromhex(zero)) > 230  # almost white
    red, _, blue = bytes.fromhex(most)
    assert red > blue + 60


def test_counts_p_and_what_is_missing_have_no_colour_and_what_is_in_a_cell_is_text():
    table = pd.DataFrame({"auc": [0.5, 0.9, np.nan], "p": [0.0004, 0.5, 1.0], "with": [3, 2, 1]})
    html = hr.style_table(table).to_html()
    assert set(re.findall(r"(row\d_col\d) \{[^}]*background-color", html)) == {"row0_col0", "row1_col0"}
    assert cells(hr.style_table(table, ["p"]))[0] == "&lt;0.001"
    html = hr.style_table(pd.DataFrame({"note": ["<script>alert(1)</script>", None]})).to_html()
    assert "<script>alert" not in html
    assert "&lt;script&gt;" in html


def test_headings_and_names_of_rows_are_no_html():
    """A script in the name of a column ran in the browser."""
    script = "<script>alert(1)</script>"
    index = pd.MultiIndex.from_tuples([(script, 0)], names=[script, None])
    tables = {script: [1.0]}, {script: [True], f"{script}.value": [1.0], f"{script}.stability": [0.5]}
    for columns in tables:
        html = hr.style_table(pd.DataFrame(columns, index=index)).to_html()
        assert "<script>" not in html
        assert html.count("&lt;script&gt;") >= 3


pytestmark = pytest.mark.usefixtures("nothing_shown")


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


def test_columns_of_one_unit_have_one_scale():
    """Half is one colour as a share of the weight and as an accuracy; nats and words have scales of their own."""
    shares = {"confidence": [0.0, 0.5, 0.9], "rarity": [0.5, 0.1, 0.2], "entropy": [0.0, 0.5, 3.0]}
    effects = {"ablation[loss]": [0.5, 0, 2.0], "ablation[loss all_but_one]": [0.1, 0, 0.5]}
    html = hr.style_table(pd.DataFrame(shares | effects)).to_html()
    rules = re.findall(r"((?:#T_\w+_row\d_col\d(?:, )?)+) \{[^}]*background-color: (#\w+)", html)
    colours = {cell[-9:]: colour for cells, colour in rules for cell in cells.split(", ")}
    assert colours["row1_col0"] == colours["row0_col1"]  # 0.5 of both
    assert colours["row1_col0"] != colours["row1_col2"]
    assert colours["row0_col3"] == colours["row2_col4"]  # 0.5 nats


def test_a_column_of_zeros_has_a_scale():
    values = pd.Series(0.0, WHERE, name="sink[special]")
    assert plots.heatmap(values).collections[0].get_clim() == (0, 1)
