"""The bench: gives artefacts the tables they need, found in folders or made, and says which (no torch)."""

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
from headroles.tables.io import load_table
from headroles.tables.signatures import metric_of as metric_in

METRICS = ("bleu", "chrf", "accuracy", "matthews", "f1", "agreement", "perplexity", "loss")  # the papers' own first
_METRIC = rf"(?P<metric>{'|'.join(METRICS)})"
_KIND = "(enc-self|dec-self|cross)"


class Missing(LookupError):
    """An artefact cannot be made here; the text says what is missing and which command makes it."""


@dataclass(frozen=True)
class Need:
    """A table that artefacts need: how it is called, which columns it has, what makes it."""

    what: str
    command: str
    names: str  # of files, without .parquet; a group "metric" puts the metrics of the papers first
    columns: tuple[str, ...] = ()  # each of which some column of it must be
    rows: Callable[[pd.DataFrame], bool] = len  # type: ignore[assignment]  # whether its rows are the right ones


def _strategies(*wanted: str) -> Callable[[pd.DataFrame], bool]:
    return lambda table: set(wanted) <= set(table["strategy"])


NEEDS = {
    "relevance": Need(
        "scores with confidence and relevance",
        "headroles score MODEL CORPUS --scores confidence,relevance",
        r"(.*-)?heads",
        ("confidence", r"relevance\[[^ ]*\]\.size"),
    ),
    "untrained": Need(
        "what untrained models of the same shape give",
        "headroles reproduce voita2019 fig1a --model MODEL --data FOLDER",
        "untrained",
        ("most", "correlation"),
    ),
    "trainings": Need(
        "how long the models that are compared were trained",
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
        "effects of closing each head", "headroles ablate MODEL CORPUS", rf"ablation-{_METRIC}-single-zero(-other)?"
    ),
    "best": Need(
        "effects of keeping one head of a layer",
        "headroles ablate MODEL CORPUS --unit all_but_one",
        rf"best-{_METRIC}-zero",
    ),
    "halves": Need(
        "effects of keeping a head that was chosen on other examples",
        "headroles ablate MODEL CORPUS --unit all_but_one",
        rf"best-{_METRIC}-zero-halves",
    ),
    "curves": Need(
        "curves of heads closed together by importance",
        "headroles ablation-curve MODEL CORPUS --by importance",
        rf"curves-{_METRIC}",
        rows=lambda table: "importance" in set(table["order"]),
    ),
    "kinds": Need(
        "curves of heads of each kind closed together by importance",
        "headroles ablation-curve MODEL CORPUS --by importance --kind each",
        rf"curves-{_METRIC}-each",
    ),
    "sizes-encoder": Need(
        "an encoder pruned to several sizes",
        "headroles prune MODEL CORPUS --kinds enc-self --freeze decoder",
        "sizes-.*-enc-self",
    ),
    "functions-encoder": Need(
        "functions of the heads that are left in a pruned encoder",
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
        "which heads are left at each size", "headroles prune MODEL CORPUS TARGET", rf"survival-(?!.*{_KIND}).*"
    ),
    "scratch": Need(
        "models of found sizes trained from scratch",
        "headroles reproduce voita2019 table2 --model MODEL --data FOLDER",
        "scratch",
        ("finetuned", "scratch"),
    ),
    "efficiency": Need("speeds with heads cut out", "headroles efficiency MODEL", "efficiency"),
    "dynamics": Need(
        "curves at each epoch of a training", "headroles dynamics TRAINING CORPUS", "dynamics-curves", ("kept",)
    ),
    "contest": Need(
        "a contest of strategies",
        "headroles compare-pruning MODEL CORPUS",
        "(.*-)?contest",
        ("strategy", "tuned"),
        _strategies("importance", "random"),
    ),
    "places": Need(
        "a contest of places",
        'headroles compare-pruning MODEL CORPUS --strategies "bottom,middle,top,ends,middle alternating,random"',
        ".*",
        ("strategy", "tuned", r"value\.low"),
        _strategies("middle", "ends"),
    ),
    "compensation": Need(
        "how far each head moved in fine-tuning", "headroles weight-change MODEL TUNED ...", r"compensation-\d+"
    ),
    "uniformity": Need(
        "whether all heads moved alike", "headroles weight-change MODEL TUNED TUNED TUNED", "uniformity", ("w", "p")
    ),
}


COMPARED = ("untrained", "trainings")  # needs that a model and an untrained one have in common
SKIPPED = ("papers", "untrained")  # folders of a study that have no tables of the model itself


