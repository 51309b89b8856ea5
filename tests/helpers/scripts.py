"""Scripts of `figures`, which are in no package."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

FIGURES = Path(__file__).resolve().parents[2] / "figures"


@cache
def script(folder, name="make"):
    """A script of a folder of `figures` as a module of its own name: each folder has a `make`."""
    spec = importlib.util.spec_from_file_location(f"{name}_{Path(folder).name}", FIGURES / folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
