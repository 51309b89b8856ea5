"""Voita et al. 2019, "Specialized heads": each figure and table beside its claim (no torch)."""

from headroles.papers.voita2019 import encoder_pruning, heads, pruning, rare_words, relevance

SECTIONS = relevance, heads, rare_words, encoder_pruning, pruning  # in the order of the paper
