"""Relevance: layer-wise relevance propagation (LRP) by backward rules in place of gradients."""

from headroles.scores.lrp.composites import RULES, Rules
from headroles.scores.lrp.conservation_report import conservation, totals
from headroles.scores.lrp.context import ruled

__all__ = ["RULES", "Rules", "conservation", "ruled", "totals"]
