"""Bench: the tables that artefacts need, found in studies or computed for a model (no torch)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pandas as pd
import pyarrow.parquet as pq

from headroles.papers import verdicts as v
from headroles.papers.verdicts import METRIC, METRICS, Missing
from headroles.tables import frame
from headroles.tables.declared import quality
from headroles.tables.frame import Kind
from headroles.tables.io import load_table, save_table

if TYPE_CHECKING:
    from headroles.data.corpus import Corpus
    from headroles.papers.workflow import Workflow

SKIPPED = ("papers", "untrained")  # subfolders of a study without tables of the model itself
Make = Callable[["Workflow"], list[Path]]


@dataclass(frozen=True)
class RequiredTable:
    """A table that artefacts need; it decorates the function that computes its files, the foremost first."""

    name: str
    what: str
    command: str  # which makes it
    names: str  # pattern of file names without .parquet; a group "metric" puts the papers' metrics first
    columns: tuple[str, ...] = ()  # patterns, each of which must match a column
    values: tuple[str, ...] = ()  # a column, and the values that it must have

    def __call__(self, make: Make) -> Make:
        """Register the table with its function, which raises Missing for a model or data that lack what it takes."""
        REQUIRED[self.name] = self, make
        return make


REQUIRED: dict[str, tuple[RequiredTable, Make]] = {}


class Bench:
    """Required tables by name, computed by the workflow of the model; without one, searched for in study folders."""

    def __init__(self, folders: Sequence[str | Path], run: Workflow | None = None) -> None:
        self.folders, self.run = [Path(folder) for folder in folders], run
        self.untrained: Bench | None = None  # tables of an untrained model of the same shape
        self.used: list[Path] = []  # the files that were loaded

    def tables(self, name: str) -> list[pd.DataFrame]:
        """Load all files of a required table, the foremost first; raise Missing without any."""
        return self._loaded(self._found(name))

    def table(self, name: str) -> pd.DataFrame:
        """Load the foremost file of a required table; raise Missing without any."""
        return self._loaded(self._found(name)[:1])[0]

    def beside(self, table: pd.DataFrame, name: str, *, above: int = 0) -> pd.DataFrame | None:
        """Load the table of a name in the folder of another table, or so many folders above; None without one."""
        path = Path(str(table.attrs["file"])).parents[above] / f"{name}.parquet"
        return self._loaded([path])[0] if path.is_file() else None

    def _found(self, name: str) -> list[Path]:
        required, make = REQUIRED[name]
        paths = make(self.run) if self.run else self._files(required)
        if not paths:
            places = ", ".join(map(str, self.folders))
            raise Missing(f"no table of {required.what} in {places}; make one with {required.command}")
        return paths

    def _loaded(self, paths: list[Path]) -> list[pd.DataFrame]:
        self.used += [path for path in paths if path not in self.used]
        tables = [load_table(path) for path in paths]
        for table, path in zip(tables, paths, strict=True):
            table.attrs["file"] = str(path)
        return tables

    # Several files may be the required table. The first in this order is shown: of the first folder that was given; of
    # the metric that the papers report; nearest to the folder itself; of the model's own domain, a subfolder named as a
    # part of its folder (`captions` in `captions-en-de`); by name. Tables of an untrained model are ranked as those of
    # the study that they are of.
    def _files(self, required: RequiredTable) -> list[Path]:
        ranked: list[tuple[tuple[int, int, int, bool, tuple[str, ...]], Path]] = []
        for number, folder in enumerate(self.folders):
            if not folder.is_dir():
                raise FileNotFoundError(f"no folder {folder}; give the folder of a study")
            place = folder.resolve()
            study = place.parent if place.name == "untrained" else place
            for path in sorted(folder.rglob("*.parquet")):
                inside = path.relative_to(folder).parts
                named = re.fullmatch(required.names, path.stem)
                skipped = any(part.startswith(".") or part in SKIPPED for part in inside[:-1])
                if named and not skipped and _fits(path, required):
                    metric = METRICS.index(named["metric"]) if "metric" in named.groupdict() else 0
                    foreign = not (len(inside) > 1 and inside[-2] in study.name.split("-"))
                    ranked.append(((number, metric, len(inside), foreign, inside), path))
        return [path for _, path in sorted(ranked)]


def _fits(path: Path, required: RequiredTable) -> bool:
    columns = pq.read_schema(path).names
    if not all(any(re.fullmatch(pattern, name) for name in columns) for pattern in required.columns):
        return False
    column, *values = required.values or ("",)
    return not values or set(values) <= set(load_table(path)[column])


# --- tables that several artefacts need -------------------------------------------------------------------------------


@RequiredTable(
    "relevance",
    "scores with confidence and relevance",
    "headroles score MODEL CORPUS --scores confidence,relevance",
    r"(.*-)?heads",
    columns=("confidence", r"relevance\[[^ ]*\]\.size"),
)
def relevance(run: Workflow) -> list[Path]:
    """Score the heads on the dev corpus."""
    return [run.score(run.study("relevance"), run.material.dev, ["confidence", "importance", "relevance"])]


@RequiredTable(
    "functions",
    "scores with position, syntax and rarity",
    "headroles score MODEL CORPUS, on a corpus with trees",
    r"(.*-)?heads",
    columns=(r"position\[-1\]", r"syntax\[.*\]\.baseline", "rarity"),
)
def functions(run: Workflow) -> list[Path]:
    """Score the heads on the sentences with trees."""
    corpora = {"functions": trees(run), "functions-other": run.material.other_trees}
    return [
        run.score(run.study(name), corpus, reference=run.frequencies)
        for name, corpus in corpora.items()
        if corpus is not None
    ]


@RequiredTable(
    "single", "effects of ablating each head", "headroles ablate MODEL CORPUS", rf"ablation-{METRIC}-head-zero"
)
def single(run: Workflow) -> list[Path]:
    """Ablate each head on the test corpus, and on another domain."""
    corpora = {"ablation": run.material.test, "ablation-other": run.material.other}
    return [run.ablate(run.study(name), corpus) for name, corpus in corpora.items() if corpus is not None]


@RequiredTable(
    "curves",
    "curves of heads ablated cumulatively by importance",
    "headroles ablation-curve MODEL CORPUS --by importance",
    rf"curves-{METRIC}",
    values=("order", "importance"),
)
def _curves(run: Workflow) -> list[Path]:
    return [_cumulative(run, None)]


@RequiredTable(
    "kinds",
    "curves of heads of each kind ablated cumulatively by importance",
    "headroles ablation-curve MODEL CORPUS --by importance --kind each",
    rf"curves-{METRIC}-each",
)
def _curves_of_kinds(run: Workflow) -> list[Path]:
    return [_cumulative(run, "each")]


def _cumulative(run: Workflow, kind: Literal["each"] | None) -> Path:
    """Ablate heads by importance; of all kinds together also by their effects and at random."""
    from headroles.ablation.curves import ablation_curve, orders

    scores = frame.join(load_table(relevance(run)[0]), load_table(single(run)[0]))
    effect = f"{'-' if quality(run.metric).better > 0 else ''}ablation[{run.metric}]"
    columns = ["importance"] if kind else ["importance", effect]
    study, parts = run.study("curves"), (run.model, run.tokenizer, run.material.test)
    ranked = orders(scores, columns, kind=kind, seeds=0 if kind else 3)
    ablation_curve(*parts, ranked, metric=run.metric, kind=kind, study=study, n_resamples=run.n_resamples)
    return study.path(f"curves-{run.metric}{f'-{kind}' if kind else ''}")


@RequiredTable(
    "trainings",
    "lengths of training of the compared models",
    "headroles reproduce voita2019 table2 --model MODEL --data FOLDER",
    "trainings",
    columns=("what", "steps", "epochs"),
)
def _trainings(run: Workflow) -> list[Path]:
    """Compute the steps and epochs of retraining, of training from scratch, and before pruning (NaN: unknown)."""
    rows: list[dict[str, str | float]] = [{"what": "base", "steps": run.base, "epochs": math.nan}]
    for name, options in {"retrained": run.tune, "finetuned": run.tune, "scratch": run.scratch}.items():
        steps = math.ceil(len(run.material.train) / options.get("batch", 32)) * options["epochs"]
        rows.append({"what": name, "steps": steps, "epochs": float(options["epochs"])})
    table = frame.signed(pd.DataFrame(rows), frame.sign(corpus=run.material.train.name))
    return [save_table(table, run.study("pruning").path("trainings"))]


def trees(run: Workflow) -> Corpus:
    """Return the sentences with trees; raise Missing without any."""
    if run.material.trees is None:
        raise Missing("functions need sentences with trees; put trees.conllu into the folder of data")
    return run.material.trees


def only_translation(run: Workflow) -> None:
    """Raise Missing unless the model translates."""
    if not run.translation:
        raise Missing("the paper shows a translation model; this model is not one")


# --- what tables say together -----------------------------------------------------------------------------------------


def cost_of_all_heads(bench: Bench, table: pd.DataFrame, kind: Kind | None = None) -> dict[str, float | str]:
    """Return `all` with its interval, the cost of removing all heads or all of a kind; NaN without a curve.

    The curve is of the model of a table. The cost is measured by the table's metric if there is such a curve, else by
    the foremost one: `all.metric`.
    """
    order, metric, used = "importance" if kind is None else f"{kind} by importance", v.metric_of(table), [*bench.used]
    unknown: dict[str, float | str] = {**dict.fromkeys(v.with_bounds("all"), math.nan), "all.metric": metric}
    try:
        candidates = [curves for curves in bench.tables("kinds" if kind else "curves") if _same_model(curves, table)]
    except Missing:
        return unknown
    bench.used = used
    if not candidates:
        return unknown
    curves = next((curves for curves in candidates if v.metric_of(curves) == metric), candidates[0])
    bench.used = list(dict.fromkeys([*used, Path(str(curves.attrs["file"]))]))
    rows = curves[curves["order"] == order]
    if rows.empty:
        return unknown
    cost = v.costs(rows.nlargest(1, "masked"), rows.iloc[rows["masked"].argmin()], v.metric_of(curves))
    ends = {name.replace("cost", "all"): float(values[0]) for name, values in cost.items()}
    return {**ends, "all.metric": v.metric_of(curves)}


def _same_model(curves: pd.DataFrame, table: pd.DataFrame) -> bool:
    """Return whether the provenance of a table names the weights of curves, which are then of its intact model."""
    weights, signatures = v.signature_field(curves, "weights"), table.attrs.get("signatures", {})
    return not weights or f"weights:{weights}" in next(iter(signatures.values()), "")


def length_of_training(bench: Bench, table: pd.DataFrame, model: str) -> dict[str, float]:
    """Return for how many `steps`, and `epochs` of its task's data, a model of a table's study was trained, or NaN."""
    lengths = _lengths(bench, table)
    known = None if lengths is None else lengths.set_index("what").reindex([model])
    return {name: math.nan if known is None else float(known[name].iloc[0]) for name in ("steps", "epochs")}


def _lengths(bench: Bench, table: pd.DataFrame) -> pd.DataFrame | None:
    """Load the lengths of training beside a table, else in the folder above, else from the same folder of the bench."""
    for above in (0, 1):
        if (lengths := bench.beside(table, "trainings", above=above)) is not None:
            return lengths
    file, used = Path(str(table.attrs["file"])), [*bench.used]
    try:
        lengths = bench.table("trainings")
    except Missing:
        return None
    place = Path(lengths.attrs["file"])
    if any(file.is_relative_to(folder) and place.is_relative_to(folder) for folder in bench.folders):
        return lengths
    bench.used = used
    return None
