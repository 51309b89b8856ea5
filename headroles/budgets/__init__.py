"""Budgets: which key-value heads need the long context, and a cache in which others stream."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
