"""Bench: finds or computes the tables of artefacts; what several artefacts read from them (no torch)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.parquet as pq
from scipy import stats

from headroles.analysis.summaries import correlations
from headroles.papers.artefact import Holds, Interval, bounded
from headroles.papers.needs import METRIC, METRICS, NEEDS, Missing, Need
from headroles.tables import frame
from headroles.tables.declared import metric_of as metric_in
from headroles.tables.declared import quality
from headroles.tables.frame import KINDS, Kind
from headroles.tables.io import load_table

if TYPE_CHECKING:
    from headroles.papers.workflow import Workflow

Numbers = npt.NDArray[np.float64]
NO_VALUE = "the value of untrained models is unknown"
SKIPPED = ("papers", "untrained")  # subfolders of a study without tables of the model itself
VALUES = ["value", "low", "high"]
LITTLE = 0.03  # of the score of the whole model, or nats of a loss: a small change (our choice)
TWICE = 2  # trainings with steps that differ by a larger factor are not comparable (our choice)
NEAR = 0.05  # of all heads: how far a curve's step may be from the share that the paper shows (our choice)
CLEAR = 0.05  # p below which a tendency counts as shown (our choice)


class Bench:
    """Tables by need, computed by the workflow of the model; without one, searched for in study folders.

    They are searched for in the order of the folders. Tables of the papers' own metrics come first, then those
    outside subfolders, then those of a subfolder named as a part of its folder (the model's own domain: `captions` in
    `captions-en-de`).
    """

    def __init__(self, folders: Sequence[str | Path], run: Workflow | None = None) -> None:
        self.folders, self.run = [Path(folder) for folder in folders], run
        self.untrained: Bench | None = None  # tables of an untrained model of the same shape
        self.used: list[Path] = []  # the files that were loaded

    def tables(self, name: str) -> list[pd.DataFrame]:
        """Load all tables for a need, the foremost first; raise Missing without any."""
        return self._loaded(self._found(name))

    def table(self, name: str) -> pd.DataFrame:
        """Load the foremost table for a need; raise Missing without any."""
        return self._loaded(self._found(name)[:1])[0]

    def beside(self, table: pd.DataFrame, name: str, *, above: int = 0) -> pd.DataFrame | None:
        """Load the table of a name in the folder of another table, or so many folders above; None without one."""
        path = Path(str(table.attrs["file"])).parents[above] / f"{name}.parquet"
        return self._loaded([path])[0] if path.is_file() else None

    def _found(self, name: str) -> list[Path]:
        need = NEEDS[name]
        paths = need.make(self.run) if self.run else self._files(need)
        if not paths:
            places = ", ".join(map(str, self.folders))
            raise Missing(f"no table of {need.what} in {places}; make one with {need.command}")
        return paths

    def _loaded(self, paths: list[Path]) -> list[pd.DataFrame]:
        self.used += [path for path in paths if path not in self.used]
        tables = [load_table(path) for path in paths]
        for table, path in zip(tables, paths, strict=True):
            table.attrs["file"] = str(path)
        return tables

    def _files(self, need: Need) -> list[Path]:
        ranked: list[tuple[tuple[int, int, int, bool, tuple[str, ...]], Path]] = []
        for number, folder in enumerate(self.folders):
            if not folder.is_dir():
                raise FileNotFoundError(f"no folder {folder}; give the folder of a study")
            place = folder.resolve()
            study = place.parent if place.name == "untrained" else place  # of an untrained model, the study beside it
            for path in sorted(folder.rglob("*.parquet")):
                inside = path.relative_to(folder)
                named = re.fullmatch(need.names, path.stem)
                skipped = any(part.startswith(".") or part in SKIPPED for part in inside.parts[:-1])
                if named and not skipped and _fits(path, need):
                    metric = METRICS.index(named["metric"]) if "metric" in named.groupdict() else 0
                    other = not (len(inside.parts) > 1 and inside.parts[-2] in study.name.split("-"))
                    ranked.append(((number, metric, len(inside.parts), other, inside.parts), path))
        return [path for _, path in sorted(ranked)]


def _fits(path: Path, need: Need) -> bool:
    columns = pq.read_schema(path).names
    if not all(any(re.fullmatch(pattern, name) for name in columns) for pattern in need.columns):
        return False
    column, *values = need.values or ("",)
    return not values or set(values) <= set(load_table(path)[column])


def of_kind(table: pd.DataFrame, kind: Kind = "enc-self") -> pd.DataFrame:
    """Select the rows of one kind, the index unchanged; raise Missing for a model without such heads."""
    present = [str(other) for other in KINDS if other in table.index.unique("kind")]
    if kind not in present:
        raise Missing(f"the paper shows {kind} heads; {table.attrs.get('file', 'the table')} has {', '.join(present)}")
    rows: pd.DataFrame = table[table.index.get_level_values("kind") == kind]
    return rows


def metric_of(table: pd.DataFrame) -> str:
    """Return the metric of a table, from its file name or its provenance."""
    named = re.search(METRIC, Path(str(table.attrs.get("file", ""))).stem)
    signed = filter(None, map(metric_in, table.attrs.get("signatures", {}).values()))
    return named["metric"] if named else next(signed, "metric")


def metric_label(table: pd.DataFrame) -> str:
    """Return the name of a table's metric as papers write it."""
    metric = metric_of(table)
    return {"bleu": "BLEU", "chrf": "chrF"}.get(metric, metric)


def gains(differences: Numbers, metric: str) -> Numbers:
    """Turn differences of a metric (rows of value, low, high) so that larger is better."""
    return -differences[:, [0, 2, 1]] if better(metric) < 0 else differences


