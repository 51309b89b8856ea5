"""The demo: a pretrained encoder or a small translator, scored on an embedded corpus."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from headroles.data import synthetic
from headroles.papers.score_study import assign_roles, draw
from headroles.tables.study import Study

SENTENCES = 1000  # of the toy grammar, with gold trees, for MiniLM
OF_TRANSLATOR = ("confidence", "position", "entropy", "sink", "distance", "alignment")  # no trees, no rare words


def demo(folder: str | Path, *, translation: bool = False, overwrite: bool = False) -> tuple[pd.DataFrame, list[Path]]:
    """Score MiniLM, or a small translator, on an embedded corpus; return its roles, and the figures drawn."""
    from headroles.data.readers import read
    from headroles.models import at_hand
    from headroles.scores import score

    study = Study(folder, overwrite=overwrite)
    study.check_writable()
    model, tokenizer = at_hand.translator() if translation else at_hand.minilm()
    corpus = read(at_hand.TRANSLATOR / "sentences.tsv") if translation else synthetic.synthetic_corpus(SENTENCES)
    score(model, tokenizer, corpus, OF_TRANSLATOR if translation else None, study=study)
    return assign_roles(study), draw(study)
