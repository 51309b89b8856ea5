"""Galleries: all figures that the tables of a study allow, drawn one at a time (no torch)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from headroles import plots
from headroles.analysis import role_rules
from headroles.plots.styling import metric_name
from headroles.tables import frame
from headroles.tables.frame import KINDS, Kind, metric_of
from headroles.tables.io import check_ours, mark_of, replacing
from headroles.tables.study import Study, study_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWING = ("headroles", "matplotlib", "seaborn")
DRAWN = (  # files that `plot` may write
    *("heatmap-*.png", "dependency-*.png", "roles-*.png", "offsets.png"),
    *("relevance-*.png", "conservation-*.png", "ablation-*.png", "curves*.png"),
    *("sizes-*.png", "survival-*.png", "functions-*.png", "gates-*.png"),
    *("compensation-*.png", "contest.png", "efficiency.png", "dynamics.png", "settling.png"),
    *("relate.png", "odds.png", "predictors.png", "drift-*.png"),
)
MAPS = (  # columns that are drawn as heatmaps
    *("confidence", "position[best]", "rarity", "entropy", "distance", "sink[special]", "sink[first]"),
    *("alignment[monotone]", "alignment[diagonal]", "induction", "duplicate", "importance"),
)


class Figure(NamedTuple):
    """A figure that the tables of a study allow: its file name without suffix, and the call that draws it."""

    name: str
    call: partial[Axes] | partial[list[Axes]]

    def draw(self) -> Axes:
        """Draw it, and return the first of its axes."""
        drawn = self.call()
        return drawn[0] if isinstance(drawn, list) else drawn

    def digest(self) -> str:
        """Return a digest of what is drawn: values, names, options, and the versions of what draws."""
        drawn = hashlib.sha256(repr([version(name) for name in DRAWING]).encode())
        drawn.update(f"{self.call.func.__name__} {self.call.keywords}".encode())
        for table in map(pd.DataFrame, self.call.args):
            drawn.update(repr([list(table), list(table.index.names)]).encode())
            drawn.update(pd.util.hash_pandas_object(table).to_numpy().tobytes())
        return drawn.hexdigest()


def plot(study: Study | str | Path) -> list[Path]:
    """Draw every figure that the tables of a study allow.

    They are PNG files beside the tables. A figure that shows what the tables have now stays as it is, unless the study
    is to be overwritten. Figures of an earlier drawing that the tables no longer allow are removed.

    Args:
        study: Study or folder with tables.

    Returns:
        The files.

    Raises:
        FileNotFoundError: If the study has no tables.
        FileExistsError: If a picture that headroles did not draw has the name of a figure.
    """  # noqa: DOC502
    study = study_at(study)
    if not study.names():
        raise FileNotFoundError(f"no tables in {study.folder}; make them with headroles score")
    files = []
    for figure in figures(study):
        path, digest = study.folder / f"{figure.name}.png", figure.digest()
        files.append(path)
        if _shows(path, digest) and not study.overwrite:
            continue
        if path.is_file() and b"Matplotlib" not in path.read_bytes():  # earlier versions did not sign figures
            check_ours(path, "", overwrite=study.overwrite)
        save(figure.draw(), path, digest=digest)
    for old in {path for pattern in DRAWN for path in study.folder.glob(pattern)} - set(files):
        if mark_of("").encode() in old.read_bytes():
            old.unlink(missing_ok=True)
    return files


def _shows(path: Path, digest: str) -> bool:
    """Return whether an undamaged PNG shows what has this digest."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            picture.verify()
            return bool(picture.info.get("Source") == digest)
    except (OSError, SyntaxError):  # the latter of broken chunks
        return False


def figures(study: Study) -> Iterator[Figure]:
    """List every figure that a study's tables allow.

    Args:
        study: The study.

    Yields:
        The figures, of one table after the other.
    """
    names = study.names()
    if "heads" in names:
        yield from _scores(study.load("heads"))
    if "roles" in names:
        table = study.load("roles")
        for kind in _kinds(table[role_rules.names(table)].where(lambda held: held.astype(bool))):
            yield Figure(f"roles-{kind}", partial(plots.roles, table, kind=kind))
    for stem in ("conservation", "ablation", "curves"):
        for name in (name for name in names if name.partition("-")[0] == stem and name != "conservation"):
            yield from _outcomes(name, study.load(name))
    for name in names:
        yield from _pruned(study, name)
        yield from _compared(study, name)
    for name in names:
        yield from _related(study, name)
    if "offsets" in names:
        yield Figure("offsets", partial(plots.offsets, study.load("offsets")))


