"""Galleries: all figures that the tables of a study allow, drawn one at a time (no torch)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from headroles import plots
from headroles.analysis import role_rules
from headroles.plots.scales import metric_name
from headroles.tables import frame
from headroles.tables.files import mark_of, replacing
from headroles.tables.frame import KINDS, Kind, metric_of
from headroles.tables.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Figures = Iterator[tuple[str, Axes]]

DRAWN = (  # files that `score_study.draw` may write
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


def figures(study: Study) -> Figures:
    """Draw every figure that a study's tables allow, each on demand: its file name without suffix, and its axes."""
    names = study.names()
    if "heads" in names:
        yield from _scores(study.load("heads"))
    if "roles" in names:
        table = study.load("roles")
        for kind in _kinds(table[role_rules.names(table)].where(lambda held: held.astype(bool))):
            yield f"roles-{kind}", plots.roles(table, kind=kind)
    for stem in ("conservation", "ablation", "curves"):
        for name in (name for name in names if name.partition("-")[0] == stem and name != "conservation"):
            yield from _outcomes(name, study.load(name))
    for name in names:
        yield from _pruned(study, name)
        yield from _compared(study, name)
    for name in names:
        yield from _related(study, name)
    if "offsets" in names:
        yield "offsets", plots.offsets(study.load("offsets"))[0]


def save(axes: Axes, path: Path, *, dpi: int = 150, of: str = "") -> Path:
    """Save the figure of `axes` in the format of the suffix, marked as of headroles and of weights `of`; release it."""
    import matplotlib.pyplot as plt

    kind = path.suffix.lstrip(".") or "png"
    note = {"png": "Software", "pdf": "Creator", "svg": "Creator"}.get(kind)
    metadata = None if note is None else {note: mark_of(of)}
    figure = plt.figure(axes.get_figure(root=True))
    with replacing(path) as draft:
        figure.savefig(draft, dpi=dpi, bbox_inches="tight", format=kind, metadata=metadata)
    plt.close(figure)
    return path


def _scores(table: pd.DataFrame) -> Figures:
    for column in MAPS:
        if column in table and table[column].notna().any():
            yield _slug(f"heatmap {column}"), plots.heatmaps(table[column])[0]
    for column in map(str, table.filter(regex=r"^relevance\[[^ ]*\]\.size$")):
        for kind in _kinds(table[[column]]):
            yield _slug(f"{column.removesuffix('.size')} {kind}"), plots.relevance(table[column], kind=kind)
    for kind in _kinds(table.filter(regex=r"^syntax\[[^.]*$")):
        yield f"dependency-{kind}", plots.dependency(table, kind=kind)


def _outcomes(name: str, table: pd.DataFrame) -> Figures:
    """Figures of conservation, ablation and curves."""
    if name.startswith("conservation"):
        yield _slug(name), plots.conservation(table)
    elif name.startswith("curves"):
        yield _slug(name), plots.curves(table, label=_measured(table))
    else:
        for kind in _kinds(table):
            yield _slug(f"{name} {kind}"), plots.ablation(table, kind=kind)
        if "-single-" in name:
            yield _slug(f"{name} histogram"), plots.histogram(table)


def _pruned(study: Study, name: str) -> Figures:
    """Figures of pruned models."""
    stem = name.partition("-")[0]
    if stem not in ("sizes", "survival", "functions", "gates", "compensation"):
        return
    table = study.load(name)
    if stem == "sizes":
        yield _slug(name), plots.survival(table, label=_measured(table))
        yield _slug(f"{name} kinds"), plots.by_kind(table)
    elif stem == "survival":
        for kind in _kinds(table[(table.filter(regex=r"\]$") == 0).any(axis=1)]):
            yield _slug(f"{name} {kind}"), plots.by_layer(table, kind=kind)
    elif stem == "functions":
        for kind in table["kind"].unique():
            yield _slug(f"{name} {kind}"), plots.functions(table, kind=kind)
    elif stem == "gates":
        yield _slug(name), plots.gates(table)
    else:
        yield _slug(name), plots.heatmaps(table["moved[all]"], label="change of the weights, relative")[0]


def _compared(study: Study, name: str) -> Figures:
    """Figures of strategies, speed and training."""
    if name == "contest":
        table = study.load(name)
        yield name, plots.contest(table, study.load("contest-seeds"), label=_measured(table))[0]
    elif name == "efficiency":
        yield name, plots.efficiency(study.load(name))
    elif name == "dynamics-curves":
        table = study.load(name)
        yield "dynamics", plots.dynamics(table, label=_measured(table))
        yield "settling", plots.settling(study.load("dynamics-order"))[0]


def _related(study: Study, name: str) -> Figures:
    """Figures of roles and outcomes, except empty ones."""
    if name.startswith("drift-") and (table := study.load(name))[["before", "after"]].to_numpy().any():
        yield _slug(name), plots.drift(table)[0]
    elif name == "relate" and (table := study.load(name))["auc"].notna().any():
        yield name, plots.relation(table)
    elif (
        name == "odds" and (table := study.load(name))["odds"][~table["term"].str.match("(kind|depth) ")].notna().any()
    ):
        yield name, plots.odds(table)
    elif name == "predictors" and (table := study.load(name))["spearman"].notna().any():
        yield name, plots.predictors(table)


def _measured(table: pd.DataFrame) -> str:
    """Name of the metric of a table, from its provenance."""
    return metric_name(metric_of(frame.provenance(table, "value")) or "metric")


def _kinds(table: pd.DataFrame) -> list[Kind]:
    """Kinds for which a table has any value."""
    present = table.dropna(how="all").index.unique("kind")
    return [kind for kind in KINDS if kind in present]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9+]+", "-", text.lower()).strip("-")
