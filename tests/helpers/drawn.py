"""Tables to draw, and what is read from an Axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headroles.tables import frame


def index(**sizes: tuple[int, int]) -> pd.MultiIndex:
    layers = ((kind.replace("_", "-"), layer, wide) for kind, (deep, wide) in sizes.items() for layer in range(deep))
    return frame.index({(kind, layer): wide for kind, layer, wide in layers})


def column(index: pd.MultiIndex, *, seed: int = 0, name: str = "confidence") -> pd.Series:
    return pd.Series(np.random.default_rng(seed).random(len(index)), index, name=name)


def mesh(ax: Any) -> np.ma.MaskedArray:
    return ax.collections[0].get_array()


def cells(ax: Any) -> dict[tuple[int, int], str]:
    """Texts by (row, column) of the cell they are in."""
    return {(int(text.get_position()[1]), int(text.get_position()[0])): text.get_text() for text in ax.texts}


def assert_within_the_page(ax: Any) -> None:
    ax.figure.canvas.draw()
    page, used = ax.figure.bbox, ax.figure.get_tightbbox(ax.figure.canvas.get_renderer())
    dpi = ax.figure.dpi
    assert min(used.x0 * dpi - page.x0, used.y0 * dpi - page.y0) >= -1
    assert max(used.x1 * dpi - page.x1, used.y1 * dpi - page.y1) <= 1


def words(labels: Any) -> list[str]:
    return [label.get_text() for label in labels]


# roles
def table_of_roles() -> pd.DataFrame:
    """Two layers of three heads; the last has no role."""
    held = {
        "positional[-1]": {(0, 0): (0.95, 1.0)}, "positional[+1]": {(0, 1): (0.9, 0.5)},
        "syntactic[nsubj dep>head]": {(0, 0): (0.4, 1.0)}, "syntactic[advmod head>dep]": {(1, 0): (1.0, 1.0)},
        "syntactic[nmod:poss dep>head]": {(1, 1): (0.3, 1.0)}, "syntactic[ccomp head>dep]": {(1, 1): (0.3, 0.94)},
        "rare": {(0, 2): (0.66, 0.95), (1, 0): (0.6, 1.0)}, "sink[first]": {(1, 1): (0.5, 1.0)},
        "sink[special]": {(1, 1): (0.8, 1.0)}, "alignment[monotone]": {}, "copying": {(0, 1): (0.7, float("nan"))}
    }  # fmt: skip
    table = pd.DataFrame(index=index(enc_self=(2, 3)))
    for name, where in held.items():
        rows = [where.get((layer, head)) for _, layer, head in table.index]
        table[name] = [row is not None for row in rows]
        table[f"{name}.value"] = [row[0] if row else 0.05 for row in rows]
        table[f"{name}.stability"] = [row[1] if row else 1.0 for row in rows]
    return table


# offsets
def distances() -> pd.DataFrame:
    rows = [("obj", -30, 1, 0.1), ("obj", -11, 1, 0.1), ("obj", 1, 8, 0.8), ("amod", -1, 1500, 0.75)]
    return pd.DataFrame([*rows, ("amod", 12, 500, 0.25)], columns=["relation", "offset", "count", "share"])


# dependency
def syntax() -> pd.DataFrame:
    """Two relations scored, the second only one way and without an interval; a third that the corpus does not have."""
    return pd.DataFrame(
        {"syntax[obj dep>head]": [0.2, 0.8, np.nan, 0.5], "syntax[obj dep>head].low": [0.1, 0.7, np.nan, 0.4],
         "syntax[obj dep>head].high": [0.3, 0.85, np.nan, 0.6], "syntax[obj dep>head].baseline": 0.4,
         "syntax[obj dep>head].words": 1390.0, "syntax[obj head>dep]": [0.2, 0.3, 0.6, 0.5],
         "syntax[obj head>dep].low": [0.1, 0.2, 0.5, 0.4], "syntax[obj head>dep].high": [0.3, 0.4, 0.7, 0.6],
         "syntax[obj head>dep].baseline": 0.3, "syntax[nmod:poss head>dep]": [0.2, 0.3, 0.4, 0.9],
         "syntax[nmod:poss head>dep].baseline": 0.1, "syntax[expl head>dep]": np.nan},
        index(enc_self=(2, 2)),
    )  # fmt: skip


def marks(line):
    return list(zip(line.get_xdata(), line.get_ydata(), strict=True))