def save(axes: Axes, path: Path, *, dpi: int = 150, of: str = "", digest: str = "") -> Path:
    """Save the figure of `axes`, marked as made by headroles, and release it.

    Args:
        axes: Any axes of the figure.
        path: The file; its suffix is the format.
        dpi: Resolution.
        of: Digest of the weights that the figure is of.
        digest: Digest of what is drawn, kept in a PNG.

    Returns:
        The path.
    """
    import matplotlib.pyplot as plt

    kind = path.suffix.lstrip(".") or "png"
    note = {"png": "Software", "pdf": "Creator", "svg": "Creator"}.get(kind)
    metadata = None if note is None else {note: mark_of(of)}
    if metadata is not None and kind == "png":
        metadata["Source"] = digest
    figure = plt.figure(axes.get_figure(root=True))
    with replacing(path) as draft:
        figure.savefig(draft, dpi=dpi, bbox_inches="tight", format=kind, metadata=metadata)
    plt.close(figure)
    return path


def _scores(table: pd.DataFrame) -> Iterator[Figure]:
    for column in MAPS:
        if column in table and table[column].notna().any():
            yield Figure(_slug(f"heatmap {column}"), partial(plots.heatmaps, table[column]))
    for column in map(str, table.filter(regex=r"^relevance\[[^ ]*\]\.size$")):
        for kind in _kinds(table[[column]]):
            name = _slug(f"{column.removesuffix('.size')} {kind}")
            yield Figure(name, partial(plots.relevance, table[column], kind=kind))
    syntax = table.filter(regex=r"^syntax\[")
    for kind in _kinds(syntax.filter(regex=r"^[^.]*$")):
        yield Figure(f"dependency-{kind}", partial(plots.dependency, syntax, kind=kind))


def _outcomes(name: str, table: pd.DataFrame) -> Iterator[Figure]:
    """Figures of conservation, ablation and curves."""
    if name.startswith("conservation"):
        yield Figure(_slug(name), partial(plots.conservation, table))
    elif name.startswith("curves"):
        yield Figure(_slug(name), partial(plots.curves, table, label=_measured(table)))
    else:
        for kind in _kinds(table):
            yield Figure(_slug(f"{name} {kind}"), partial(plots.ablation, table, kind=kind))
        if "-single-" in name:
            yield Figure(_slug(f"{name} histogram"), partial(plots.histogram, table))


def _pruned(study: Study, name: str) -> Iterator[Figure]:
    """Figures of pruned models."""
    stem = name.partition("-")[0]
    if stem not in ("sizes", "survival", "functions", "gates", "compensation"):
        return
    table = study.load(name)
    if stem == "sizes":
        yield Figure(_slug(name), partial(plots.survival, table, label=_measured(table)))
        yield Figure(_slug(f"{name} kinds"), partial(plots.by_kind, table))
    elif stem == "survival":
        for kind in _kinds(table[(table.filter(regex=r"\]$") == 0).any(axis=1)]):
            yield Figure(_slug(f"{name} {kind}"), partial(plots.by_layer, table, kind=kind))
    elif stem == "functions":
        for kind in table["kind"].unique():
            yield Figure(_slug(f"{name} {kind}"), partial(plots.functions, table, kind=kind))
    elif stem == "gates":
        yield Figure(_slug(name), partial(plots.gates, table))
    else:
        yield Figure(_slug(name), partial(plots.heatmaps, table["moved[all]"], label="change of the weights, relative"))


def _compared(study: Study, name: str) -> Iterator[Figure]:
    """Figures of strategies, speed and training."""
    if name == "contest":
        table = study.load(name)
        yield Figure(name, partial(plots.contest, table, study.load("contest-seeds"), label=_measured(table)))
    elif name == "efficiency":
        yield Figure(name, partial(plots.efficiency, study.load(name)))
    elif name == "dynamics-curves":
        table = study.load(name)
        yield Figure("dynamics", partial(plots.dynamics, table, label=_measured(table)))
        yield Figure("settling", partial(plots.settling, study.load("dynamics-order")))


def _related(study: Study, name: str) -> Iterator[Figure]:
    """Figures of roles and outcomes, except empty ones."""
    if name.startswith("drift-") and (table := study.load(name))[["before", "after"]].to_numpy().any():
        yield Figure(_slug(name), partial(plots.drift, table))
    elif name == "relate" and (table := study.load(name))["auc"].notna().any():
        yield Figure(name, partial(plots.relation, table))
    elif (
        name == "odds" and (table := study.load(name))["odds"][~table["term"].str.match("(kind|depth) ")].notna().any()
    ):
        yield Figure(name, partial(plots.odds, table))
    elif name == "predictors" and (table := study.load(name))["spearman"].notna().any():
        yield Figure(name, partial(plots.predictors, table))


def _measured(table: pd.DataFrame) -> str:
    """Name of the metric of a table, from its provenance."""
    return metric_name(metric_of(frame.provenance(table, "value")) or "metric")


def _kinds(table: pd.DataFrame) -> list[Kind]:
    """Kinds for which a table has any value."""
    present = table.dropna(how="all").index.unique("kind")
    return [kind for kind in KINDS if kind in present]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9+]+", "-", text.lower()).strip("-")
