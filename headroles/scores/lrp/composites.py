"""Methods: which rule stands for which operation, and what goes back from what is explained."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from headroles.scores.lrp import rules as op
from headroles.scores.lrp import rules as rule
from headroles.scores.lrp.alphabeta import alphabeta
from headroles.scores.lrp.rules import Operation, Rule

Rules = Literal["cp", "cp-gate", "attn", "voita", "voita-exact", "gradient"]
RULES: tuple[Rules, ...] = get_args(Rules)
Table = Mapping[Operation, Rule]


def table(rules: Rules, epsilon: float = 0.0) -> Table:
    """The table of a rule set; `epsilon` > 0 puts the epsilon rule on linear maps. "gradient" has no rules.

    "cp": LRP-0, attention weights constant: conservative (Voita et al. 2019, read as a weighted sum of values;
    Ali et al. 2022). "cp-gate": the same, gates of gated units constant too. "attn": AttnLRP (Achtibat et al. 2024),
    relevance through the softmax. "voita": alpha = beta = 0.5, the rule of Voita's released code, factored.
    "voita-exact": its full Jacobians, for tiny models. Raises ValueError for an unknown name or a negative epsilon.
    """
    if rules not in RULES:
        raise ValueError(f"unknown rules {rules!r}; known: {', '.join(RULES)}")
    if not epsilon >= 0 or (epsilon and rules not in ("cp", "cp-gate", "attn")):
        raise ValueError(f"epsilon is a number >= 0 for the rules cp, cp-gate and attn; got {epsilon} with {rules!r}")
    if rules == "gradient":
        return {}
    if rules in ("voita", "voita-exact"):
        return _common() | alphabeta(exact=rules == "voita-exact")
    found = _common()
    if epsilon:
        found |= dict.fromkeys(op.LINEAR, partial(rule.damped, epsilon))
    if rules != "attn":
        found |= dict.fromkeys(op.SOFTMAX, rule.constant)
    if rules == "cp-gate":
        found |= dict.fromkeys(op.MULTIPLY, rule.signal)
    return found


def start(values: Tensor, rules: Rules) -> Tensor:
    """What goes back from what is explained: 1, so that its relevance is its value; voita's relevance starts at 1."""
    if not rules.startswith("voita"):
        return torch.ones_like(values)
    return 1 / torch.where(values == 0, 1.0, values)


def check_reached(explained: Tensor) -> None:
    """Raises ValueError if what is explained has no gradient."""
    if not explained.requires_grad:
        raise ValueError(
            "no gradient reaches the gates: what is explained does not depend on any head; choose another objective"
        )


def _common() -> dict[Operation, Rule]:
    """What all rule sets share."""
    return {
        **dict.fromkeys((*op.MULTIPLY, *op.MATMUL), rule.halves),
        **dict.fromkeys((torch.baddbmm, Tensor.baddbmm), rule.summands),
        **dict.fromkeys(op.DIVIDE, rule.numerator),
        **dict.fromkeys(op.NORM, rule.norm),
        **dict.fromkeys(op.GROUP_NORM, rule.group_norm),
        **dict.fromkeys((*op.ROOT, *op.SIGMOID), rule.constant),
        **dict.fromkeys((*op.ACTIVATION, *op.RMS_NORM), rule.whole),
        **dict.fromkeys(op.FUSED, rule.fused),
        F.glu: rule.gated_unit,
        "activation": rule.whole,
    }
