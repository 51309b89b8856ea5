"""Plots: tables in, matplotlib Axes out; nothing is shown or saved (no torch)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
