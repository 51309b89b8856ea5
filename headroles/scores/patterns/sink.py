"""Sink: weight on special tokens and on the first token (attention sink)."""

from dataclasses import dataclass

from torch import Tensor

from headroles.scores.base import Observation, Score, Sums


@dataclass(frozen=True)
class Sink(Score):
    """Mean over content queries of the weight on special tokens (Clark et al. 2019) and on the first token of any sort.

    An attention sink absorbs the weight of idle heads: CLS and SEP in BERT, the first token in decoders
    (Xiao et al. 2023).
    """

    in_parts = True
    of_sink = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Sum the weights on special tokens and on the first token: each [batch, heads]."""
        special = observation.on_keys(observation.keys.attention_mask & ~observation.keys.content)
        return {"special": special, "first": observation.received[..., 0].double()}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `sink[special]` and `sink[first]`."""
        return {f"sink[{where}]": sums[where] / sums["queries"] for where in ("special", "first")}
