"""Statistics of head tables: roles, their relation to outcomes, resampling, multiple testing (no torch)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
