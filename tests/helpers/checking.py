"""The checks of check_model, run once for each architecture."""

from __future__ import annotations

from functools import cache

import architectures

import headroles as hr

built = cache(architectures.build)  # checks leave a model as it was


@cache
def results(name):
    """The results of the checks on an architecture."""
    return hr.check_model(built(name))
