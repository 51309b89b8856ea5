"""Example statistics: those of each example by the intact model and by every variant with masked heads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headroles.ablation.metrics import Metric

Array = npt.NDArray[np.float64]
HeadSet = frozenset[Any]  # the heads that a variant masks: (kind, layer, head)


@dataclass(frozen=True)
class ExampleStats:
    """Statistics of each example by the intact model and by each variant; NaN where a variant was not run.

    Attributes:
        intact: Statistics of the intact model: [example, statistic].
        closed: Statistics of each variant by the set of its masked heads: [example, statistic].
        numbers: Numbers of the examples in the corpus.
        too_long: Number of examples left out because they are too long.
        metric: The metric that reads and combines the statistics.
        signature: Provenance of the statistics.
    """

    intact: Array  # [example, statistic]
    closed: dict[HeadSet, Array]  # [example, statistic]
    numbers: list[int]
    too_long: int
    metric: Metric
    signature: str = ""

    def take(self, rows: npt.NDArray[np.int64]) -> ExampleStats:
        """Return the statistics of some examples, by their places in `numbers`."""
        closed = {key: values[rows] for key, values in self.closed.items()}
        return replace(self, intact=self.intact[rows], closed=closed, numbers=[self.numbers[row] for row in rows])

    def table(self) -> pd.DataFrame:
        """Return a table with a row per variant and example.

        Returns:
            Columns `closed` (the masked heads as kind:layer:head, "none" without any, or "intact"), `example`, and the
            statistics of the metric.
        """
        names = self.metric.names(self.intact.shape[1])
        parts = [("intact", self.intact), *((written(key), values) for key, values in self.closed.items())]
        table = pd.DataFrame(np.concatenate([values for _, values in parts]), columns=names)
        table.insert(0, "example", np.tile(self.numbers, len(parts)))
        table.insert(0, "closed", np.repeat([key for key, _ in parts], len(self.numbers)))
        table.attrs["signatures"] = dict.fromkeys(table.columns, f"too_long:{self.too_long}|{self.signature}")
        return table

    @staticmethod
    def of(table: pd.DataFrame, metric: Metric) -> ExampleStats:
        """Restore the statistics of a metric from their table.

        Args:
            table: Table made by `table`.
            metric: The metric that was measured.

        Returns:
            The statistics.
        """
        parts = {str(key): part for key, part in table.groupby("closed", sort=False, observed=True)}
        values = {key: part.drop(columns=["closed", "example"]).to_numpy(float) for key, part in parts.items()}
        first, _, text = table.attrs["signatures"]["example"].partition("|")
        intact = values.pop("intact")
        closed = {_read(key): part for key, part in values.items()}
        numbers = parts["intact"]["example"].tolist()
        return ExampleStats(intact, closed, numbers, int(first.partition(":")[2]), metric, text)


def written(closed: HeadSet) -> str:
    """Return a set of heads as text: "enc-self:0:1 cross:2:3"; "none" without any."""
    return " ".join(":".join(map(str, head)) for head in sorted(closed)) or "none"


def _read(text: str) -> HeadSet:
    parts = [head.split(":") for head in text.split()] if text != "none" else []
    return frozenset((kind, int(layer), int(head)) for kind, layer, head in parts)
