"""Scales and colours: limits and colours of a column, fixed hues, names of metrics and their direction (no torch)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import TypedDict

import numpy as np
import pandas as pd

RGB = tuple[float, float, float]
WORSE = {  # metric -> the sign of a change for the worse
    **{"loss": 1, "perplexity": 1},
    **{"agreement": -1, "accuracy": -1, "f1": -1, "matthews": -1, "bleu": -1, "chrf": -1},
    **{"pair_accuracy": -1, "pair_difference": -1},
}
SMALLER_IS_BETTER = tuple(metric for metric, sign in WORSE.items() if sign > 0)
NAMES = {"agreement": "agreement with the intact model", "bleu": "BLEU", "chrf": "chrF", "f1": "F1"}
NAMES |= {"pair_accuracy": "accuracy on minimal pairs", "pair_difference": "difference of minimal pairs"}
UNITS = {"loss": "nats", "pair_difference": "nats"}
GREY = 7  # the place of grey in seaborn's "colorblind"
HUES = {  # what is drawn -> the place of its colour in seaborn's "colorblind", the same in all figures
    **{"enc-self": 0, "dec-self": 1, "cross": 2},
    **{"positional": 0, "syntactic": 2, "rare": 3, "alignment": 8, "sink": 4, "induction": 1, "duplicate": 5},
    **{"several": 9, "none": GREY},
}
_OTHERS = (9, 6, GREY)  # of families of the user's own


class Scale(TypedDict):
    """Limits and colours of a map."""

    vmin: float
    vmax: float
    cmap: str


def scale(values: pd.Series[float], vmin: float | None, vmax: float | None, cmap: str | None) -> Scale:
    """Choose limits and colours of a heatmap: from 0, or around 0 for effects of ablation and negative values."""
    known = values.astype(float)[np.isfinite(values.astype(float))]
    low, high = min([0.0, *known]), max([0.0, *known])
    if cmap is None and (low < 0 or harm(values.name) != 0):
        far = max((abs(end) for end in (vmin, vmax) if end is not None), default=max(-low, high)) or 1.0
        return {"vmin": -far, "vmax": far, "cmap": palette(values.name)}
    return {"vmin": low if vmin is None else vmin, "vmax": high if vmax is None else vmax, "cmap": cmap or "YlGnBu"}


def harm(column: object) -> int:
    """Return 1 or -1, the sign of harm in a column of effects, by default -1 as of `Metric`; 0 for other columns."""
    metric = _metric(column)
    return 0 if metric is None else WORSE.get(metric, -1)


def palette(column: object) -> str:
    """Return the colours around zero: red is harm in effects of ablation, other measurements have no red."""
    return {1: "vlag", -1: "vlag_r", 0: "BrBG"}[harm(column)]


def red(column: object) -> str:
    """Return what red means in a column of effects: "worse" or "less"."""
    return "worse" if _metric(column) in WORSE else "less"


def metric_name(metric: str) -> str:
    """Return the name of a metric, with its unit: BLEU, loss (nats)."""
    return NAMES.get(metric, metric) + (f" ({UNITS[metric]})" if metric in UNITS else "")


def colours(names: Iterable[str], *, shade: float = 1) -> dict[str, RGB]:
    """Return the colour of each name, a fixed one if it is in `HUES`; lines are thin and take a darker shade."""
    others = cycle(_OTHERS)
    return {name: hue(HUES[name] if name in HUES else next(others), shade) for name in dict.fromkeys(names)}


def hue(place: int, shade: float = 1) -> RGB:
    """Return a colour of seaborn's "colorblind", as red, green and blue from 0 to 1."""
    import seaborn as sns

    red, green, blue = sns.color_palette("colorblind")[place]
    return shade * red, shade * green, shade * blue


def readable(face: Sequence[float]) -> str:
    """Return the colour of text with the larger contrast on a face (WCAG 2.2, relative luminance)."""
    from seaborn.utils import relative_luminance

    return "0.15" if (relative_luminance(face) + 0.05) ** 2 > 1.05 * 0.07 else "white"  # 0.15 has a luminance of 0.02


def _metric(column: object) -> str | None:
    """Metric of a column of effects: `loss` of `ablation[loss rest]`; None for other columns."""
    match = re.match(r"ablation\[([^\] ]+)", str(column))
    return None if match is None else match[1]
