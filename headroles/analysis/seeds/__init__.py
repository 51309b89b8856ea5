"""Seeds: match the heads of models of one shape, and test which heads and roles come back (no torch)."""

from headroles.analysis.seeds.matching import match_heads, stability

__all__ = ["match_heads", "stability"]
