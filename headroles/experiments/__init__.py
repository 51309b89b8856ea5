"""Experiments: pipelines over a study, the papers' figures and tables, replication from scratch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
