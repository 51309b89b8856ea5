"""Checks of this library on a given model: does everything it relies on hold?"""

from headroles.testing.runner import LAWS, conform

__all__ = ["LAWS", "conform"]
