"""Where a pass adds up its sums: for the corpus as it is, and for every bootstrap resample of its sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from headroles import _distributed
from headroles.analysis.intervals import clusters
from headroles.scores.base import Measure, Sums
from headroles.tables.frame import Kind

LOW, HIGH = 0.025, 0.975  # quantiles of the resamples that bound an interval
Array = npt.NDArray[np.floating[Any]]
Totals = dict[str, Tensor]  # name -> [1 + resamples, heads or 1, ...]; row 0 is the corpus as it is


class Accumulator:
    """The sums of some scores over the sentences read so far, of every (kind, layer)."""

    def __init__(self, scores: Sequence[Measure], *, n_resamples: int, seed: int) -> None:
        if n_resamples < 0 or not 0 <= seed < 2**64:
            raise ValueError(f"expected n_resamples >= 0 and 0 <= seed < 2**64; got n_resamples={n_resamples}, seed={seed}")
        self.scores, self.n_resamples, self.seed = scores, n_resamples, seed
        self.tallies: dict[tuple[Kind, int], dict[str, Totals]] = {}
        self.grounds: dict[Kind, dict[str, Totals]] = {}

    def add(self, score: Measure, key: tuple[Kind, int], update: Sums, weights: Tensor) -> None:
        """Add what one site did on one batch; `weights` [1 + resamples, batch] are how often each sentence counts."""
        _add(self.tallies.setdefault(key, {}).setdefault(score.label, {}), update, weights)

    def add_ground(self, score: Measure, kind: Kind, denominators: Sums, weights: Tensor) -> None:
        """Add what there was to do on one batch, the same for every layer of the kind."""
        _add(self.grounds.setdefault(kind, {}).setdefault(score.label, {}), denominators, weights)

    def together(self, device: torch.device) -> None:
        """Add up, on `device`, what all processes have read: then each has the sums of all."""
        sizes = _distributed.gathered([*self._sizes().items()])
        for (book, key, label, name), size in sorted(dict(sizes).items()):
            totals = getattr(self, book).setdefault(key, {}).setdefault(label, {})
            own = totals[name] if name in totals else torch.zeros(size, dtype=torch.float64, device=device)
            totals[name] = _distributed.summed(own)

    def _sizes(self) -> dict[tuple[str, Any, str, str], tuple[int, ...]]:
        return {
            (book, key, label, name): tuple(values.shape)
            for book in ("tallies", "grounds")
            for key, scores in getattr(self, book).items()
            for label, totals in scores.items()
            for name, values in totals.items()
        }

    def close(self, index: pd.MultiIndex) -> Iterator[tuple[Measure, str, Array, Array | None]]:
        """Each column over the heads of `index`, with its score and resamples: [heads, 1 + resamples].

        Of a share also of how many queries it is, and of how many sentences in effect: [heads, 2]. The sums of a score
        are let go once it is finished: tables of many resamples are large.
        """
        for score in self.scores:
            columns: dict[str, Array] = {}
            sizes: dict[str, Array] = {}
            for kind, layer in self.tallies:
                sums = self.tallies[kind, layer].pop(score.label, None)
                rows = [row for row, head in enumerate(index) if head[:2] == (kind, layer)]
                if sums is None or not rows:  # all heads of a layer may have been cut out
                    continue
                sums = self.grounds[kind][score.label] | sums
                for column, values in score.compute(sums).items():
                    empty = np.full((len(index), 1 + self.n_resamples), np.nan)
                    columns.setdefault(column, empty)[rows] = values.T.cpu().numpy()
                for column, values in score.counted(sums).items():
                    totals = values.T.cpu().numpy()  # [heads or 1, 1 + resamples]
                    both = np.stack([totals[:, 0], clusters(totals)], axis=-1)
                    sizes.setdefault(column, np.full((len(index), 2), np.nan))[rows] = both
            yield from ((score, column, values, sizes.get(column)) for column, values in columns.items())


def counting(numbers: Sequence[int], n_resamples: int, seed: int) -> Tensor:
    """How often sentences count in the corpus itself (once) and in each resample: float64 [1 + resamples, sentence].

    Resamples draw from Poisson(1) by the sentence's number alone (Hanley & MacGibbon 2006), so they are the same in
    whatever batches, order or process the sentences are read.
    """
    rows = [np.random.Generator(np.random.Philox(key=[seed, n])).poisson(1.0, n_resamples) for n in numbers]
    drawn = torch.tensor(np.stack(rows, axis=1), dtype=torch.float64)
    return torch.cat([torch.ones(1, len(numbers), dtype=torch.float64), drawn])


def bounds(draws: Array) -> tuple[Array, Array]:
    """The 95 % percentile interval of resampled values [heads, resamples], NaN ones left out: two of [heads]."""
    found = np.full((2, len(draws)), np.nan)
    whole = ~np.isnan(draws).any(1)
    found[:, whole] = np.quantile(draws[whole], [LOW, HIGH], axis=1)
    some = ~whole & ~np.isnan(draws).all(1)
    found[:, some] = pd.DataFrame(draws[some].T).quantile([LOW, HIGH]).to_numpy()  # leaves NaN out
    return found[0], found[1]


def rounded(draws: Array) -> npt.NDArray[np.float32]:
    """Resampled values to 13 significant bits, far finer than resampling itself: tables of them take half the room."""
    half = np.uint32(1 << 10)  # of the last of the 12 bits kept after the leading one
    bits = draws.astype(np.float32).view(np.uint32)
    return ((bits + half) & ~np.uint32(2 * half - 1)).view(np.float32)


def _add(totals: Totals, sums: Sums, weights: Tensor) -> None:
    for name, values in sums.items():
        weighted = torch.tensordot(weights, values.double(), dims=1)
        totals[name] = totals[name].add_(weighted) if name in totals else weighted
