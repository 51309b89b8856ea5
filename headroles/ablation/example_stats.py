"""Example statistics: the statistics of each example by the intact model and by every variant with masked heads."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from headroles.ablation.metrics import Mean, Metric
from headroles.analysis.intervals import Array, bootstrap_counts
from headroles.models.masking import Head
from headroles.tables.frame import parsed_head

log = logging.getLogger(__name__)
SHOWN = 5  # examples in a message
BLOCK = 1024  # examples with resamples in memory at a time
HeadSet = frozenset[Head]  # the heads that a variant masks: (kind, layer, head)


@dataclass(frozen=True)
class ExampleStats:
    """Statistics of each example by the intact model and each variant; NaN where a variant is only predicted."""

    intact: Array  # [example, statistic]
    masked: dict[HeadSet, Array]  # [example, statistic]
    numbers: list[int]  # of the examples in the corpus
    too_long: int  # number of examples left out because they are too long
    metric: Metric
    signature: str = ""
    predicted: dict[HeadSet, Array] | None = None  # change of the first statistic by the gradient: [example]
    sizes: Array | None = None  # how likely each example is to be drawn; None: all equally: [example]

    def resampled(self, statistics: Iterable[Array], n_resamples: int = 1000, seed: int = 0) -> Array:
        """Return the metric of several [example, statistic], and on Poisson resamples of examples: [row, 1 + resample].

        It is NaN for a resample without examples, and for all resamples of one example.
        """
        rows = list(statistics)
        read = [np.asarray(row.any(-1)) for row in rows]  # an example of zeros adds nothing
        sums = np.zeros((len(rows), 1 + n_resamples, self.intact.shape[1]))
        drawn = np.zeros((len(rows), 1 + n_resamples))
        for part, weights in self.resamples(n_resamples, seed):
            sums += [weights @ values[part] for values in rows]
            drawn += [weights @ examples[part] for examples in read]
        with np.errstate(invalid="ignore"):
            values = np.stack([self.metric.compute(row) for row in sums])
        values[:, 1:][drawn[:, 1:] == 0] = np.nan
        values[[examples.sum() < 2 for examples in read], 1:] = np.nan
        return values

    @cached_property
    def counted(self) -> npt.NDArray[np.bool_]:
        """Which examples have something to measure; for a mean over steps, a step."""
        if isinstance(self.metric, Mean):
            return np.asarray(self.intact[:, 1] != 0)
        return np.ones(len(self.numbers), dtype=bool)

    def measured(self) -> ExampleStats:
        """Return the statistics of the examples that have something to measure."""
        return self if self.counted.all() else self.take(np.flatnonzero(self.counted))

    def check(self) -> ExampleStats:
        """Return the statistics; warn of examples with nothing to measure; ValueError if the metric has no value."""
        with np.errstate(invalid="ignore"):
            has_value = not np.isnan(self.metric.compute(self.intact.sum(0)))
            empty = ~self.counted if has_value else np.isnan(self.metric.compute(self.intact))
        if has_value and not empty.any():
            return self
        numbers = [str(self.numbers[row] + 1) for row in np.flatnonzero(empty)]
        where = f"{', '.join(numbers[:SHOWN])}{', ...' if len(numbers) > SHOWN else ''} of {len(self.numbers)}"
        if has_value:
            log.warning("%s: left out examples with nothing to measure: %s", self.metric.name, where)
            return self
        raise ValueError(
            f"{self.metric.name} has no value: got nothing to measure in example {where}; expected a token or label "
            f"that the model predicts; try longer texts (a decoder predicts from the second token on)"
        )

    def resamples(self, n_resamples: int, seed: int) -> Iterator[tuple[slice, Array]]:
        """Yield examples, a block at a time, and how often each counts: [1 + resample, example]."""
        for start in range(0, len(self.numbers), BLOCK):
            part = slice(start, start + BLOCK)
            yield part, bootstrap_counts(self.numbers[part], n_resamples, seed)

    def take(self, rows: npt.NDArray[np.int64]) -> ExampleStats:
        """Return the statistics of some examples, by their rows."""
        masked = {key: values[rows] for key, values in self.masked.items()}
        predicted = None if self.predicted is None else {key: row[rows] for key, row in self.predicted.items()}
        numbers = [self.numbers[row] for row in rows]
        sizes = None if self.sizes is None else self.sizes[rows]
        return replace(self, intact=self.intact[rows], masked=masked, numbers=numbers, predicted=predicted, sizes=sizes)

    def table(self) -> pd.DataFrame:
        """Return a table with a row per variant and example.

        Columns are `masked` ("intact", or the masked heads as kind:layer:head, "none" for no head), `example`, and the
        statistics of the metric; with predictions also `predicted`, the predicted change, and `size`, how likely the
        example is to be drawn.
        """
        names = self.metric.names(self.intact.shape[1])
        parts = [("intact", self.intact), *((written(key), values) for key, values in self.masked.items())]
        table = pd.DataFrame(np.concatenate([values for _, values in parts]), columns=names)
        if self.predicted is not None:
            table["predicted"] = np.concatenate([0 * self.intact[:, 0], *(self.predicted[key] for key in self.masked)])
        if self.sizes is not None:
            table["size"] = np.tile(self.sizes, len(parts))
        table.insert(0, "example", np.tile(self.numbers, len(parts)))
        table.insert(0, "masked", np.repeat([key for key, _ in parts], len(self.numbers)))
        table.attrs["signatures"] = dict.fromkeys(table.columns, f"too_long:{self.too_long}|{self.signature}")
        return table

    @staticmethod
    def of(table: pd.DataFrame, metric: Metric) -> ExampleStats:
        """Restore the statistics of a metric from their table."""
        parts = {str(key): part for key, part in table.groupby("masked", sort=False, observed=True)}
        first, _, text = table.attrs["signatures"]["example"].partition("|")
        other = ["masked", "example", "predicted", "size"]
        values = {key: part.drop(columns=other, errors="ignore").to_numpy(float) for key, part in parts.items()}
        intact, numbers = values.pop("intact"), parts["intact"]["example"].tolist()
        sizes = parts["intact"]["size"].to_numpy(float) if "size" in table else None
        masked = {_read(key): part for key, part in values.items()}
        predicted = None
        if "predicted" in table:
            predicted = {_read(key): parts[key]["predicted"].to_numpy(float) for key in values}
        return ExampleStats(intact, masked, numbers, int(first.partition(":")[2]), metric, text, predicted, sizes)


def written(masked: HeadSet) -> str:
    """Return a set of heads as text: "enc-self:0:1 cross:2:3"; "none" for no head."""
    return " ".join(":".join(map(str, head)) for head in sorted(masked)) or "none"


def _read(text: str) -> HeadSet:
    return frozenset(cast(Head, parsed_head(head)) for head in text.split() if text != "none")
