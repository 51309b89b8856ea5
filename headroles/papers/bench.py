"""Bench: the tables that artefacts need, found in studies or computed for a model (no torch)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow.parquet as pq

from headroles.papers import verdicts as v
from headroles.papers.verdicts import METRIC, METRICS, Missing
from headroles.tables.frame import Kind
from headroles.tables.io import load_table

if TYPE_CHECKING:
    from headroles.papers.workflow import Workflow

SKIPPED = ("papers", "untrained")  # subfolders of a study without tables of the model itself
REPRODUCE = "headroles reproduce voita2019 {} --model MODEL --data FOLDER"
COMPARE = "headroles compare-pruning MODEL CORPUS --held-out DEV"
SWEEP = "headroles sparsity-sweep MODEL CORPUS --held-out DEV --kinds enc-self --freeze decoder"
SWEEP_ALL = "headroles sparsity-sweep MODEL CORPUS TARGET --held-out DEV"


@dataclass(frozen=True)
class RequiredTable:
    """A table that artefacts need: its contents, the command that makes it, and how to recognise its files."""

    what: str
    command: str
    names: str  # pattern of file names without .parquet; a group "metric" puts the papers' metrics first
    columns: tuple[str, ...] = ()  # patterns; each must match a column
    values: tuple[str, ...] = ()  # a column, and patterns; each must match one of its values


REQUIRED: dict[str, RequiredTable] = {
    "relevance": RequiredTable(
        "scores with confidence and relevance", "headroles score MODEL CORPUS --scores confidence,relevance",
        "heads", columns=("confidence", r"relevance\[[^ ]*\]\.size"),
    ),
    "untrained": RequiredTable(
        "scores of untrained models of the same shape", REPRODUCE.format("fig1a"),
        "untrained", columns=("most", "correlation"),
    ),
    "functions": RequiredTable(
        "scores with position, syntax and rarity", "headroles score MODEL TREES.conllu",
        "heads", columns=(r"position\[-1\]", r"syntax\[.*\]\.baseline", "rarity"),
    ),
    "offsets": RequiredTable(
        "distances between words and their heads", "headroles score MODEL TREES.conllu", "offsets"
    ),
    "attention": RequiredTable("attention of the rarest head on sentences", REPRODUCE.format("fig5"), "attention-rare"),
    "sizes-encoder": RequiredTable("an encoder pruned to several sizes", SWEEP, "sparsity-l0-enc-self"),
    "functions-encoder": RequiredTable(
        "functions of the surviving heads of a pruned encoder", f"{SWEEP} --scored TREES", "functions-l0-enc-self"
    ),
    "gates": RequiredTable("the history of the encoder's gates", SWEEP, r"gates-l0-enc-self-\d+"),
    "sizes": RequiredTable(
        "a translation model pruned to several sizes", SWEEP_ALL, "sparsity-l0", columns=("cross",)
    ),
    "survival": RequiredTable("survival of each head at each size", SWEEP_ALL, "survival-l0"),
    "scratch": RequiredTable(
        "models of the pruned sizes trained from scratch", REPRODUCE.format("table2"),
        "scratch", columns=("finetuned", "scratch"),
    ),
    "trainings": RequiredTable(
        "lengths of training of the compared models", REPRODUCE.format("table2"),
        "trainings", columns=("what", "steps", "epochs"),
    ),
    "single": RequiredTable(
        "effects of ablating each head", "headroles ablate MODEL CORPUS", rf"ablation-{METRIC}-head-zero"
    ),
    "best": RequiredTable(
        "effects of keeping one head per layer", "headroles ablate MODEL CORPUS --unit all_but_one",
        rf"best-{METRIC}-zero",
    ),
    "halves": RequiredTable(
        "effects of keeping one head per layer, chosen on other examples",
        "headroles ablate MODEL CORPUS --unit all_but_one", rf"best-{METRIC}-zero-halves",
    ),
    "curves": RequiredTable(
        "curves of heads ablated cumulatively by importance",
        "headroles ablation-curve MODEL CORPUS --by importance", rf"curves-{METRIC}", values=("order", "importance"),
    ),
    "kinds": RequiredTable(
        "curves of heads of each kind ablated cumulatively by importance",
        "headroles ablation-curve MODEL CORPUS --by importance --kind each", rf"curves-{METRIC}-each",
        values=("order", r".* by importance(\[layer\])?"),
    ),
    "dynamics": RequiredTable(
        "curves at each epoch of a training", "hr.dynamics(training, corpus, held_out, study=...)",
        "dynamics-curves", columns=("kept",),
    ),
    "efficiency": RequiredTable("speeds with heads removed", "hr.efficiency(model, study=...)", "efficiency"),
    "compare-pruning": RequiredTable(
        "a comparison of pruning strategies", COMPARE, "(.*-)?compare-pruning",
        columns=("strategy", "tuned"), values=("strategy", "importance", "random"),
    ),
    "places": RequiredTable(
        "a comparison of pruning by place",
        f'{COMPARE} --strategies "bottom,middle,top,ends,middle alternating,random"',
        ".*", columns=("strategy", "tuned", r"value\.low"), values=("strategy", "middle", "ends"),
    ),
    "weight-change": RequiredTable(
        "changes of each head's weights in fine-tuning", "hr.weight_change(model, tuned, study=...)",
        r"weight-change-\d+",
    ),
    "uniformity": RequiredTable(
        "a test whether all heads' weights changed alike",
        "hr.weight_change(model, tuned, seed=..., study=...) of three fine-tunings",
        "uniformity", columns=("w", "p"),
    ),
}  # fmt: skip


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

    def first(self, name: str, fits: Callable[[pd.DataFrame], bool] = lambda _: True) -> pd.DataFrame | None:
        """Load the foremost fitting file of a required table, and count only this one as used; None without one."""
        used, match = [*self.used], None
        with suppress(Missing):
            match = next((table for table in self.tables(name) if fits(table)), None)
        self.used = list(dict.fromkeys([*used, *([] if match is None else [Path(match.attrs["file"])])]))
        return match

    def beside(self, table: pd.DataFrame, name: str, *, above: int = 0) -> pd.DataFrame | None:
        """Load the table `name` from the folder of another table, or `above` folders up; None without one."""
        path = Path(str(table.attrs["file"])).parents[above] / f"{name}.parquet"
        return self._loaded([path])[0] if path.is_file() else None

    def _found(self, name: str) -> list[Path]:
        required = REQUIRED[name]
        paths = self.run.make(name) if self.run else self._files(required)
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
    # part of its folder (`captions` in `captions-en-de`); by name. Tables of an untrained model are ranked as tables of
    # its study.
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
    return all(load_table(path)[column].str.fullmatch(pattern).any() for pattern in values)


# --- what tables say together -----------------------------------------------------------------------------------------


def cost_of_all_heads(bench: Bench, table: pd.DataFrame, kind: Kind | None = None) -> dict[str, float | str]:
    """Return `all` with its interval, the cost of removing all heads or all of a kind; NaN without a curve.

    The curve is of the model of a table. The cost is measured by the table's metric if there is such a curve, else by
    the foremost one: `all.metric`.
    """
    name, order = ("curves", "importance") if kind is None else ("kinds", f"{kind} by importance")
    metric = v.metric_of(table)
    curves = bench.first(name, lambda match: _same_model(match, table) and v.metric_of(match) == metric)
    if curves is None:
        curves = bench.first(name, lambda match: _same_model(match, table))
    if curves is None or (rows := curves[curves["order"] == order]).empty:
        return {**dict.fromkeys(v.with_bounds("all"), math.nan), "all.metric": metric}
    cost = v.costs(rows.nlargest(1, "masked"), rows.iloc[rows["masked"].argmin()], v.metric_of(curves))
    ends = {name.replace("cost", "all"): float(values[0]) for name, values in cost.items()}
    return {**ends, "all.metric": v.metric_of(curves)}


def _same_model(curves: pd.DataFrame, table: pd.DataFrame) -> bool:
    """Return whether a table's provenance names the weights of curves: then they are of its intact model."""
    weights, signatures = v.signature_field(curves, "weights"), table.attrs.get("signatures", {})
    return not weights or f"weights:{weights}" in next(iter(signatures.values()), "")


def length_of_training(bench: Bench, table: pd.DataFrame, model: str) -> dict[str, float]:
    """Return for how many `steps` and `epochs` of its task's data a model of a table's study was trained, or NaN."""
    nearby = (bench.beside(table, "trainings", above=above) for above in (0, 1))
    lengths = next((match for match in nearby if match is not None), None)
    if lengths is None:  # anywhere in the same folder of the bench
        around = [folder for folder in bench.folders if Path(table.attrs["file"]).is_relative_to(folder)]
        lengths = bench.first("trainings", lambda match: any(map(Path(match.attrs["file"]).is_relative_to, around)))
    known = None if lengths is None else lengths.set_index("what").reindex([model])
    return {name: math.nan if known is None else float(known[name].iloc[0]) for name in ("steps", "epochs")}
