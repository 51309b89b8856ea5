"""The demo: a pretrained encoder or a small translator, scored on an embedded corpus, offline."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from headroles.analysis.role_rules import roles
from headroles.plots.gallery import plot
from headroles.reports.page import report
from headroles.tables.study import Study

PAGE = "report.html"
SENTENCES = 1000  # of the toy grammar, with gold trees, for MiniLM
OF_TRANSLATOR = ("confidence", "position", "entropy", "sink", "distance", "alignment")  # no trees, no rare words


def demo(study: str | Path | None = None, *, translation: bool = False, overwrite: bool = False) -> pd.DataFrame:
    """Score a small model on an embedded corpus, offline.

    Args:
        study: Folder for the tables and figures; by default headroles-demo or headroles-demo-translation.
        translation: Score a small translator instead of MiniLM.
        overwrite: Remove tables of another model or corpus from the folder.

    Returns:
        The table of `hr.roles`; the study keeps it, the scores, the figures and the page.
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
