"""Sink: how much of a head's attention rests on special tokens, or on the first token."""

from dataclasses import dataclass

from torch import Tensor

from headroles.scores.base import Observation, Score, Sums


@dataclass(frozen=True)
class Sink(Score):
    """Mean over real queries of the weight on special tokens (Clark et al. 2019), and on the first token of any sort.

    A head with nothing to do rests there: on CLS and SEP in BERT, on the first token in decoders (Xiao et al. 2023).
    """

    in_parts = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """The sums of the weights on special tokens and on the first token."""
        special = observation.on_keys(observation.keys.attention_mask & ~observation.keys.content)
        return {"special": special, "first": observation.received[..., 0].double()}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """`sink[special]` and `sink[first]`."""
        return {f"sink[{where}]": sums[where] / sums["queries"] for where in ("special", "first")}
