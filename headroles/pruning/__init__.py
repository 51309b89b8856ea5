"""Pruning: choose heads to remove, by a ranking or by learnt gates, and remove them from the weights."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
