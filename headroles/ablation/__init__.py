"""Ablation: the effect of masking heads on a metric, with intervals and tests."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
