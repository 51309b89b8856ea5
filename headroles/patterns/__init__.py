"""Patterns: which keys each query of a head is about; measured as a score, imposed as a replacement."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
