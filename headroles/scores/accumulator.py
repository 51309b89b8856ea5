"""Accumulator: the sums of a pass, for the corpus and every bootstrap resample of it, and the table made of them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from headroles._distributed import Axis
from headroles.analysis.intervals import Array, bounds, clusters, rounded, share, single
from headroles.scores.base import Measure, Sums
from headroles.tables import frame
from headroles.tables.arguments import number
from headroles.tables.columns import Column, without_ends
from headroles.tables.declared import declaration
from headroles.tables.frame import KINDS, Kind

log = logging.getLogger(__name__)
SINGLE = "measured on a single sentence: the spread is not known"
Key = Kind | tuple[Kind, int]  # a kind for denominators that its layers share, otherwise a kind and a layer
Place = tuple[Key, str, str]  # key, label of the score, name of the sum


class Accumulator:
    """Sums of some scores over the sentences read so far, for the corpus and for every resample of it."""

    def __init__(self, scores: Sequence[Measure], *, n_resamples: int, seed: int) -> None:
        number("n_resamples", n_resamples, whole=True)
        number("seed", seed, below=2**64, whole=True)
        self.scores, self.n_resamples, self.seed = scores, n_resamples, seed
        self.totals: dict[Place, Tensor] = {}  # [1 + resamples, heads or 1, ...]; row 0 is the corpus itself
        self.unweighted: dict[str, dict[Place, Tensor]] = {}  # sums of this batch, by score: [batch, heads or 1, ...]
        self.products: dict[str, tuple[list[Place], Tensor]] = {}  # of the first batch: memory of the totals

    def add(self, score: Measure, key: Key, sums: Sums) -> None:
        """Keep the sums of a layer, or denominators of a kind, on a batch or a block of its queries until `weigh`."""
        kept = self.unweighted.setdefault(score.label, {})
        for name, values in sums.items():
            place = key, score.label, name
            kept[place] = kept.get(place, 0) + values.double()

    def weigh(self, weights: Tensor) -> None:
        """Add what was kept of a batch, each sentence `weights` times, [1 + resamples, batch], to the totals."""
        # The sums of a score on a batch, of all layers, stand side by side as columns, [batch, columns]: one product
        # with the weights adds them to the totals of the corpus and of every resample. The totals of the first batch
        # are views of its product, so that later batches with the same sums are added to it in place.
        for label, kept in self.unweighted.items():
            flat, places = [values.flatten(1) for values in kept.values()], [*kept]
            columns = torch.cat(flat, dim=1).T
            if label in self.products and self.products[label][0] == places:
                self.products[label][1].addmm_(columns, weights.T)
                continue
            product = columns @ weights.T  # [columns, 1 + resamples]
            self.products.setdefault(label, (places, product))
            parts = product.split([values.shape[1] for values in flat])
            for (place, values), part in zip(kept.items(), parts, strict=True):
                weighted = part.unflatten(0, values.shape[1:]).movedim(-1, 0)
                self.totals[place] = self.totals[place].add_(weighted) if place in self.totals else weighted
        self.unweighted = {}

    def reduce(self, axis: Axis, device: torch.device) -> None:
        """Add up the sums of all processes of an axis on `device`."""
        # A process may have had no batch, or none with some kind of sums. So all exchange which totals there are, add
        # zeros for those they lack, and keep the order of the first one: of additions, and of columns in the table.
        shapes = dict(axis.gathered([(place, tuple(values.shape)) for place, values in self.totals.items()]))
        local, self.totals = self.totals, {}
        for place, shape in shapes.items():
            values = local.pop(place, None)
            values = torch.zeros(shape, dtype=torch.float64, device=device) if values is None else values
            self.totals[place] = axis.summed(values)

    def table(
        self,
        index: pd.MultiIndex,  # of the rows: the heads that are left
        provenance: str,  # of all columns
        notes: Mapping[str, Mapping[str, object]],  # further provenance fields, by label of the score
        gated: pd.MultiIndex,  # of the sums: with removed heads that are kept as zeroed
        no_interval: Mapping[tuple[str, Kind], str],  # why scores have no interval, by label and kind
    ) -> pd.DataFrame:
        """Compute the table of all scores, with intervals: a row per head."""
        kinds = np.asarray(index.get_level_values("kind"))
        columns: dict[str, Array] = {}
        draws: dict[str, npt.NDArray[np.float32]] = {}
        signatures: dict[str, str] = {}
        lacking: dict[str, list[str]] = {}  # reason -> columns without an interval
        for score, name, values, sizes in self.columns(index, gated):
            columns[name] = values[:, 0]
            if self.n_resamples and score.has_interval(name):
                measured = np.isfinite(values[:, 0])
                without = [(SINGLE, single(values[:, 1:]) & measured)]
                without += [
                    (no_interval[key], (kinds == key[1]) & measured) for key in no_interval if key[0] == score.label
                ]
                for reason, rows in without:
                    values[rows, 1:] = np.nan
                    if rows.any() and (reason != SINGLE or Column.parse(name).variant != "nosink"):  # `resting` says it
                        lacking.setdefault(reason, []).append(name)
                draws[name] = rounded(values[:, 1:])
                columns[f"{name}.low"], columns[f"{name}.high"] = (
                    bounds(values[:, 1:]) if sizes is None else share(values, *sizes.T)
                )
            details = {**declaration("score", score.name(), score), **notes.get(score.label, {})}
            text = f"{provenance}|{frame.sign(score=score, **details)}"
            signatures |= dict.fromkeys((name, f"{name}.low", f"{name}.high"), text)
        for reason, names in lacking.items():
            log.warning("no interval of %s: %s", frame.listed(dict.fromkeys(names)), reason)
        return frame.table(columns, index, {name: signatures[name] for name in columns}, draws=draws)

    def columns(self, index: pd.MultiIndex, gated: pd.MultiIndex) -> Iterator[tuple[Measure, str, Array, Array | None]]:
        """Yield score, column, values [heads, 1 + resamples], and for shares the queries and sentences, [heads, 2]."""
        rows = _of_sites(index)  # all heads of a layer may have been removed
        left = {key: gated[places].isin(index) for key, places in _of_sites(gated).items()}
        for score in self.scores:
            self.products.pop(score.label, None)  # the totals alone hold its memory now, and free it
            columns = defaultdict[str, Array](partial(np.full, (len(index), 1 + self.n_resamples), np.nan))
            sizes = defaultdict[str, Array](partial(np.full, (len(index), 2), np.nan))
            sums_at: dict[Key, dict[str, Tensor]] = {}
            for key, label, name in [place for place in self.totals if place[1] == score.label]:
                sums_at.setdefault(key, {})[name] = self.totals.pop((key, label, name))
            for site in (key for key in sums_at if isinstance(key, tuple) and key in rows):
                sums = sums_at.get(site[0], {}) | sums_at[site]
                for name, values in score.compute(sums).items():
                    columns[score.column(name)][rows[site]] = _rows(left[site], values)
                for name, values in score.counted(sums).items():
                    totals = _rows(left[site], values)
                    sizes[score.column(name)][rows[site]] = np.stack([totals[:, 0], clusters(totals)], axis=-1)
            yield from ((score, column, values, sizes.get(column)) for column, values in columns.items())


def _of_sites(index: pd.MultiIndex) -> dict[tuple[Kind, int], npt.NDArray[np.intp]]:
    """Return the places of the heads of each (kind, layer)."""
    return pd.Series(0, index).groupby(level=["kind", "layer"]).indices  # type: ignore[return-value]


def _rows(left: npt.NDArray[np.bool_], values: Tensor) -> Array:
    """Return values, [1 + resamples, heads or 1], as rows of the heads that are left: [heads or 1, 1 + resamples]."""
    array: Array = values.T.cpu().numpy()
    return array if len(array) == 1 else array[left]


def missing(
    table: pd.DataFrame, scores: Sequence[Measure], uncounted: Mapping[Kind, str] | None = None
) -> dict[str, str]:
    """Return which scores have no value for any head of some kinds ("rarity of cross heads is NaN"), and why."""
    blanks = dict[tuple[str, str], list[Kind]]()  # `uncounted`: why tokens of the keys of a kind were not counted
    blank = pd.DataFrame(table.isna().to_numpy(), table.index, list(table)).groupby(level="kind").all()
    parts = [Column.parse(name) for name in without_ends(table)]
    for score in scores:
        label = score.label
        named = [str(part) for part in parts if label == str(part) or (part.name == label and part.detail is not None)]
        names = [name for name in named if score.has_interval(name)]
        empty = blank[names].all(axis=1)
        # links are between the words of a pair, which cross heads read, or of one text
        kinds = ("cross",) if "links" in score.needs and "cross" in empty else score.kinds
        for kind in (kind for kind in KINDS if names and kind in kinds and empty.get(kind, False)):
            reason = (uncounted or {}).get(kind, score.missing) if "counts" in score.needs else score.missing
            blanks.setdefault((label, reason), []).append(kind)
    return {f"{label} of {', '.join(kinds)} heads is NaN": reason for (label, reason), kinds in blanks.items()}
