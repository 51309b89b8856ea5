"""Galleries: all figures that the tables of a study allow, drawn one at a time (no torch)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from headroles.analysis import role_rules
from headroles.tables import frame
from headroles.tables.files import mark_of, replacing
from headroles.tables.frame import KINDS, metric_of
from headroles.tables.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWN = (  # files that `score_study.draw` may write
    *("heatmap-*.png", "dependency-*.png", "roles-*.png", "offsets.png"),
    *("relevance-*.png", "conservation-*.png", "ablation-*.png", "curves*.png"),
    *("sizes-*.png", "survival-*.png", "functions-*.png", "gates-*.png"),
    *("compensation-*.png", "contest.png", "efficiency.png", "dynamics.png", "settling.png"),
    *("relate.png", "odds.png", "predictors.png", "drift-*.png"),
)
MAPS = (  # columns that are drawn as heatmaps
    "confidence",
    "position[best]",
    "rarity",
    "entropy",
    "distance",
    "sink[special]",
    "sink[first]",
    "alignment[monotone]",
    "alignment[diagonal]",
    "induction",
    "duplicate",
    "importance",
)


def figures(study: Study) -> Iterator[tuple[str, Any]]:  # noqa: C901
    """Draw every figure that a study's tables allow.

    Args:
        study: The study.

    Yields:
        File name without suffix, and axes; the next figure is drawn on demand.
    """
    from headroles import plots

    if study.has("heads"):
        table = study.load("heads")
        for column in MAPS:
            if column in table and table[column].notna().any():
                yield _slug(f"heatmap {column}"), plots.heatmaps(table[column])[0]
        for column in map(str, table.filter(regex=r"^relevance\[[^ ]*\]\.size$")):
            for kind in _kinds(table[[column]]):
                yield _slug(f"{column.removesuffix('.size')} {kind}"), plots.relevance(table[column], kind=kind)
        for kind in _kinds(table.filter(regex=r"^syntax\[[^.]*$")):
            yield f"dependency-{kind}", plots.dependency(table, kind=kind)
    if study.has("roles"):
        roles = study.load("roles")
        for kind in _kinds(roles[role_rules.names(roles)].where(lambda held: held.astype(bool))):
            yield f"roles-{kind}", plots.roles(roles, kind=kind)
    for name in study.names():
        if name.startswith("conservation-"):
            yield _slug(name), plots.conservation(study.load(name))
    for name in study.names():
        if name.startswith("ablation-"):
            effects = study.load(name)
            for kind in _kinds(effects):
                yield _slug(f"{name} {kind}"), plots.ablation(effects, kind=kind)
            if "-single-" in name:
                yield _slug(f"{name} histogram"), plots.histogram(effects)
    for name in (name for name in study.names() if name.partition("-")[0] == "curves"):
        yield _slug(name), plots.curves(study.load(name), label=_measured(study.load(name)))
    yield from _pruned(study)
    yield from _related(study)
    if study.has("offsets"):
        yield "offsets", plots.offsets(study.load("offsets"))[0]


def save(axes: Axes, path: Path, *, dpi: int = 150, of: str = "") -> Path:
    """Save the figure of `axes`, marked as made by headroles, and release it.

    Args:
        axes: Any axes of the figure.
        path: The file; its suffix is the format.
        dpi: Resolution.
        of: Digest of the weights that the figure is of.

    Returns:
        The path.
    """
    import matplotlib.pyplot as plt

    figure: Any = axes.get_figure(root=True)
    kind = path.suffix.lstrip(".") or "png"
    note = {"png": "Software", "pdf": "Creator", "svg": "Creator"}.get(kind)
    options = {} if note is None else {"metadata": {note: mark_of(of)}}
    with replacing(path) as draft:
        figure.savefig(draft, dpi=dpi, bbox_inches="tight", format=kind, **options)
    plt.close(figure)
    return path


def _pruned(study: Study) -> Iterator[tuple[str, Any]]:
    """Figures of pruning."""
    from headroles import plots

    for name in study.names():
        table, first = study.load(name), name.partition("-")[0]
        pruned = table[(table.filter(regex=r"\]$") == 0).any(axis=1)] if first == "survival" else table[:0]
        kinds = list(table["kind"].unique()) if first == "functions" else _kinds(pruned) if len(pruned) else []
        if first == "sizes":
            yield _slug(name), plots.survival(table, label=_measured(table))
            yield _slug(f"{name} kinds"), plots.by_kind(table)
        for kind in kinds:
            drawing: Any = plots.by_layer if first == "survival" else plots.functions
            yield _slug(f"{name} {kind}"), drawing(table, kind=kind)
        if first == "gates":
            yield _slug(name), plots.gates(table)
        if first == "compensation":
            yield _slug(name), plots.heatmaps(table["moved[all]"], label="change of the weights, relative")[0]
        if name == "contest":
            yield name, plots.contest(table, study.load("contest-seeds"), label=_measured(table))[0]
        if name == "efficiency":
            yield name, plots.efficiency(table)
        if name == "dynamics-curves":
            yield "dynamics", plots.dynamics(table, label=_measured(table))
            yield "settling", plots.settling(study.load("dynamics-order"))[0]


def _related(study: Study) -> Iterator[tuple[str, Any]]:
    """Figures of roles and outcomes, except empty ones."""
    from headroles import plots

    for name in (name for name in study.names() if name.partition("-")[0] in ("relate", "odds", "predictors", "drift")):
        table = study.load(name)
        if name.startswith("drift-") and table[["before", "after"]].to_numpy().any():
            yield _slug(name), plots.drift(table)[0]
        elif name == "relate" and table["auc"].notna().any():
            yield name, plots.relation(table)
        elif name == "odds" and table.loc[~table["term"].str.match("(kind|depth) "), "odds"].notna().any():
            yield name, plots.odds(table)
        elif name == "predictors" and table["spearman"].notna().any():
            yield name, plots.predictors(table)


def _measured(curves: pd.DataFrame) -> str:
    """Name of the metric of curves, from their provenance."""
    name = metric_of(frame.provenance(curves, "value")) or "metric"
    return {"agreement": "agreement with the intact model", "bleu": "BLEU", "chrf": "chrF"}.get(name, name)


def _kinds(table: pd.DataFrame) -> list[Any]:
    """Kinds for which a table has any value."""
    present = table.dropna(how="all").index.unique("kind")
    return [kind for kind in KINDS if kind in present]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9+]+", "-", text.lower()).strip("-")
