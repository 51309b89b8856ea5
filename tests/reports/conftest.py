"""Fixtures of the tests of reports: a study with every table, and its report."""

from helpers.reports import html, study

__all__ = ["html", "study"]
