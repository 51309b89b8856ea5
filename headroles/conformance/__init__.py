"""Conformance: does every law of this project hold of a model, and if not, why?"""

from headroles.conformance.run import LAWS, conform

__all__ = ["LAWS", "conform"]