class Bench:
    """Tables by what they are needed for, from folders of studies; `make` puts what is needed into the first folder.

    `make` is given a need's name and returns the files that it made, the foremost first; it raises Missing for what it
    cannot make. Without it tables are looked for: in the folders in their order, those of the papers' own metrics
    first, those that are not in a subfolder before others, then a subfolder whose name is a part of its folder's (the
    model's own domain: captions in captions-en-de).
    """

    def __init__(self, folders: Sequence[str | Path], make: Callable[[str], list[Path]] | None = None) -> None:
        self.folders, self.make = [Path(folder) for folder in folders], make
        self.used: list[Path] = []  # the files that were loaded
        self.untrained: Bench | None = None  # tables of an untrained model of the same shape, for negative controls
        self.shared: Bench | None = None  # where that one finds what the model is held against

    def tables(self, name: str) -> list[pd.DataFrame]:
        """All tables for a need, the foremost first. Raises Missing, in words, where there is none."""
        return self._loaded(self._found(name))

    def table(self, name: str) -> Any:
        """The foremost table for a need. Raises Missing, in words, where there is none."""
        return self._loaded(self._found(name)[:1])[0]

    def _found(self, name: str) -> list[Path]:
        if self.shared and name in COMPARED:
            return self.shared._found(name)
        found = self._files(name) if self.make is None else self.make(name)
        if not found:
            need, places = NEEDS[name], ", ".join(map(str, self.folders))
            raise Missing(f"no table of {need.what} in {places}; make one with {need.command}")
        return found

    def _loaded(self, paths: list[Path]) -> list[pd.DataFrame]:
        self.used += [path for path in paths if path not in self.used]
        return [_named(path) for path in paths]

    def _files(self, name: str) -> list[Path]:
        need = NEEDS[name]
        found: list[tuple[Any, Path]] = []
        for number, folder in enumerate(self.folders):
            if not folder.is_dir():
                raise FileNotFoundError(f"no folder {folder}; give the folder of a study")
            for path in sorted(folder.rglob("*.parquet")):
                inside = path.relative_to(folder)
                matched = re.fullmatch(need.names, path.stem)
                if matched is None or any(one.startswith(".") or one in SKIPPED for one in inside.parts[:-1]):
                    continue
                if _fits(path, need):
                    metric = METRICS.index(matched["metric"]) if "metric" in matched.groupdict() else 0
                    own = not (len(inside.parts) > 1 and inside.parts[-2] in folder.resolve().name.split("-"))
                    found.append(((number, metric, len(inside.parts), own, inside.parts), path))
        return [path for _, path in sorted(found)]


def of_kind(table: pd.DataFrame, kind: Kind = "enc-self") -> pd.DataFrame:
    """The rows of one kind, the index as it was. Raises Missing for a model without such heads."""
    present = [str(one) for one in KINDS if one in table.index.unique("kind")]
    if kind not in present:
        raise Missing(f"the paper shows {kind} heads; {table.attrs.get('file', 'the table')} has {', '.join(present)}")
    rows: pd.DataFrame = table[table.index.get_level_values("kind") == kind]
    return rows


def metric_of(table: pd.DataFrame) -> str:
    """The metric of a table whose file is called by it, or whose signature tells."""
    named = re.search(_METRIC, Path(str(table.attrs.get("file", ""))).stem)
    told = filter(None, map(metric_in, table.attrs.get("signatures", {}).values()))
    return named["metric"] if named else next(told, "metric")


def gains(differences: Any, metric: str) -> Any:
    """Differences of a metric, a row of value, low and high each, turned so that more is better."""
    return -differences[:, [0, 2, 1]] if metric in SMALLER_IS_BETTER else differences


def field(table: pd.DataFrame, name: str, column: str | None = None) -> str:
    """A field of the signature of a column, by default the first that is signed; "" where there is none."""
    signatures: dict[str, str] = table.attrs.get("signatures", {})
    text = signatures.get(column, "") if column else next(iter(signatures.values()), "")
    return dict(frame.fields(text)).get(name, "")


def _named(path: Path) -> pd.DataFrame:
    table = load_table(path)
    table.attrs["file"] = str(path)
    return table


def _fits(path: Path, need: Need) -> bool:
    """Whether a file has the columns, and the rows."""
    columns = pq.read_schema(path).names
    if not all(any(re.fullmatch(wanted, name) for name in columns) for wanted in need.columns):
        return False
    return need.rows is len or need.rows(load_table(path))
