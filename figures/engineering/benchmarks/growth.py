"""How cost grows with heads, length and corpus, ours and that of TransformerLens."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import attention
import attributing
import closing
import numpy as np
import pandas as pd
from setting import Setting, marian, setting
from timing import times_of

SMALL = {"words": 1000, "layers": 2, "width": 128}
POINTS = {"heads": (4, 8, 16, 32), "words": (16, 64, 256), "sentences": (50, 200, 800)}
FEW = {"heads": (2, 4), "words": (2, 4), "sentences": (2, 4)}
RUNS = {
    "statistics": {"ours": attention.ours, "TransformerLens": attention.transformer_lens},
    "ablation": {"ours": closing.ours, "TransformerLens": closing.transformer_lens},
    "relevance": {"ours": partial(attributing.ours, rules="cp"), "TransformerLens": attributing.transformer_lens},
}


def grown(repeats: int, points: dict[str, tuple[int, ...]] = POINTS) -> dict[str, dict[str, Any]]:
    """What grows -> job and tool -> processor times over that at the first point, and the slope of their logarithms."""
    return {axis: _along(axis, values, repeats) for axis, values in points.items()}


def table(found: dict[str, dict[str, Any]]) -> str:
    """What `grown` gives, to be read."""
    parts = []
    for axis, rows in found.items():
        ran = {name: row for name, row in rows.items() if "why not" not in row}
        columns = {name: {**row["times / first"], "exponent": row["exponent"]} for name, row in ran.items()}
        parts.append(f"time over that at the first point, by {axis}\n{pd.DataFrame(columns).T.to_string()}")
        parts += [f"  {name}: {row['why not']}" for name, row in rows.items() if name not in ran]
    return "\n".join(parts)


def of(axis: str, value: int) -> Setting:
    """A small Marian and a corpus, one of whose sizes is `value`."""
    sizes = {"heads": 8, "words": 16, "sentences": 20} | {axis: value}
    few = None if axis == "heads" else closing.TOGETHER  # ablation: of how many heads does not matter to growth
    return setting(marian(**SMALL, heads=sizes["heads"]), sizes["sentences"], sizes["words"], few=few)


def exponent(values: tuple[int, ...], times: list[float]) -> float:
    """The slope of log time against log value: 1 where twice as much takes twice as long."""
    return round(float(np.polyfit([math.log(value) for value in values], np.log(times), 1)[0]), 2)


def _along(axis: str, values: tuple[int, ...], repeats: int) -> dict[str, Any]:
    settings = [of(axis, value) for value in values]
    found = {}
    for job, tools in RUNS.items():
        for tool, make in tools.items():
            try:
                times = _times(make, settings, repeats if job == "ablation" else 3 * repeats)
            except ImportError as error:
                found[f"{job}, {tool}"] = {"why not": str(error)}
                continue
            ratios = [time / times[0] for time in times]
            found[f"{job}, {tool}"] = {
                "times / first": {str(value): round(ratio, 2) for value, ratio in zip(values, ratios, strict=True)},
                "exponent": exponent(values, ratios),
            }
    return found


def _times(make: Callable[[Setting], Callable[[], object]], settings: list[Setting], repeats: int) -> list[float]:
    runs = {str(number): make(each) for number, each in enumerate(settings)}
    next(iter(runs.values()))()  # to warm up
    return [statistics.median(times) for times in times_of(runs, repeats).values()]