def field(table: pd.DataFrame, name: str, column: str | None = None) -> str:
    """Return a provenance field of a column, by default of the first with provenance; "" without any."""
    signatures: dict[str, str] = table.attrs.get("signatures", {})
    text = signatures.get(column, "") if column else next(iter(signatures.values()), "")
    return dict(frame.fields(text)).get(name, "")


def best_of_layers(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Select the head of each layer with the largest value of a column, as rows of `layer` and `head`."""
    return table.loc[table.groupby(level="layer")[column].idxmax()].reset_index().drop(columns="kind")


def scale(metric: str, value: float) -> float:
    """Return the unit of changes of a metric: the score of the whole model, or one nat of a loss."""
    return 1.0 if metric == "loss" else abs(value)


def costs(rows: pd.DataFrame, whole: pd.Series[float], metric: str) -> dict[str, Numbers]:
    """Return `cost` with its interval: lost shares of the whole score, or nats of a loss; paired with changes."""
    if "change" in rows:
        changes = rows[bounded("change")].to_numpy()
    else:
        changes = np.array([Interval(*row).minus(Interval(*whole[VALUES])) for row in rows[VALUES].to_numpy()])
    value, low, high = (-gains(changes, metric) / (scale(metric, whole["value"]) or math.nan)).T
    return {"cost": value, "cost.low": high, "cost.high": low}


def stake(bench: Bench, of: pd.DataFrame, kind: Kind | None = None) -> dict[str, float | str]:
    """Return `all` with its interval, the cost of removing all heads or all of a kind; NaN without a curve.

    The curve is of the model of a table. The cost is measured by the table's metric if there is such a curve, else by
    the foremost one: `all.metric`.
    """
    name, metric, used = "importance" if kind is None else f"{kind} by importance", metric_of(of), [*bench.used]
    unknown: dict[str, float | str] = {**dict.fromkeys(bounded("all"), math.nan), "all.metric": metric}
    try:
        tables = [curves for curves in bench.tables("curves" if kind is None else "kinds") if _same_model(curves, of)]
    except Missing:
        return unknown
    if not tables:
        bench.used = used
        return unknown
    table = next((curves for curves in tables if metric_of(curves) == metric), tables[0])
    bench.used = list(dict.fromkeys([*used, Path(str(table.attrs["file"]))]))
    rows = table[table["order"] == name]
    if rows.empty:
        return unknown
    last = rows.nlargest(1, "masked")
    cost = costs(last, rows.iloc[rows["masked"].argmin()], metric_of(table))
    ends = {name.replace("cost", "all"): float(values[0]) for name, values in cost.items()}
    return {**ends, "all.metric": metric_of(table)}


def _same_model(curves: pd.DataFrame, table: pd.DataFrame) -> bool:
    """Return whether the provenance of a table names the weights of curves, which are then of its whole model."""
    weights, signatures = field(curves, "weights"), table.attrs.get("signatures", {})
    return not weights or f"weights:{weights}" in next(iter(signatures.values()), "")


def at_stake(table: pd.DataFrame) -> Holds:
    """Return whether removing all heads costs more than a little, by the columns `all` of a table."""
    return Interval.of(table.iloc[0], "all").above(LITTLE)


def amount(cost: Interval, metric: str) -> str:
    """Return a cost in words: per cent of the score, or nats of a loss."""
    if math.isnan(cost.value):
        return "an unknown amount"
    return f"{cost:.3f} nats" if metric == "loss" else f"{cost.scaled(100):.1f} %"


def nearest(table: pd.DataFrame, share: float) -> pd.DataFrame:
    """Select the row with the share of ablated heads nearest to one; no row if none is near."""
    gaps = (table["share"] - share).abs()
    row: pd.DataFrame = table[(gaps == gaps.min()) & (gaps <= NEAR)].head(1)
    return row


def trained(bench: Bench, table: pd.DataFrame, model: str) -> dict[str, float]:
    """Return for how many `steps`, and `epochs` of its task's data, a model of a table's study was trained, or NaN."""
    lengths = _lengths(bench, table)
    known = None if lengths is None else lengths.set_index("what").reindex([model])
    return {name: math.nan if known is None else float(known[name].iloc[0]) for name in ("steps", "epochs")}


def _lengths(bench: Bench, table: pd.DataFrame) -> pd.DataFrame | None:
    """Load the lengths of training beside a table, else in the folder above, else from the same folder of the bench."""
    for above in (0, 1):
        if (lengths := bench.beside(table, "trainings", above=above)) is not None:
            return lengths
    file, folders, used = Path(str(table.attrs["file"])), bench.folders, [*bench.used]
    try:
        lengths = bench.table("trainings")
    except Missing:
        return None
    if any(file.is_relative_to(folder) and Path(lengths.attrs["file"]).is_relative_to(folder) for folder in folders):
        return lengths
    bench.used = used
    return None


def within_layers(pair: pd.DataFrame) -> pd.Series[float]:
    """Correlate two columns of all heads after subtracting the mean of each layer."""
    inside = pair - pair.groupby(level="layer").transform("mean")
    return correlations(inside.iloc[:, 0], inside.iloc[:, 1]).iloc[0]


def better(metric: str) -> int:
    """Return 1 if larger values of a metric are better, else -1."""
    return quality(metric).better or 1


def reached(bound: float) -> str:
    """Describe the bound of untrained models in words."""
    return NO_VALUE if math.isnan(bound) else f"untrained models reach {bound:.2f}"


def rises(table: pd.DataFrame, column: str, along: str) -> bool:
    """Return whether a column rises along another beyond chance (Kendall's tau, one-sided)."""
    return bool(stats.kendalltau(table[along], table[column], alternative="greater").pvalue < CLEAR)
