"""The demo: a pretrained encoder or a small translator, scored on an embedded corpus, offline."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from headroles.analysis.role_rules import held, roles
from headroles.plots.gallery import plot
from headroles.reports.page import report
from headroles.tables.columns import Column
from headroles.tables.frame import LEVELS
from headroles.tables.study import Study

PAGE = "report.html"
SENTENCES = 1000  # of the toy grammar, with gold trees, for MiniLM
OF_TRANSLATOR = ("confidence", "position", "entropy", "sink", "distance", "alignment")  # no trees, no rare words


def demo(study: str | Path | None = None, *, translation: bool = False, overwrite: bool = False) -> pd.DataFrame:
    """Score a small model on an embedded corpus, offline.

    Its roles are assigned, its figures drawn, and its page written.

    Args:
        study: Folder for the tables and figures; by default headroles-demo or headroles-demo-translation.
        translation: Score a small translator instead of MiniLM.
        overwrite: Remove tables of another model or corpus from the folder.

    Returns:
        The table of `hr.roles`; the study keeps it, the scores as `heads`, the figures, and the page
        `report.html`.
    """
    from headroles.data.readers import read
    from headroles.data.synthetic import synthetic_corpus
    from headroles.models.loading import TRANSLATOR, load
    from headroles.scores import score

    kept = Study(study or f"headroles-demo{'-translation' if translation else ''}", overwrite=overwrite)
    kept.check_writable()
    model, tokenizer = load("translator" if translation else "minilm")
    corpus = read(TRANSLATOR / "sentences.tsv") if translation else synthetic_corpus(SENTENCES)
    score(model, tokenizer, corpus, OF_TRANSLATOR if translation else None, study=kept)
    assigned = roles(kept)
    plot(kept)
    report(kept, kept.folder / PAGE, overwrite=overwrite)
    return assigned


def found(assigned: pd.DataFrame) -> list[str]:
    """Say in three sentences what a table of roles has: how many heads, the clearest one, and the sinks."""
    rows = held(assigned)
    rows["family"] = [Column.parse(role).name for role in rows["role"]]
    heads = rows.drop_duplicates([*LEVELS, "family"])["family"].value_counts(sort=False)
    counts = ", ".join(f"{count} {family}" for family, count in heads.items())
    some, of = rows.groupby(LEVELS).ngroups, len(assigned)
    sinks = rows["family"] == "sink"
    sunk, special = (rows[part].groupby(LEVELS).ngroups for part in (sinks, ~sinks))
    return [
        f"At the default thresholds {some} of {of} heads have a role: {counts}.",
        _clearest(rows[~sinks]),
        f"{sunk} heads rest mostly on a special or the first token, {special} have another role, "
        f"{sunk + special - some} have both.",
    ]


def _clearest(rows: pd.DataFrame) -> str:
    """The head with the largest score of a role, and how it looks."""
    if rows.empty:
        return "No head has a role other than that of a sink."
    first = rows.iloc[int(rows["value"].to_numpy().argmax())]
    stable = "" if pd.isna(first["stability"]) else f", and keeps it in {first['stability']:.0%} of the resamples"
    place = f"layer {first['layer']} head {first['head']} ({first['kind']})"
    return f"The clearest is {place}: it has the role {first['role']} with a score of {first['value']:.2f}{stable}."
