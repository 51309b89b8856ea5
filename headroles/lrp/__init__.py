"""Relevance: layer-wise relevance propagation (LRP) by backward rules in place of gradients."""

from headroles.lrp.ledger import conservation, totals
from headroles.lrp.methods import RULES, Rules
from headroles.lrp.mode import ruled

__all__ = ["RULES", "Rules", "conservation", "ruled", "totals"]
