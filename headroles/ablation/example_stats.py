"""Example statistics: those of each example by the intact model and by every variant with masked heads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from headroles.ablation.metrics import Metric
from headroles.analysis.intervals import bootstrap_counts
from headroles.models.masking import Head
from headroles.tables.frame import KINDS

BLOCK = 1024  # examples whose resamples are in memory together
Array = npt.NDArray[np.float64]
HeadSet = frozenset[Head]  # the heads that a variant masks: (kind, layer, head)


@dataclass(frozen=True)
class ExampleStats:
    """Statistics of each example by the intact model and by each variant; NaN where a variant was not run."""

    intact: Array  # [example, statistic]
    masked: dict[HeadSet, Array]  # [example, statistic]
    numbers: list[int]  # of the examples in the corpus
    too_long: int  # number of examples left out because they are too long
    metric: Metric
    signature: str = ""
    predicted: dict[HeadSet, Array] | None = None  # change of the first statistic by the gradient: [example]
    sizes: Array | None = None  # how likely examples are to be drawn, if not all alike: [example]

    def resampled(self, statistics: Iterable[Array], n_resamples: int = 1000, seed: int = 0) -> Array:
        """Compute the metric of some statistics of these examples, and of Poisson resamples of the examples.

        Args:
            statistics: Of the examples, NaN where a variant was not run: [example, statistic] each.
            n_resamples: Number of resamples.
            seed: Seed of the resamples.

        Returns:
            The values, [row, 1 + resample]; NaN for a resample without any example, and for those of a single one.
        """
        rows = list(statistics)
        sums = np.zeros((len(rows), 1 + n_resamples, self.intact.shape[1]))
        for part, weights in self.resamples(n_resamples, seed):
            sums += [_weighted(weights, values[part]) for values in rows]
        with np.errstate(invalid="ignore"):
            values = np.stack([self.metric.compute(row) for row in sums])
        values[[np.isfinite(row).all(-1).sum() < 2 for row in rows], 1:] = np.nan
        return values

    def resamples(self, n_resamples: int, seed: int) -> Iterator[tuple[slice, Array]]:
        """Yield examples, a block at a time, and how often each counts: [1 + resample, example]."""
        for start in range(0, len(self.numbers), BLOCK):
            part = slice(start, start + BLOCK)
            yield part, bootstrap_counts(self.numbers[part], n_resamples, seed)

    def take(self, rows: npt.NDArray[np.int64]) -> ExampleStats:
        """Return the statistics of some examples, by their places in `numbers`."""
        masked = {key: values[rows] for key, values in self.masked.items()}
        predicted = None if self.predicted is None else {key: row[rows] for key, row in self.predicted.items()}
        numbers = [self.numbers[row] for row in rows]
        sizes = None if self.sizes is None else self.sizes[rows]
        return replace(self, intact=self.intact[rows], masked=masked, numbers=numbers, predicted=predicted, sizes=sizes)

    def table(self) -> pd.DataFrame:
        """Return a table with a row per variant and example.

        Columns are `closed` (the masked heads as kind:layer:head, "none" without any, or "intact"), `example`, the
        statistics of the metric, and if there are predictions `predicted`, the predicted change, and `size`, how likely
        the example is to be drawn.
        """
        names = self.metric.names(self.intact.shape[1])
        parts = [("intact", self.intact), *((written(key), values) for key, values in self.masked.items())]
        table = pd.DataFrame(np.concatenate([values for _, values in parts]), columns=names)
        if self.predicted is not None:
            none = np.zeros(len(self.numbers))
            table["predicted"] = np.concatenate([none, *(self.predicted[key] for key in self.masked)])
        if self.sizes is not None:
            table["size"] = np.tile(self.sizes, len(parts))
        table.insert(0, "example", np.tile(self.numbers, len(parts)))
        table.insert(0, "closed", np.repeat([key for key, _ in parts], len(self.numbers)))
        table.attrs["signatures"] = dict.fromkeys(table.columns, f"too_long:{self.too_long}|{self.signature}")
        return table

    @staticmethod
    def of(table: pd.DataFrame, metric: Metric) -> ExampleStats:
        """Restore the statistics of a metric from their table."""
        parts = {str(key): part for key, part in table.groupby("closed", sort=False, observed=True)}
        first, _, text = table.attrs["signatures"]["example"].partition("|")
        other = {"closed", "example", "predicted", "size"}
        values = {
            key: part[[name for name in part if name not in other]].to_numpy(float) for key, part in parts.items()
        }
        intact, numbers = values.pop("intact"), parts["intact"]["example"].tolist()
        sizes = parts["intact"]["size"].to_numpy(float) if "size" in table else None
        masked = {_read(key): part for key, part in values.items()}
        predicted = None
        if "predicted" in table:
            predicted = {_read(key): parts[key]["predicted"].to_numpy(float) for key in values}
        return ExampleStats(intact, masked, numbers, int(first.partition(":")[2]), metric, text, predicted, sizes)


def _weighted(weights: Array, values: Array) -> Array:
    """Sum the statistics of the examples with numbers, as often as they count: [1 + resample, statistic]."""
    run = np.isfinite(values).all(-1)
    return np.asarray(weights @ values if run.all() else weights[:, run] @ values[run])


def written(masked: HeadSet) -> str:
    """Return a set of heads as text: "enc-self:0:1 cross:2:3"; "none" without any."""
    return " ".join(":".join(map(str, head)) for head in sorted(masked)) or "none"


def _read(text: str) -> HeadSet:
    parts = [head.split(":") for head in text.split()] if text != "none" else []
    kinds = {str(kind): kind for kind in KINDS}
    return frozenset((kinds[kind], int(layer), int(head)) for kind, layer, head in parts)
