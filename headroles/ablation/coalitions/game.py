"""Game: the worth of a coalition of heads is the metric of the model in which the other heads are masked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from headroles.ablation.example_stats import HeadSet, written
from headroles.ablation.sweep import Sweep
from headroles.ablation.units import on_disk
from headroles.analysis.intervals import over_seeds
from headroles.models.heads import head_index
from headroles.models.masking import Head, head_mask
from headroles.scores.accumulator import counting
from headroles.tables import frame

Array = npt.NDArray[np.float64]
MOST, KEPT = 1024, 16384  # variants of one sweep, and known values, which bound memory


class Game:
    """Cooperative game of some heads of a model (None: all); heads that do not play are never masked."""

    def __init__(self, sweep: Sweep, heads: Iterable[Head] | None, n_resamples: int, seed: int) -> None:
        index: list[Head] = [(kind, layer, head) for kind, layer, head in head_index(sweep.model)]
        chosen = index if heads is None else [(kind, layer, head) for kind, layer, head in heads]
        head_mask(sweep.model, chosen)  # raises for an unknown head
        if len(set(chosen)) < len(chosen) or len(chosen) < 2:
            raise ValueError(
                f"wrong heads of a game: got {len(chosen)}, of which {len(set(chosen))} differ; expected two or more "
                f"different ones"
            )
        self.sweep, self.n_resamples, self.seed = sweep, n_resamples, seed
        self.heads = [head for head in index if head in set(chosen)]
        self.known: dict[HeadSet, Array] = {}  # masked heads -> [1 + resamples]

    def values(self, coalitions: Sequence[Iterable[int]]) -> Array:
        """Measure the metric of coalitions (places of unmasked heads), each once: [coalition, 1 + resample]."""
        rows = [set(coalition) for coalition in coalitions]
        masked = [frozenset(head for place, head in enumerate(self.heads) if place not in row) for row in rows]
        if len(self.known) > KEPT:
            self.known.clear()
        new = [variant for variant in dict.fromkeys(masked) if variant not in self.known]
        for start in range(0, len(new), MOST):
            stats = self.sweep.run(new[start : start + MOST])
            weights = counting(stats.numbers, self.n_resamples, self.seed).numpy()  # [1 + resamples, example]
            for variant, values in stats.masked.items():
                with np.errstate(invalid="ignore"):  # a resample without any example has no value
                    self.known[variant] = stats.metric.value(weights @ values)
                if not np.isfinite(self.known[variant][0]):
                    raise ValueError(f"{stats.metric.name} has no finite value without heads {written(variant)}")
        return np.stack([self.known[variant] for variant in masked])

    def columns(self, name: str, parts: Array, draws: Array, *words: str) -> dict[str, npt.NDArray[np.float64]]:
        """Compute means of `parts` [sample, row], and 95 % intervals with `draws` of the examples [row, resample]."""
        replacement = self.sweep.replacement
        listed = (self.sweep.metric.name, *([] if replacement == "zero" else [on_disk(replacement)]), *words)
        column = f"{name}[{' '.join(listed)}]"
        ends = [
            over_seeds(np.column_stack([part, np.broadcast_to(draw, (len(part), len(draw)))]))
            for part, draw in zip(parts.T, draws, strict=True)
        ]
        low, high = np.array(ends).T
        return {column: parts.mean(0), f"{column}.low": low, f"{column}.high": high}

    def provenance(self, **fields: object) -> str:
        """Return the provenance of columns: that of the sweep, the metric of all and of no heads, and fields."""
        whole, none = self.values([range(len(self.heads)), ()])[:, 0]
        worth: dict[str, object] = {"whole": f"{whole:.6g}", "none": f"{none:.6g}", "heads": len(self.heads)}
        return f"{self.sweep.signature}|{frame.sign(**worth, **fields, resamples=self.n_resamples, seed=self.seed)}"

    def index(self) -> pd.MultiIndex:
        """Return the index of the players."""
        index = head_index(self.sweep.model)
        return index[index.isin(self.heads)]
