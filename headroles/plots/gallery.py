"""Galleries: all figures that the tables of a study allow, drawn one at a time (no torch)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from headroles import plots
from headroles.analysis import role_rules
from headroles.analysis.summaries import sizes_of
from headroles.plots.attention_map import LEAST
from headroles.tables.columns import Column, of_name, stem_of
from headroles.tables.declared import SCORES, declared, signature_of
from headroles.tables.frame import KINDS, Kind
from headroles.tables.io import check_ours, mark_of, replacing
from headroles.tables.study import Study, as_study

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Figure(NamedTuple):
    """A figure that the tables of a study allow: its file name without suffix, and the call that draws it."""

    name: str
    call: partial[Axes] | partial[list[Axes]]

    def draw(self) -> Axes:
        """Draw it, and return the first of its axes."""
        drawn = self.call()
        return drawn[0] if isinstance(drawn, list) else drawn

    def digest(self) -> str:
        """Return a digest of the drawing: values, names, options, and the versions of the plotting packages."""
        drawn = hashlib.sha256(repr([version(name) for name in ("headroles", "matplotlib", "seaborn")]).encode())
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
    study = as_study(study)
    if not study.names():
        raise study.lacks("tables")
    files = []
    for figure in figures(study.names(), study.load):
        path, digest = study.folder / f"{figure.name}.png", figure.digest()
        files.append(path)
        if study.overwrite or _drawn(path) != digest:
            check_ours(path, "", overwrite=study.overwrite)
            save(figure.draw(), path, digest=digest)
    for old in {*study.folder.glob("*.png")} - {*files}:
        if _drawn(old):
            old.unlink(missing_ok=True)
    return files


def _drawn(path: Path) -> str:
    """Return the digest stored in a figure of `plot`; "" for a damaged or foreign file."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            picture.verify()
            return str(picture.info["Source"]) if picture.info.get("Software") == mark_of("") else ""
    except (OSError, SyntaxError, KeyError):  # a SyntaxError of broken chunks
        return ""


Load = Callable[[str], pd.DataFrame]


def figures(names: Collection[str], load: Load) -> Iterator[Figure]:
    """Yield every figure that tables allow, such as of `study.names()`; `load` is called for tables with figures."""
    keys = {name: name if name in DRAWERS else f"{stem_of(name)}-" for name in names}
    for key, draw in DRAWERS.items():
        for name in sorted(name for name in names if keys[name] == key):
            yield from draw(name, load)


def save(axes: Axes, path: Path, *, dpi: int = 150, digest: str = "") -> None:
    """Save the figure of `axes` as PNG, marked as made by headroles and with the digest of its drawing; release it."""
    import matplotlib.pyplot as plt

    figure, notes = plt.figure(axes.get_figure(root=True)), {"Software": mark_of(""), "Source": digest}
    with replacing(path) as draft:
        figure.savefig(draft, dpi=dpi, bbox_inches="tight", format="png", metadata=notes)
    plt.close(figure)


def _scores(name: str, load: Load) -> Iterator[Figure]:
    table = load(name)
    further = [column for column in map(str, table) if _is_declared(table, column)]
    for column in (*SCORES, *further):
        if column in table and column != "position[offset]" and table[column].nunique() > 1:  # no map of one colour
            yield Figure(_slug(f"heatmap {column}"), partial(plots.heatmaps, table[column]))
    for column in of_name(table, "relevance", "size"):
        base = Column.parse(column).base
        for kind in _kinds(table[[column]]) if len(base.words) == 1 else ():  # shares of the layer
            yield Figure(_slug(f"{base} {kind}"), partial(plots.relevance, table[column], kind=kind))
    syntax = table[[column for column in table if Column.parse(column).name == "syntax"]]
    words = syntax[of_name(syntax, "syntax", "words")]
    for kind in _kinds(words.where(words >= LEAST)):
        yield Figure(f"dependency-{kind}", partial(plots.dependency, syntax, kind=kind))


def _is_declared(table: pd.DataFrame, name: str) -> bool:
    """Return whether a column is of a user's own score that declares how it is shown."""
    column = Column.parse(name)
    return bool(column.is_measurement and declared("score", column.name, signature_of(table, name)))


def _roles(name: str, load: Load) -> Iterator[Figure]:
    table = load(name)
    for kind in _kinds(table[role_rules.names(table)].where(lambda held: held.astype(bool))):
        yield Figure(f"roles-{kind}", partial(plots.roles, table, kind=kind))


