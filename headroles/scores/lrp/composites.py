"""Composites: which LRP rule stands for which operation, and where relevance starts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from headroles.scores.lrp import rules as lrp
from headroles.scores.lrp.alphabeta import alphabeta
from headroles.scores.lrp.linear_maps import damped, products
from headroles.scores.lrp.rules import Operation, Rule

Rules = Literal["cp", "cp-gate", "attn", "voita", "voita-exact", "gradient"]
RULES: tuple[Rules, ...] = get_args(Rules)
Table = Mapping[Operation, Rule]


def table(rules: Rules, epsilon: float = 0.0) -> Table:
    """Return the table of a rule set.

    Args:
        rules: name of the rule set.

            - "cp": LRP-0 with constant attention weights; conservative (Voita et al. 2019, read as a weighted sum of
              values; Ali et al. 2022).
            - "cp-gate": "cp" with the gates of gated units constant too.
            - "attn": AttnLRP, relevance through the softmax (Achtibat et al. 2024).
            - "voita": alpha = beta = 0.5, the rule of Voita's released code, factored.
            - "voita-exact": "voita" with full Jacobians, for tiny models.
            - "gradient": no rules.
        epsilon: strength of the epsilon rule on linear maps; 0 for none.

    Returns:
        Rules by operation.

    Raises:
        ValueError: if the name is unknown or epsilon is negative or not available for the rule set.
    """
    if rules not in RULES:
        raise ValueError(f"unknown rules {rules!r}; known: {', '.join(RULES)}")
    if not epsilon >= 0 or (epsilon and rules not in ("cp", "cp-gate", "attn")):
        raise ValueError(
            f"epsilon out of range: got epsilon={epsilon} with rules {rules!r}; expected a number >= 0 for the rules "
            f"cp, cp-gate and attn, otherwise 0"
        )
    if rules == "gradient":
        return {}
    if rules in ("voita", "voita-exact"):
        return _common() | alphabeta(exact=rules == "voita-exact")
    composite = _common()
    if epsilon:
        composite |= dict.fromkeys(lrp.LINEAR, partial(damped, epsilon))
        composite["every"] = partial(products, epsilon)
    if rules != "attn":
        composite |= dict.fromkeys(lrp.SOFTMAX, lrp.constant)
    if rules == "cp-gate":
        composite |= dict.fromkeys(lrp.MULTIPLY, lrp.signal)
    return composite


def start(values: Tensor, rules: Rules) -> Tensor:
    """Return the first cotangent: 1, so that the target's relevance is its value; voita's relevance starts at 1."""
    if not rules.startswith("voita"):
        return torch.ones_like(values)
    return 1 / torch.where(values == 0, 1.0, values)


def check_reached(explained: Tensor) -> None:
    """Raise ValueError if the target has no gradient."""
    if not explained.requires_grad:
        raise ValueError(
            "no gradient reaches the heads: got a target that does not depend on any head; try another objective"
        )


def _common() -> dict[Operation, Rule]:
    """Rules common to all composites."""
    return {
        **dict.fromkeys((*lrp.MULTIPLY, *lrp.MATMUL), lrp.halves),
        torch.einsum: lrp.shares,
        **dict.fromkeys((torch.baddbmm, Tensor.baddbmm), lrp.summands),
        **dict.fromkeys(lrp.DIVIDE, lrp.numerator),
        torch.linalg.solve_triangular: lrp.solved,
        **dict.fromkeys(lrp.NORM, lrp.norm),
        **dict.fromkeys(lrp.GROUP_NORM, lrp.group_norm),
        **dict.fromkeys(lrp.INSTANCE_NORM, lrp.instance_norm),
        **dict.fromkeys((*lrp.ROOT, *lrp.RECIPROCAL, *lrp.GATE), lrp.constant),
        **dict.fromkeys(lrp.POWER, lrp.power),
        **dict.fromkeys((*lrp.ACTIVATION, *lrp.RMS_NORM), lrp.whole),
        **dict.fromkeys(lrp.FUSED, lrp.fused),
        F.glu: lrp.gated_unit,
        "activation": lrp.whole,
    }
