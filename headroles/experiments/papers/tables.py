"""The bench: loads the tables that artefacts need, from study folders or freshly computed (no torch)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from headroles.plots.scales import SMALLER_IS_BETTER
from headroles.tables import frame
from headroles.tables.frame import KINDS, Kind
from headroles.tables.frame import metric_of as metric_in
from headroles.tables.io import load_table

METRICS = ("bleu", "chrf", "accuracy", "matthews", "f1", "agreement", "perplexity", "loss")  # the papers' own first
_METRIC = rf"(?P<metric>{'|'.join(METRICS)})"
_KIND = "(enc-self|dec-self|cross)"


class Missing(LookupError):
    """An artefact cannot be made; the message names the missing table and the command that makes it."""


@dataclass(frozen=True)
class Need:
    """A table that artefacts need: its description, the command that makes it, its file name and content."""

    what: str
    command: str
    names: str  # pattern of file names without .parquet; a group "metric" puts the papers' metrics first
    columns: tuple[str, ...] = ()  # patterns, each of which must match a column
    values: tuple[str, ...] = ()  # a column, and the values that it must have


NEEDS = {
    "relevance": Need(
        "scores with confidence and relevance",
        "headroles score MODEL CORPUS --scores confidence,relevance",
        r"(.*-)?heads",
        ("confidence", r"relevance\[[^ ]*\]\.size"),
    ),
    "untrained": Need(
        "scores of untrained models of the same shape",
        "headroles reproduce voita2019 fig1a --model MODEL --data FOLDER",
        "untrained",
        ("most", "correlation"),
    ),
    "trainings": Need(
        "lengths of training of the compared models",
        "headroles reproduce voita2019 table2 --model MODEL --data FOLDER",
        "trainings",
        ("what", "steps", "epochs"),
    ),
    "functions": Need(
        "scores with position, syntax and rarity",
        "headroles score MODEL CORPUS, on a corpus with trees",
        r"(.*-)?heads",
        (r"position\[-1\]", r"syntax\[.*\]\.baseline", "rarity"),
    ),
    "offsets": Need(
        "distances between words and their heads",
        "headroles score MODEL CORPUS, on a corpus with trees",
        "offsets",
    ),
    "attention": Need(
        "attention of the rarest head on sentences",
        "headroles reproduce voita2019 fig5 --model MODEL --data FOLDER",
        "attention-rare",
    ),
    "single": Need(
        "effects of ablating each head", "headroles ablate MODEL CORPUS", rf"ablation-{_METRIC}-single-zero(-other)?"
    ),
    "best": Need(
        "effects of keeping one head per layer",
        "headroles ablate MODEL CORPUS --unit all_but_one",
        rf"best-{_METRIC}-zero",
    ),
    "halves": Need(
        "effects of keeping one head per layer, chosen on other examples",
        "headroles ablate MODEL CORPUS --unit all_but_one",
        rf"best-{_METRIC}-zero-halves",
    ),
    "curves": Need(
        "curves of heads ablated cumulatively by importance",
        "headroles ablation-curve MODEL CORPUS --by importance",
        rf"curves-{_METRIC}",
        values=("order", "importance"),
    ),
    "kinds": Need(
        "curves of heads of each kind ablated cumulatively by importance",
        "headroles ablation-curve MODEL CORPUS --by importance --kind each",
        rf"curves-{_METRIC}-each",
    ),
    "sizes-encoder": Need(
        "an encoder pruned to several sizes",
        "headroles prune MODEL CORPUS --kinds enc-self --freeze decoder",
        "sizes-.*-enc-self",
    ),
    "functions-encoder": Need(
        "functions of the surviving heads of a pruned encoder",
        "headroles prune MODEL CORPUS --kinds enc-self --freeze decoder --scored TREES",
        "functions-.*-enc-self",
    ),
    "gates": Need(
        "the history of the encoder's gates",
        "headroles prune MODEL CORPUS --kinds enc-self --freeze decoder",
        r"gates-.*-enc-self-\d+",
    ),
    "sizes": Need(
        "a translation model pruned to several sizes",
        "headroles prune MODEL CORPUS TARGET",
        rf"sizes-(?!.*{_KIND}).*",
        ("cross",),
    ),
    "survival": Need(
        "survival of each head at each size", "headroles prune MODEL CORPUS TARGET", rf"survival-(?!.*{_KIND}).*"
    ),
    "scratch": Need(
        "models of the pruned sizes trained from scratch",
        "headroles reproduce voita2019 table2 --model MODEL --data FOLDER",
        "scratch",
        ("finetuned", "scratch"),
    ),
    "efficiency": Need("speeds with heads removed", "headroles efficiency MODEL", "efficiency"),
    "dynamics": Need(
        "curves at each epoch of a training", "headroles dynamics TRAINING CORPUS", "dynamics-curves", ("kept",)
    ),
    "contest": Need(
        "a comparison of pruning strategies",
        "headroles compare-pruning MODEL CORPUS",
        "(.*-)?contest",
        ("strategy", "tuned"),
        values=("strategy", "importance", "random"),
    ),
    "places": Need(
        "a comparison of pruning by place",
        'headroles compare-pruning MODEL CORPUS --strategies "bottom,middle,top,ends,middle alternating,random"',
        ".*",
        ("strategy", "tuned", r"value\.low"),
        values=("strategy", "middle", "ends"),
    ),
    "compensation": Need(
        "changes of each head's weights in fine-tuning", "headroles weight-change MODEL TUNED ...", r"compensation-\d+"
    ),
    "uniformity": Need(
        "a test whether all heads' weights changed alike",
        "headroles weight-change MODEL TUNED TUNED TUNED",
        "uniformity",
        ("w", "p"),
    ),
}


COMPARED = ("untrained", "trainings")  # needs that a model and its untrained control share
SKIPPED = ("papers", "untrained")  # subfolders of a study without tables of the model itself


class Bench:
    """Tables by need, from study folders.

    Tables are searched for in the order of the folders. Tables of the papers' own metrics come first, then those
    outside subfolders, then those of a subfolder named as a part of its folder (the model's own domain: `captions` in
    `captions-en-de`).

    Args:
        folders: Study folders.
        make: Function from the name of a need to its files, the foremost first. It computes what is missing in the
            first folder and raises `Missing` if it cannot. By default tables are only searched for.
    """

    def __init__(self, folders: Sequence[str | Path], make: Callable[[str], list[Path]] | None = None) -> None:
        self.folders, self.make = [Path(folder) for folder in folders], make
        self.used: list[Path] = []  # the files that were loaded
        self.untrained: Bench | None = None  # tables of an untrained model of the same shape, for negative controls
        self.shared: Bench | None = None  # where an untrained control finds the needs of `COMPARED`

    def tables(self, name: str) -> list[pd.DataFrame]:
        """Load all tables for a need, the foremost first; raise Missing without any."""
        return self._loaded(self._found(name))

    def table(self, name: str) -> Any:
        """Load the foremost table for a need; raise Missing without any."""
        return self._loaded(self._found(name)[:1])[0]

    def _found(self, name: str) -> list[Path]:
        if self.shared and name in COMPARED:
            return self.shared._found(name)
        paths = self._files(NEEDS[name]) if self.make is None else self.make(name)
        if not paths:
            need, places = NEEDS[name], ", ".join(map(str, self.folders))
            raise Missing(f"no table of {need.what} in {places}; make one with {need.command}")
        return paths

    def _loaded(self, paths: list[Path]) -> list[pd.DataFrame]:
        self.used += [path for path in paths if path not in self.used]
        tables = [load_table(path) for path in paths]
        for table, path in zip(tables, paths, strict=True):
            table.attrs["file"] = str(path)
        return tables

    def _files(self, need: Need) -> list[Path]:
        ranked: list[tuple[Any, Path]] = []
        for number, folder in enumerate(self.folders):
            if not folder.is_dir():
                raise FileNotFoundError(f"no folder {folder}; give the folder of a study")
            for path in sorted(folder.rglob("*.parquet")):
                inside = path.relative_to(folder)
                named = re.fullmatch(need.names, path.stem)
                skipped = any(part.startswith(".") or part in SKIPPED for part in inside.parts[:-1])
                if named and not skipped and _fits(path, need):
                    metric = METRICS.index(named["metric"]) if "metric" in named.groupdict() else 0
                    other = not (len(inside.parts) > 1 and inside.parts[-2] in folder.resolve().name.split("-"))
                    ranked.append(((number, metric, len(inside.parts), other, inside.parts), path))
        return [path for _, path in sorted(ranked)]


def _fits(path: Path, need: Need) -> bool:
    """Return whether a file has the columns and values of a need."""
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
    named = re.search(_METRIC, Path(str(table.attrs.get("file", ""))).stem)
    signed = filter(None, map(metric_in, table.attrs.get("signatures", {}).values()))
    return named["metric"] if named else next(signed, "metric")


def metric_label(table: pd.DataFrame) -> str:
    """Return the name of a table's metric as papers write it."""
    metric = metric_of(table)
    return {"bleu": "BLEU", "chrf": "chrF"}.get(metric, metric)


def gains(differences: Any, metric: str) -> Any:
    """Turn differences of a metric (rows of value, low, high) so that larger is better."""
    return -differences[:, [0, 2, 1]] if metric in SMALLER_IS_BETTER else differences


def field(table: pd.DataFrame, name: str, column: str | None = None) -> str:
    """Return a provenance field of a column, by default of the first with provenance; "" without any."""
    signatures: dict[str, str] = table.attrs.get("signatures", {})
    text = signatures.get(column, "") if column else next(iter(signatures.values()), "")
    return dict(frame.fields(text)).get(name, "")


def best_of_layers(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Select the head of each layer with the largest value of a column, as rows of `layer` and `head`."""
    return table.loc[table.groupby(level="layer")[column].idxmax()].reset_index().drop(columns="kind")