def _effects(name: str, load: Load) -> Iterator[Figure]:
    table = load(name)
    yield from _each_kind(name, table, plots.ablation, _kinds(table))
    if "-head-" in name:
        yield Figure(_slug(f"{name} histogram"), partial(plots.histogram, table))


def _sparsity(name: str, load: Load) -> Iterator[Figure]:
    table = load(name)
    if len(table) > 2:  # the whole model and one size are no line
        yield Figure(_slug(name), partial(plots.survival, table))
        if sum(table[kind].nunique() > 1 for kind in KINDS if kind in table) > 1:
            yield Figure(_slug(f"{name} kinds"), partial(plots.by_kind, table))


def _survival(name: str, load: Load) -> Iterator[Figure]:
    table = load(name)
    if len(columns := sizes_of(table)) > 1:
        yield from _each_kind(name, table, plots.by_layer, _kinds(table[(table[columns] == 0).any(axis=1)]))


def _functions(name: str, load: Load) -> Iterator[Figure]:
    table = load(name)
    yield from _each_kind(name, table, plots.functions, table["kind"].unique())


def _each_kind(name: str, table: pd.DataFrame, draw: Callable[..., Axes], kinds: Iterable[Kind]) -> Iterator[Figure]:
    for kind in kinds:
        yield Figure(_slug(f"{name} {kind}"), partial(draw, table, kind=kind))


def _weight_change(name: str, load: Load) -> Iterator[Figure]:
    label = "change of the weights, relative"
    yield Figure(_slug(name), partial(plots.heatmaps, load(name)["moved[all]"], label=label))


def _comparison(name: str, load: Load) -> Iterator[Figure]:
    yield Figure(name, partial(plots.compare_pruning, load(name), load("compare-pruning-seeds")))


def _dynamics(name: str, load: Load) -> Iterator[Figure]:
    table = load(name)
    yield Figure("dynamics", partial(plots.dynamics, table))
    if table["epoch"].nunique() > 1:
        yield Figure("settling", partial(plots.settling, load("dynamics-order")))


def _role_changes(name: str, load: Load) -> Iterator[Figure]:
    if (table := load(name))[["before", "after"]].to_numpy().any():
        yield Figure(_slug(name), partial(plots.role_changes, table))


def _role_tests(name: str, load: Load) -> Iterator[Figure]:
    table = load(name)
    is_set = table.index.get_level_values("heads").str.startswith("all ")
    for sets in sorted({*map(bool, is_set)}):
        yield Figure(_slug(f"{name}{' sets' if sets else ''}"), partial(plots.role_costs, table, sets=sets))


def _whole(draw: Callable[..., Any], *, column: str = "", along: str = "") -> Draw:
    """Return a function that yields one figure of a table if `column` has any value and `along` more than one."""

    def figure(name: str, load: Load) -> Iterator[Figure]:
        table = load(name)
        if (not column or table[column].notna().any()) and (not along or table[along].nunique() > 1):
            yield Figure(_slug(name), partial(draw, table))

    return figure


Draw = Callable[[str, Load], Iterator[Figure]]
DRAWERS: dict[str, Draw] = {  # table -> its figures; `stem-` with further words
    "heads": _scores,
    "roles": _roles,
    "conservation-": _whole(plots.conservation),
    "ablation-": _effects,
    "role-": _role_tests,
    "budget-": _whole(plots.budget),
    "curves-": _whole(plots.curves, along="share"),
    "sparsity-": _sparsity,
    "survival-": _survival,
    "functions-": _functions,
    "gates-": _whole(plots.gates, along="step"),
    "weight-change-": _weight_change,
    "compare-pruning": _comparison,
    "role-changes-": _role_changes,
    "dynamics-curves": _dynamics,
    "efficiency": _whole(plots.efficiency, along="share"),
    "relate": _whole(plots.relation, column="auc"),
    "predictors": _whole(plots.predictors, column="spearman"),
    "offsets": _whole(plots.offsets),
}


def _kinds(table: pd.DataFrame) -> list[Kind]:
    """Return the kinds for which a table has any value."""
    present = table.dropna(how="all").index.unique("kind")
    return [kind for kind in KINDS if kind in present]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9+]+", "-", text.lower()).strip("-")
