"""Voita et al. 2019, "Specialized heads": each figure and table beside its claim (no torch)."""

from headroles.experiments.papers.voita2019 import heads, pruning, relevance

SECTIONS = relevance, heads, pruning  # in the order of the paper
