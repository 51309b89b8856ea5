"""Tables of heads: their index, provenance, files, and the study folder that keeps them (no torch)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
