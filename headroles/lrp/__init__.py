"""Relevance: layer-wise relevance propagation (LRP) by backward rules in place of gradients."""

from headroles.lrp.ledger import conservation, totals
from headroles.lrp.mode import ruled
from headroles.lrp.rules import RULES, Rules

__all__ = ["RULES", "Rules", "conservation", "ruled", "totals"]
