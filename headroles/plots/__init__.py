"""Plots: tables in, matplotlib Axes out; nothing is shown or saved (no torch)."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Import a plot when it is first asked for, so that `import headroles.plots` is quick."""
    plots = import_module("headroles.plots.attention_map")
    if name in plots.__all__:
        return getattr(plots, name)
    raise AttributeError(f"module 'headroles.plots' has no plot {name!r}; known: {', '.join(plots.__all__)}")
