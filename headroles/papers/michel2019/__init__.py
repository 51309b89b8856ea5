"""Michel et al. 2019, "Are sixteen heads": each figure and table beside its claim (no torch)."""

from headroles.papers.michel2019 import curves, effects, other_corpora

SECTIONS = effects, other_corpora, curves  # in the order of the paper
