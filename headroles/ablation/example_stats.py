"""Examples: what was measured of each by the intact model and by every variant, so that statistics need no model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headroles.ablation.metrics import Metric

Array = npt.NDArray[np.float64]
HeadSet = frozenset[Any]  # the heads a variant closes, (kind, layer, head) each


@dataclass(frozen=True)
class ExampleStats:
    """Statistics of each example: by the intact model, and by each variant; NaN where a variant was not run."""

    intact: Array  # [example, statistic]
    closed: dict[HeadSet, Array]  # [example, statistic] for each set of closed heads
    numbers: list[int]  # of the examples in the corpus
    too_long: int
    metric: Metric
    signature: str = ""

    def take(self, rows: npt.NDArray[np.int64]) -> ExampleStats:
        """The same of some examples, by their places in `numbers`."""
        closed = {key: values[rows] for key, values in self.closed.items()}
        return replace(self, intact=self.intact[rows], closed=closed, numbers=[self.numbers[row] for row in rows])

    def table(self) -> pd.DataFrame:
        """A row per variant and example: `closed` (heads as kind:layer:head; none: intact), `example`, statistics."""
        names = self.metric.names(self.intact.shape[1])
        every = [("intact", self.intact), *((written(key), values) for key, values in self.closed.items())]
        table = pd.DataFrame(np.concatenate([values for _, values in every]), columns=names)
        table.insert(0, "example", np.tile(self.numbers, len(every)))
        table.insert(0, "closed", np.repeat([key for key, _ in every], len(self.numbers)))
        table.attrs["signatures"] = dict.fromkeys(table.columns, f"too_long:{self.too_long}|{self.signature}")
        return table

    @staticmethod
    def of(table: pd.DataFrame, metric: Metric) -> ExampleStats:
        """The sweep of a metric that a table of it tells."""
        parts = {str(key): part for key, part in table.groupby("closed", sort=False, observed=True)}
        values = {key: part.drop(columns=["closed", "example"]).to_numpy(float) for key, part in parts.items()}
        first, _, text = table.attrs["signatures"]["example"].partition("|")
        intact = values.pop("intact")
        closed = {_read(key): each for key, each in values.items()}
        numbers = parts["intact"]["example"].tolist()
        return ExampleStats(intact, closed, numbers, int(first.partition(":")[2]), metric, text)


def written(closed: HeadSet) -> str:
    """A set of heads in words: "enc-self:0:1 cross:2:3"; "none" without any."""
    return " ".join(":".join(map(str, head)) for head in sorted(closed)) or "none"


def _read(text: str) -> HeadSet:
    parts = [head.split(":") for head in text.split()] if text != "none" else []
    return frozenset((kind, int(layer), int(head)) for kind, layer, head in parts)
