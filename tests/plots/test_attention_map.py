"""Figures of attention, offsets and dependencies show exactly the table."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers.drawn import distances, mesh, syntax, words

from headroles import plots
from headroles.plots import gallery

pytestmark = pytest.mark.usefixtures("nothing_shown")


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


def heights(ax: Any) -> dict[int, float]:
    bars = [patch for patch in ax.patches if patch.get_height()]
    return {round(bar.get_x() + bar.get_width() / 2): pytest.approx(bar.get_height()) for bar in bars}


def test_offsets_draws_one_histogram_per_relation_with_gathered_tails() -> None:
    left, right = plots.offsets(distances())
    assert (left.get_title(), right.get_title()) == ("object (n = 10)", "adjective (n = 2,000)")
    assert heights(left) == {-11: 0.2, 1: 0.8}
    assert heights(right) == {-1: 0.75, 11: 0.25}
    assert left.get_xticks().tolist() == [-11, -5, 0, 5, 11]
    assert words(left.get_xticklabels()) == ["<−10", "−5", "0", "+5", ">+10"]
    assert (left.get_xlim(), left.get_ylim()) == (right.get_xlim(), right.get_ylim())
    assert (left.get_xlabel(), left.get_ylabel()) == ("words", "share of the words")
    assert left.figure.get_suptitle() == (
        "Where the word stands that each depends on:\nwords after it (+) or before it (−)"
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


def test_a_relation_of_two_words_has_no_bar() -> None:
    table = syntax()
    assert [figure.name for figure in gallery.figures(["heads"], lambda _: table)] == ["dependency-enc-self"]
    table["syntax[obj dep>head].words"] = 2
    assert [*gallery.figures(["heads"], lambda _: table)] == []  # of no relation more are known
    ax = plots.dependency(table)
    assert [bar.get_height() for bar in ax.containers[0]] == [0.6, 0.9]
    assert ax.get_xlabel() == "not drawn, of fewer than 10 words: o→v"


def test_dependency_draws_on_given_axes() -> None:
    table = pd.concat([syntax(), (syntax() / 2).rename({"enc-self": "cross"}, level="kind")])
    ax = plt.figure().add_subplot()
    assert plots.dependency(table, kind="cross", ax=ax) is ax
    assert [bar.get_height() for bar in ax.containers[0]] == [0.4, 0.3, 0.45]
    assert ax.get_title() == "cross-attention"
    assert len(plt.get_fignums()) == 1
