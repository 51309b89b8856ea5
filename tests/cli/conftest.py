"""Fixtures of the tests of commands: a model in a folder."""

from helpers.commands import model

__all__ = ["model"]
