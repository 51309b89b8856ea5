"""Reports: the tables of a model's studies as one page that opens from disk, with a card for every head (no torch)."""

from headroles.reports.page import report

__all__ = ["report"]
